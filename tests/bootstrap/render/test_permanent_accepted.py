"""Permanent servers with a real kube-apiserver and kubeadm: manifests, permissions, the README's commands."""

from __future__ import annotations

import random
import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from bootbridge.bootstrap.plan.paths import PERMANENT_PATHS
from bootbridge.bootstrap.plan.permanent import (
    AGENT_NAMESPACE,
    AGENT_SERVICE_ACCOUNT,
    AUDIENCE,
    PermanentPlan,
)
from bootbridge.bootstrap.render import apiserver_manifest, manifests, permanent
from bootbridge.cli.main import main
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError
from bootbridge.kube.kinds import SECRET
from bootbridge.kube.kubeconfig import load_kubeconfig
from bootbridge.kube.lease_garbage_collector import LeaseGarbageCollector
from bootbridge.kube.lease_publisher import LeasePublisher
from bootbridge.kube.objects import Ref
from bootbridge.kube.token_review import TokenReviewer
from tests.bootstrap.render.permanent_plans import PLANS
from tests.bootstrap.render.test_manifests_accepted import DRY_RUN
from tests.support.kubernetes import BIN, ControlPlane

pytest_plugins = ["tests.support.kubernetes"]
pytestmark = pytest.mark.kubernetes

ROLES = "/apis/rbac.authorization.k8s.io/v1"
COLLECTIONS = {
    "Role": f"{ROLES}/namespaces/kube-system/roles",
    "RoleBinding": f"{ROLES}/namespaces/kube-system/rolebindings",
    "ClusterRole": f"{ROLES}/clusterroles",
    "ClusterRoleBinding": f"{ROLES}/clusterrolebindings",
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_kube_apiserver_accepts_the_static_pod(kubernetes: ControlPlane, plan: PermanentPlan) -> None:
    """No unknown field, no wrong type, no invalid value."""
    kubernetes.service_account("kube-system", "default")
    pod = yaml.safe_load(manifests.to_yaml(manifests.permanent_server_pod(plan)))
    status, answer = kubernetes.api.call("POST", f"/api/v1/namespaces/kube-system/pods?{DRY_RUN}", pod)
    assert status == 201, answer.get("message")


@pytest.fixture
def server_access(kubernetes: ControlPlane) -> Path:
    """Applies the roles of a server that reviews tokens and publishes leases; returns its kubeconfig."""
    plan = PLANS["tokens and leases"]
    for role in permanent.server_roles(plan):
        status, answer = kubernetes.api.call(
            "POST", f"{COLLECTIONS[role['kind']]}?fieldValidation=Strict", role
        )
        assert status == 201, answer.get("message")
    return kubernetes.kubeconfig_for(plan.server_user)


async def test_the_roles_allow_what_a_server_does_and_nothing_else(
    kubernetes: ControlPlane, server_access: Path
) -> None:
    """It reviews a token, publishes, renews and deletes its lease, and deletes expired ones."""
    namespace, account = AGENT_NAMESPACE, AGENT_SERVICE_ACCOUNT
    kubernetes.namespace(namespace)
    kubernetes.service_account(namespace, account)
    token = kubernetes.token(namespace, account, AUDIENCE)
    client = KubeClient(load_kubeconfig(server_access), qps=-1)
    try:
        reviewer = TokenReviewer(
            client, "bootbridge", "bootbridge-agent", "system:konnectivity-server", time.time
        )
        assert await reviewer.authenticate([f"Bearer {token}"]) > time.time()
        labels = {"k8s-app": "konnectivity-server"}
        publisher = LeasePublisher(
            client, "kube-system", "node1", labels, clock=time.time, rng=random.Random(0)
        )
        await publisher.publish()
        await publisher.publish()
        later = LeaseGarbageCollector(
            client, "kube-system", "k8s-app=konnectivity-server", clock=lambda: time.time() + 3600
        )
        await later.collect()
        assert await client.get_or_none(publisher.ref) is None
        await publisher.publish()
        await publisher.withdraw()
        assert await client.get_or_none(publisher.ref) is None
        with pytest.raises(KubeError, match="forbidden"):
            await client.get_or_none(Ref(SECRET, "any", "kube-system"))
    finally:
        await client.aclose()


# --- kubeadm


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A control plane's file system with the cluster's CA, made by kubeadm."""
    root = tmp_path / "root"
    for name in ("tmp", "etc/kubernetes", "run", "var/lib"):
        (root / name).mkdir(parents=True)
    return root


def run_in(root: Path, *words: str) -> str:
    """Runs kubeadm below `root`, isolated from this machine."""
    argv = ["unshare", "--map-root-user", str(BIN / "kubeadm"), f"--rootfs={root}", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readmes_kubeadm_commands_work(root: Path, tmp_path: Path) -> None:
    """The kubeconfig has the user of the roles; the kube-apiserver's manifest has the tunnel."""
    configuration = tmp_path / "cluster.yaml"
    configuration.write_text(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.0\n"
        "---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n"
        "localAPIEndpoint: {advertiseAddress: 192.0.2.5}\n"
    )
    servers = tmp_path / "servers"
    words = ("--image=registry.example/b:1", "--server-host=192.0.2.5", f"--kubeadm-config={configuration}")
    assert main(["render", "--permanent", f"--output={servers}", *words]) == 0
    (root / "kubeadm.yaml").write_bytes((servers / "kubeadm.yaml").read_bytes())
    run_in(root, "init", "phase", "certs", "ca", "--config=/kubeadm.yaml")
    commands = readme_commands(servers)
    kubeconfig = yaml.safe_load(run_in(root, *commands["kubeconfig"]))
    assert kubeconfig["users"][0]["name"] == PermanentPlan.server_user
    run_in(root, *commands["init phase control-plane"])
    path = PERMANENT_PATHS.apiserver_pod
    data = (root / path.lstrip("/")).read_bytes()
    setting = apiserver_manifest.egress_setting(next(iter(PLANS.values())))
    assert len(apiserver_manifest.find_setting(data, setting, path)) == 4


def readme_commands(servers: Path) -> dict[str, list[str]]:
    """Returns the kubeadm commands of the README, without redirections, by their first words."""
    text = (servers / "README.md").read_text().replace("\\\n", " ")
    found = [match[1].split(">")[0] for match in re.finditer(r"kubeadm ((?:kubeconfig|init) [^#\n]*)", text)]
    argv = [[word.replace("kubeadm.yaml", "/kubeadm.yaml") for word in shlex.split(line)] for line in found]
    return {" ".join(words[:3]) if words[0] == "init" else words[0]: words for words in argv}
