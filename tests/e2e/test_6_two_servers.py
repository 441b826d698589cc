"""Two servers behind one address: agents learn from leases how many there are, and connect to both."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import yaml

from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.common.files import Asset
from bootbridge.common.yaml_text import to_yaml
from bootbridge.demo.webhook import DENIAL
from bootbridge.lab import workloads
from bootbridge.lab.credentials import ADMIN_KUBECONFIG
from tests.e2e import agent_token_manifests
from tests.support.lab import GUARDED, OURS, Cluster, Json

pytestmark = pytest.mark.e2e

SECOND = "/etc/kubernetes/manifests/second-server.yaml"
AGENT_PORT, HEALTH_PORT, ADMIN_PORT = 8191, 2141, 8195
LEASES = ("leases", "--namespace=kube-system", "-l", "k8s-app=konnectivity-server")
KUBECONFIG = "/etc/lab"
# Every second new connection goes to the second server, as with a load balancer.
_EVERY_OTHER = "-p tcp --dport 8091 -m statistic --mode nth --every 2 --packet 0"
BALANCED = f"{_EVERY_OTHER} -j REDIRECT --to-ports {AGENT_PORT}".split()


@pytest.fixture(scope="module", autouse=True)
def two_servers(cluster: Cluster) -> Iterator[None]:
    """Starts both servers on the bootstrap node, and agents that count leases."""
    cluster.install_tunnel(cluster.pairing if cluster.pairing and cluster.pairing.server == "our" else OURS)
    plan = cluster.plan
    found = cluster.get("daemonset", plan.daemonset_name, f"--namespace={plan.namespace}")
    manifest = cluster.lab.file("bootstrap", plan.paths.server_pod).read_bytes()
    cluster.end_agents()
    first = _leasing(yaml.safe_load(manifest), "first")
    servers = {
        plan.paths.server_pod: first,
        SECOND: _second(_leasing(yaml.safe_load(manifest), "second"), plan),
    }
    cluster.lab.write("bootstrap", {path: Asset(to_yaml(pod), 0o600) for path, pod in servers.items()})
    _balance(cluster, "-A")
    cluster.until(lambda: len(cluster.get(*LEASES)["items"]) == 2, "both servers have a lease")
    cluster.apply(*_rights(plan), _kubeconfig(cluster), _counting(found))
    cluster.rolled_out(plan.namespace, plan.daemonset_name)
    yield
    cluster.end_agents()
    _balance(cluster, "-D")
    cluster.lab.file("bootstrap", SECOND).unlink()
    cluster.lab.write("bootstrap", {plan.paths.server_pod: Asset(manifest, 0o600)})
    cluster.kubectl("delete", "role,rolebinding", agent_token_manifests.ACCOUNT, "--namespace=kube-system")
    cluster.until(lambda: "--server-id=" not in cluster.command_lines(), "both servers have ended")
    cluster.repeat_up()


def test_every_agent_connects_to_both_servers(cluster: Cluster) -> None:
    """Although both have the same address."""
    nodes = len(cluster.lab.layout.cluster_nodes)
    for port in (cluster.plan.ports.server_admin, ADMIN_PORT):
        cluster.until(lambda port=port: cluster.connected_agents(port) == nodes, f"all agents, port {port}")


def test_calls_go_through_the_server_that_the_api_server_is_configured_with(cluster: Cluster) -> None:
    done = cluster.create(workloads.pod("denied", GUARDED, {"deny": "true"}), "--dry-run=server")
    assert DENIAL in done.stderr


def _leasing(pod: Json, name: str) -> Json:
    pod = agent_token_manifests.with_kubeconfig(pod)
    pod["spec"]["containers"][0]["args"] += ["--enable-lease-controller=true", f"--server-id={name}"]
    return pod


def _second(pod: Json, plan: Plan) -> Json:
    """Returns the server with other ports and another socket."""
    pod = copy.deepcopy(pod)
    pod["metadata"]["name"] += "-second"
    container = pod["spec"]["containers"][0]
    mine = {
        "--agent-port": AGENT_PORT,
        "--health-port": HEALTH_PORT,
        "--admin-port": ADMIN_PORT,
        "--uds-name": f"{plan.paths.socket_directory}/second.socket",
    }
    words = [word.partition("=")[::2] for word in container["args"]]
    container["args"] = [f"{flag}={mine.get(flag, value)}" for flag, value in words]
    for probe in ("livenessProbe", "readinessProbe"):
        container[probe]["httpGet"]["port"] = HEALTH_PORT
    return pod


def _balance(cluster: Cluster, verb: str) -> None:
    cluster.lab.namespaces("bootstrap").run_checked(
        "iptables", "-w", "-t", "nat", verb, "PREROUTING", *BALANCED
    )


def _rights(plan: Plan) -> list[Json]:
    """Returns a role that allows the agents only to read leases."""
    api, metadata = (
        "rbac.authorization.k8s.io",
        {"name": agent_token_manifests.ACCOUNT, "namespace": "kube-system"},
    )
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "watch"]}
    subject = {"kind": "ServiceAccount", "name": agent_token_manifests.ACCOUNT, "namespace": plan.namespace}
    role = {"apiGroup": api, "kind": "Role", "name": agent_token_manifests.ACCOUNT}
    return [
        agent_token_manifests.account(plan),
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [subject],
        },
    ]


def _kubeconfig(cluster: Cluster) -> Json:
    """Returns the administrator's kubeconfig with the pod's token as its credential."""
    document = yaml.safe_load(cluster.lab.file("bootstrap", ADMIN_KUBECONFIG).read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://{cluster.lab.layout.bootstrap.address}:6443"
    document["users"][0]["user"] = {"tokenFile": f"{KUBECONFIG}/token"}
    metadata = {"name": "kubeconfig", "namespace": cluster.plan.namespace}
    data = {"kubeconfig": to_yaml(document).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _counting(found: Json) -> Json:
    """Returns the agents with lease counting and a token for it."""
    found = copy.deepcopy(found)
    found["metadata"] = {key: found["metadata"][key] for key in ("name", "namespace", "labels")}
    found.pop("status", None)
    spec = found["spec"]["template"]["spec"]
    spec["serviceAccountName"] = agent_token_manifests.ACCOUNT
    spec.pop("serviceAccount", None)
    container = spec["containers"][0]
    container["args"] += ["--count-server-leases=true", f"--kubeconfig={KUBECONFIG}/kubeconfig"]
    container["volumeMounts"].append({"name": "kubeconfig", "mountPath": KUBECONFIG, "readOnly": True})
    sources = [
        {"configMap": {"name": "kubeconfig"}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
    ]
    spec["volumes"].append({"name": "kubeconfig", "projected": {"sources": sources, "defaultMode": 0o440}})
    return found
