"""Renders permanent servers: static pod, egress selector, roles, values of the chart, README."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootbridge.bootstrap.diagnose import check
from bootbridge.bootstrap.diagnose.check import CheckVerdict, permanent_servers
from bootbridge.bootstrap.diagnose.check.permanent_servers import PermanentTree
from bootbridge.bootstrap.plan import record
from bootbridge.bootstrap.plan.paths import KUBEADM_PATHS, PERMANENT_PATHS
from bootbridge.bootstrap.plan.permanent import PermanentPlan
from bootbridge.bootstrap.plan.plan import Flavour, Plan, ProxyImage
from bootbridge.bootstrap.render import (
    apiserver_manifest,
    egress_selector,
    manifests,
    permanent,
    program_flags,
)
from bootbridge.cli.main import main
from bootbridge.cli.server_flags import FLAGS
from bootbridge.common.files import Asset
from bootbridge.errors import OperatorError
from bootbridge.proxy_server.options import ServerOptions, validate
from tests.bootstrap.render.manifest_variants import VALUES
from tests.bootstrap.render.permanent_plans import PLANS

COMMAND = ["render", "--permanent", "--image", "registry.example/b:1", "--server-host", "192.0.2.5"]
APISERVER = """\
apiVersion: v1
kind: Pod
metadata:
  name: kube-apiserver
spec:
  containers:
  - name: kube-apiserver
    command:
    - kube-apiserver
    - --secure-port=6443
    volumeMounts:
    - mountPath: /etc/kubernetes/pki
      name: pki
  volumes:
  - hostPath:
      path: /etc/kubernetes/pki
    name: pki
"""

each_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


def documents(data: bytes) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(data))


# --- files


@each_plan
def test_every_file_has_a_purpose_and_none_a_key(plan: PermanentPlan) -> None:
    """Paths are relative to the directory, and rendering is deterministic."""
    tree = permanent.output_files(plan)
    assert permanent.output_files(plan) == tree
    for path, asset in tree.items():
        assert permanent.purpose(plan, path), path
        assert not path.startswith("/")
        assert b"PRIVATE KEY" not in asset.data
        if path.endswith(".yaml"):
            assert documents(asset.data)


@each_plan
def test_the_plan_record_is_read_back(plan: PermanentPlan) -> None:
    tree = {f"/{path}": asset for path, asset in permanent.output_files(plan).items()}
    assert record.find_permanent(tree, "servers") == plan


def test_a_directory_of_permanent_servers_is_not_that_of_a_bootstrap() -> None:
    """`inject --assets` refuses it."""
    tree = {f"/{path}": asset for path, asset in permanent.output_files(next(iter(PLANS.values()))).items()}
    with pytest.raises(OperatorError, match="files of permanent servers, not of a bootstrap"):
        record.find(tree, "servers")


def test_paths_and_ports_differ_from_those_of_up() -> None:
    """So that `down` leaves permanent servers as they are, and both can run on one node."""
    ours, theirs = PERMANENT_PATHS, KUBEADM_PATHS
    for path in ("state", "egress_config", "socket"):
        assert getattr(ours, path) != getattr(theirs, path)
    assert ours.permanent_server_pod != theirs.server_pod
    plan = next(iter(PLANS.values()))
    bootstrap = Plan(flavour=Flavour.KUBEADM, image=plan.image)
    assert plan.server_pod_name != bootstrap.server_pod_name
    server = {plan.ports.agent, plan.ports.server_health, plan.ports.server_admin}
    assert server.isdisjoint(vars(bootstrap.ports).values())


# --- the static pod


@each_plan
def test_the_server_accepts_its_flags(plan: PermanentPlan, tmp_path: Path) -> None:
    """By the program's own parser and validation, with the files that the README lists."""
    for name in ("ca.crt", "server.crt", "server.key", "server.conf"):
        (tmp_path / name).touch()
    arguments = [
        word.replace(program_flags.CERTIFICATES_SEEN_BY_SERVER, str(tmp_path))
        for word in program_flags.permanent_server_args(plan)
    ]
    options = ServerOptions(**FLAGS.parse(arguments).fields)
    validate(options)
    assert options.token_authentication == plan.reviews_tokens
    assert bool(options.cluster_ca_cert) != plan.reviews_tokens
    assert options.bounds_identifiers == plan.prove_nodes
    assert options.enable_lease_controller == plan.publishes_leases
    assert (options.server_count == plan.server_count) == (not plan.publishes_leases)


@each_plan
def test_the_server_is_hardened_as_that_of_the_bootstrap(plan: PermanentPlan) -> None:
    bootstrap = Plan(flavour=Flavour.KUBEADM, image=ProxyImage("bootbridge", "registry.example/b:1"))
    theirs, ours = (
        manifests.server_pod(bootstrap, VALUES)["spec"],
        manifests.permanent_server_pod(plan)["spec"],
    )
    own = ("containers", "volumes")
    assert {key: value for key, value in ours.items() if key not in own} == {
        key: value for key, value in theirs.items() if key not in own
    }
    for field in ("securityContext", "resources", "terminationMessagePolicy", "imagePullPolicy"):
        assert ours["containers"][0][field] == theirs["containers"][0][field]


@each_plan
def test_the_kube_apiserver_and_the_server_use_one_socket(plan: PermanentPlan) -> None:
    configuration = egress_selector.configuration(plan)
    assert egress_selector.validate(configuration) == []
    socket = configuration["egressSelections"][0]["connection"]["transport"]["uds"]["udsName"]
    assert f"--uds-name={socket}" in program_flags.permanent_server_args(plan)


# --- roles


@pytest.mark.parametrize(
    ("name", "granted"),
    [
        ("certificates and leases", {("leases", "create,get,list,update,delete")}),
        ("certificates and a number", set()),
        ("tokens and leases", {("leases", "create,get,list,update,delete"), ("tokenreviews", "create")}),
        ("tokens that prove the node", {("tokenreviews", "create")}),
    ],
)
def test_servers_get_only_the_permissions_that_they_use(name: str, granted: set[tuple[str, str]]) -> None:
    """Without a permission to grant, there is no file."""
    tree = permanent.output_files(PLANS[name])
    found = documents(tree["rbac.yaml"].data) if "rbac.yaml" in tree else []
    rules = [rule for each in found for rule in each.get("rules", ())]
    assert {(rule["resources"][0], ",".join(rule["verbs"])) for rule in rules} == granted
    bound = [each["subjects"] for each in found if each["kind"].endswith("Binding")]
    user = {
        "kind": "User",
        "name": "system:konnectivity-server",
        "apiGroup": "rbac.authorization.k8s.io",
    }
    assert all(subjects == [user] for subjects in bound)


# --- the kube-apiserver


def test_a_manifest_of_a_kube_apiserver_gets_the_tunnel(tmp_path: Path) -> None:
    """And nothing else changes; mode 0600, because such a file may contain tokens."""
    (tmp_path / "pod.yaml").write_text(APISERVER)
    output = tmp_path / "servers"
    words = ["--output", str(output), "--apiserver-manifest", str(tmp_path / "pod.yaml")]
    assert main([*COMMAND, *words]) == 0
    data = (output / "kube-apiserver.yaml").read_bytes()
    command = apiserver_manifest.command_line(data, "kube-apiserver.yaml")
    assert f"--egress-selector-config-file={PERMANENT_PATHS.egress_config}" in command
    setting = apiserver_manifest.egress_setting(next(iter(PLANS.values())))
    assert apiserver_manifest.remove(data, setting, "kube-apiserver.yaml").decode() == APISERVER
    assert (output / "kube-apiserver.yaml").stat().st_mode & 0o777 == 0o600


def test_a_kubeadm_configuration_gets_the_tunnel(tmp_path: Path) -> None:
    file = tmp_path / "kubeadm.yaml"
    file.write_text("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n")
    output = tmp_path / "servers"
    assert main([*COMMAND, "--output", str(output), "--kubeadm-config", str(file)]) == 0
    document = yaml.safe_load((output / "kubeadm.yaml").read_bytes())
    flags = {entry["name"]: entry["value"] for entry in document["apiServer"]["extraArgs"]}
    assert flags["egress-selector-config-file"] == PERMANENT_PATHS.egress_config
    assert {volume["hostPath"] for volume in document["apiServer"]["extraVolumes"]} == {
        str(Path(PERMANENT_PATHS.egress_config).parent),
        PERMANENT_PATHS.socket_directory,
    }


# --- the README


@each_plan
def test_the_readme_names_every_file_and_no_other(plan: PermanentPlan) -> None:
    tree = permanent.output_files(plan)
    text = tree["README.md"].data.decode()
    for path in tree:
        if path not in ("README.md", PERMANENT_PATHS.plan_record.lstrip("/")):
            assert path in text, path
    assert ("rbac.yaml" in text) == ("rbac.yaml" in tree)
    assert (PERMANENT_PATHS.server_kubeconfig in text) == plan.needs_kubeconfig
    numbers = re.findall(r"^## (\d)\.", text, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    for host in plan.server_hosts:
        assert f"--server-name {host}" in text


# --- check


@each_plan
def test_fresh_files_pass_all_checks(plan: PermanentPlan) -> None:
    results = permanent_servers.of_tree(PermanentTree(plan, node_tree(plan)))
    assert {result.verdict for result in results} <= {CheckVerdict.PASS, CheckVerdict.NOT_RUN}


def node_tree(plan: PermanentPlan) -> dict[str, Asset]:
    return {f"/{path}": asset for path, asset in permanent.output_files(plan).items()}


POD, VALUES_FILE = PERMANENT_PATHS.permanent_server_pod, "/agents-values.yaml"


@pytest.mark.parametrize(
    ("plan", "path", "old", "new", "check_name"),
    [
        ("certificates and leases", POD, b"--cluster-ca-cert=", b"--server-ca-cert=", "server-pod"),
        ("certificates and leases", POD, b"proof=token", b"proof=none", "server-pod"),
        ("tokens and leases", POD, b"--authentication-audience=", b"--x=", "server-pod"),
        ("certificates and leases", POD, b"--agent-port=8132", b"--agent-port=8133", "server-pod"),
        ("certificates and leases", POD, b"hostNetwork: true", b"hostNetwork: false", "server-pod"),
        ("certificates and leases", POD, b"image: registry", b"x: registry", "image"),
        ("certificates and leases", "/rbac.yaml", b"system:konnectivity-server", b"x", "server-roles"),
        ("certificates and leases", VALUES_FILE, b"port: 8132", b"port: 8091", "agent-values"),
        ("certificates and leases", VALUES_FILE, b"method: certificate", b"method: token", "agent-values"),
        ("tokens and leases", VALUES_FILE, b"system:konnectivity-server", b"x", "agent-values"),
        ("certificates and leases", PERMANENT_PATHS.egress_config, b"GRPC", b"HTTPConnect", "egress-config"),
    ],
)
def test_each_fault_is_found_by_the_check_of_that_name(
    plan: str, path: str, old: bytes, new: bytes, check_name: str
) -> None:
    tree = node_tree(PLANS[plan])
    assert old in tree[path].data
    tree[path] = Asset(tree[path].data.replace(old, new), tree[path].mode)
    results = permanent_servers.of_tree(PermanentTree(PLANS[plan], tree))
    failed = {result.name: result for result in results if result.verdict is CheckVerdict.FAIL}
    assert set(failed) == {check_name}
    assert failed[check_name].fix


def test_check_accepts_the_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And fails when a file is gone."""
    output = tmp_path / "servers"
    assert main([*COMMAND, "--output", str(output)]) == 0
    assert main(["check", str(output)]) == 0
    assert {result.verdict for result in check.of_directory(output)} == {CheckVerdict.PASS}
    (output / POD.lstrip("/")).unlink()
    assert main(["check", str(output)]) != 0


# --- the command


def test_json_lists_files_with_their_purpose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--output", str(tmp_path / "servers"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["state"] for row in rows} == {"written"}
    assert all(row["purpose"] for row in rows)
    assert main([*COMMAND, "--output", str(tmp_path / "servers"), "--json"]) == 0
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"unchanged"}


def test_every_flag_reaches_the_plan(tmp_path: Path) -> None:
    output = tmp_path / "servers"
    words = [
        *(
            "--output",
            str(output),
            "--server-host",
            "fd00::6",
            "--server-count",
            "2",
            "--protocol",
            "HTTPConnect",
        ),
        *("--agent-authentication", "token", "--token-audience", "https://issuer", "--prove-nodes"),
        *("--agent-namespace", "tunnel", "--agent-service-account", "agents", "--agent-port", "9000"),
        *("--machine-network", "10.0.0.0/24", "--cluster-network", "10.1.0.0/16,24"),
        *("--service-network", "10.2.0.0/16", "--allow-destinations", "192.0.2.0/24:443", "--host-network"),
    ]
    assert main([*COMMAND, *words]) == 0
    path = PERMANENT_PATHS.plan_record
    plan = record.load_permanent((output / path.lstrip("/")).read_bytes(), path)
    assert plan.server_hosts == ("192.0.2.5", "fd00::6")
    assert (plan.server_count, plan.protocol, plan.ports.agent) == (2, "HTTPConnect", 9000)
    assert (plan.authentication, plan.token_audience, plan.prove_nodes) == ("token", "https://issuer", True)
    assert (plan.agent_namespace, plan.agent_service_account) == ("tunnel", "agents")
    assert plan.destinations == ("10.1.0.0/16", "10.2.0.0/16", "10.0.0.0/24", "192.0.2.0/24:443")
    assert (plan.cluster_networks[0].host_prefix, plan.host_network) == (24, True)


REFUSALS = {
    "--image: required flag missing": ["--permanent", "--server-host", "a"],
    "--server-host: required flag missing": ["--permanent", "--image", "r/b:1"],
    "--image-is konnectivity: not supported with --permanent": [*COMMAND[1:], "--image-is", "konnectivity"],
    "--flavour openshift: not supported with --permanent": [*COMMAND[1:], "--flavour", "openshift"],
    "--validity: not used with --permanent": [*COMMAND[1:], "--validity", "2h"],
    "--platform: not used with --permanent": [*COMMAND[1:], "--platform", "aws"],
    "--server-host: invalid host 'a:1'": [*COMMAND[1:], "--server-host", "a:1"],
    "--server-host: invalid host '[fd00::5]'": [*COMMAND[1:], "--server-host", "[fd00::5]"],
    "--server-host: invalid host 'a,b'": [*COMMAND[1:], "--server-host", "a,b"],
    "--server-count: invalid number 0": [*COMMAND[1:], "--server-count", "0"],
    "--agent-port: port out of range: 80": [*COMMAND[1:], "--agent-port", "80"],
    "--agent-namespace: invalid name 'A'": [*COMMAND[1:], "--agent-namespace", "A"],
    "--token-audience: requires --agent-authentication token": [*COMMAND[1:], "--token-audience", "a"],
    "--token-audience: required with --prove-nodes": [
        *COMMAND[1:],
        *("--agent-authentication", "token", "--prove-nodes"),
    ],
    "--server-host: requires --permanent": ["--server-host", "a"],
    "--prove-nodes: requires --permanent": ["--no-prove-nodes"],
}


@pytest.mark.parametrize("sentence", REFUSALS)
def test_flags_that_do_not_fit_together_are_refused(
    sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the flag, the problem and the fix, and nothing is written."""
    words = REFUSALS[sentence]
    assert main(["render", "--output", str(tmp_path / "servers"), *words]) == 1
    assert f": {sentence}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
