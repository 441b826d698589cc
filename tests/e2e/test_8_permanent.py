"""Permanent servers on two control planes, by `render --permanent`, and agents of the chart, by helm."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bootbridge.bootstrap.plan.paths import PERMANENT_PATHS
from bootbridge.bootstrap.plan.permanent import PERMANENT_PORTS, PermanentPlan
from bootbridge.common.files import Asset
from bootbridge.demo.webhook import DENIAL
from bootbridge.lab import workloads
from bootbridge.lab.credentials import ADMIN_KUBECONFIG, APISERVER_PORT
from bootbridge.lab.images import TUNNEL_IMAGE
from bootbridge.lab.node_runtime import CONTAINERD_SOCKET
from bootbridge.trust.authority import Authority
from tests.e2e.migration.step_results import CUT, kind_of
from tests.lab.admission_load import LONG_WEBHOOK_SECONDS, admission_load, longer_webhook_timeout
from tests.support import helm
from tests.support.lab import GUARDED, WAIT_SECONDS, Cluster, Done, Json, missing
from tests.support.not_run import not_run

pytestmark = pytest.mark.e2e

# The bootstrap node stands for a control plane that has no route to pods, node1 for one that has.
CONTROL_PLANES = ("bootstrap", "node1")
NAMESPACE, RELEASE, DAEMON_SET = "bootbridge", "bootbridge", "bootbridge-agent"
NEXT_IMAGE = f"{TUNNEL_IMAGE}-next"
APISERVER_POD = PERMANENT_PATHS.apiserver_pod


class Installation:
    """The steps of the rendered README, in their order."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.addresses = [str(cluster.lab.layout.node(name).address) for name in CONTROL_PLANES]

    def render(self, node: str) -> Path:
        """Runs `bootbridge render --permanent` with the manifest of a node's kube-apiserver."""
        manifest = self.folder / f"{node}-kube-apiserver.yaml"
        manifest.write_bytes(self.cluster.lab.file(node, APISERVER_POD).read_bytes())
        networks = self.cluster.lab.layout.networks
        output = self.folder / node
        done = self.cluster.bootbridge(
            *("render", "--permanent", f"--output={output}", f"--image={TUNNEL_IMAGE}"),
            *(f"--server-host={address}" for address in self.addresses),
            *(f"--machine-network={network}" for network in networks.machine),
            *(f"--cluster-network={network.cidr},{network.host_prefix}" for network in networks.cluster),
            *(f"--service-network={network}" for network in networks.service),
            f"--apiserver-manifest={manifest}",
        )
        assert done.returncode == 0, done.stderr
        checked = self.cluster.bootbridge("check", str(output))
        assert checked.returncode == 0, checked.stdout
        return output

    def start_server(self, node: str, rendered: Path, authority: Authority) -> None:
        certificate = authority.issue_server(self.addresses)
        home = self.cluster.lab.layout.node(node)
        paths = PERMANENT_PATHS
        access = self.cluster.credentials.kubeconfig(home, PermanentPlan.server_user)
        manifest = paths.permanent_server_pod
        self.cluster.lab.write(
            node,
            {
                paths.ca_cert: Asset(authority.cert_pem),
                paths.server_cert: Asset(certificate.cert_pem),
                paths.server_key: Asset(certificate.key_pem, 0o600),
                paths.server_kubeconfig: access,
                paths.egress_config: Asset((rendered / paths.egress_config.lstrip("/")).read_bytes()),
                manifest: Asset((rendered / manifest.lstrip("/")).read_bytes(), 0o600),
            },
        )

    def create_secret(self, authority: Authority) -> None:
        agent = authority.issue_client("agents")
        for name, data in (
            ("ca.crt", authority.cert_pem),
            ("tls.crt", agent.cert_pem),
            ("tls.key", agent.key_pem),
        ):
            (self.folder / name).write_bytes(data)
        files = [f"--from-file={self.folder / name}" for name in ("ca.crt", "tls.crt", "tls.key")]
        self.cluster.kubectl("create", "secret", "generic", "bootbridge-agent", *files, f"-n={NAMESPACE}")

    def helm(self, *words: str, check: bool = True) -> Done:
        """Runs helm on the bootstrap node."""
        settings = (f"KUBECONFIG={ADMIN_KUBECONFIG}", "HOME=/run/helm")
        argv = ["env", *settings, str(helm.HELM), *words, f"--namespace={NAMESPACE}"]
        command = self.cluster.lab.namespaces("bootstrap").command(argv)
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS)
        assert done.returncode == 0 or not check, done.stderr
        return done

    def chart(self, verb: str, **values: Any) -> Done:
        """Runs `helm install` or `upgrade` with the rendered values and these, and waits for the agents."""
        file = self.folder / f"{verb}.json"
        # The lab has no kube-proxy, so the Service `kubernetes` is not reachable.
        values = {"kubeApiServer": {"host": self.addresses[0], "port": APISERVER_PORT}, **values}
        file.write_text(json.dumps(values))
        rendered = self.folder / CONTROL_PLANES[0] / "agents-values.yaml"
        return self.helm(
            *(verb, RELEASE, str(helm.CHART), f"--values={rendered}", f"--values={file}"),
            *("--wait", f"--timeout={WAIT_SECONDS:.0f}s"),
        )

    def use_tunnel(self, node: str, rendered: Path) -> None:
        """Gives a kube-apiserver the rendered manifest, and waits until it is ready with it."""
        manifest = (rendered / "kube-apiserver.yaml").read_bytes()
        self.cluster.lab.write(node, {APISERVER_POD: Asset(manifest, 0o600)})
        running = self.cluster.lab.namespaces(node)

        def restarted() -> bool:
            lines = running.run_checked("sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null; true")
            return PERMANENT_PATHS.egress_config.encode() in lines and self.cluster.lab.apiserver_is_ready(
                self.cluster.components, node
            )

        self.cluster.until(restarted, f"the kube-apiserver of {node} uses the egress selector")

    # --- what is observed

    def server_metric(self, node: str, name: str) -> float:
        """Returns a metric of a node's server, summed over its labels."""
        url = f"http://127.0.0.1:{PERMANENT_PORTS.server_health}/metrics"
        page = self.cluster.get_on(node, url)
        full = f"konnectivity_network_proxy_server_{name}"
        found = [line for line in page.splitlines() if line.startswith((f"{full} ", f"{full}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def agents_of(self, node: str) -> float:
        return self.server_metric(node, "ready_backend_connections")

    def daemon_set(self) -> Json:
        return self.cluster.get("daemonset", DAEMON_SET, f"--namespace={NAMESPACE}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A lab with webhooks, a kube-apiserver on node1 beside the bootstrap one, and no tunnel."""
    if lack := missing() or helm.missing():
        not_run(lack)
    with Cluster.up(tmp_path_factory.mktemp("lab")) as cluster:
        cluster.start_permanent_apiserver("node1")
        cluster.start_workloads()
        for node in cluster.lab.layout.cluster_nodes:
            words = ("ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io", "images", "tag")
            cluster.lab.namespaces(node.name).run_checked(*words, TUNNEL_IMAGE, NEXT_IMAGE)
        yield cluster


@pytest.fixture(scope="module")
def objects_before(cluster: Cluster) -> set[str]:
    return all_objects(cluster)


@pytest.fixture(scope="module")
def installation(
    cluster: Cluster, objects_before: set[str], tmp_path_factory: pytest.TempPathFactory
) -> Installation:
    """Servers on both control planes, agents of the chart, and both kube-apiservers behind the tunnel."""
    installation = Installation(cluster, tmp_path_factory.mktemp("permanent"))
    authority = Authority.create("tunnel")
    rendered = {node: installation.render(node) for node in CONTROL_PLANES}
    cluster.kubectl("apply", "-f", str(rendered["bootstrap"] / "rbac.yaml"))
    for node in CONTROL_PLANES:
        installation.start_server(node, rendered[node], authority)
    cluster.apply(workloads.namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"}))
    installation.create_secret(authority)
    installation.chart("install")
    for node in CONTROL_PLANES:
        installation.use_tunnel(node, rendered[node])
    return installation


def all_objects(cluster: Cluster) -> set[str]:
    """Returns the objects of all kinds that a chart can create, without what changes by itself."""
    kinds = (
        "daemonsets,deployments,services,serviceaccounts,secrets,configmaps,roles,rolebindings,"
        "poddisruptionbudgets,networkpolicies,clusterroles,clusterrolebindings,priorityclasses"
    )
    found = cluster.kubectl("get", kinds, "-A", "-o", "json").stdout
    return {
        f"{each['kind']} {each['metadata'].get('namespace', '')}/{each['metadata']['name']}"
        for each in json.loads(found)["items"]
    }


def test_every_agent_is_connected_to_every_server(installation: Installation) -> None:
    """Found by the servers' leases; each proves its node, so that its node's pods are dialled through it."""
    cluster = installation.cluster
    nodes = len(cluster.lab.layout.cluster_nodes)
    for node in CONTROL_PLANES:
        cluster.until(lambda node=node: installation.agents_of(node) == nodes, f"all agents of {node}")
        status = json.loads(cluster.get_on(node, f"http://127.0.0.1:{PERMANENT_PORTS.server_admin}/status"))
        assert {agent["node"] for agent in status["agents"]} == {"node1", "node2"}
        assert all(not agent["ignoredIdentifiers"] for agent in status["agents"])


@pytest.mark.parametrize("node", CONTROL_PLANES)
def test_a_webhook_and_logs_are_reached_through_the_tunnel(installation: Installation, node: str) -> None:
    """On the bootstrap node there is no other way; on node1 the server counts the dials."""
    cluster = installation.cluster
    before = installation.server_metric(node, "dial_duration_seconds_count")

    def denied() -> bool:
        pod = workloads.pod("denied", GUARDED, {"deny": "true"})
        return DENIAL in cluster.create(pod, "--dry-run=server", node=node).stderr

    cluster.until(denied, "the webhook decides")
    for pod in cluster.extension_pods().values():
        cluster.kubectl("logs", pod, f"--namespace={workloads.NAMESPACE}", "--tail=1", node=node)
    assert installation.server_metric(node, "dial_duration_seconds_count") >= before + 2


def test_an_upgrade_replaces_all_agents_and_loses_no_dial(installation: Installation) -> None:
    """Another image and another value: new agents are connected before old ones drain.

    At the end of its drain an agent closes its connections between two calls. A call that is sent at that
    very moment is cut, as with any server that closes a connection which its client wants to use again.
    """
    cluster = installation.cluster
    pods = ("pods", f"--namespace={NAMESPACE}", "-o", "name")
    old = set(cluster.kubectl("get", *pods).stdout.split())
    failed_before = sum(installation.server_metric(node, "dial_failure_count") for node in CONTROL_PLANES)
    with longer_webhook_timeout(cluster), admission_load(cluster, LONG_WEBHOOK_SECONDS) as calls:
        repository, _, tag = NEXT_IMAGE.rpartition(":")
        installation.chart(
            "upgrade",
            image={"repository": repository, "tag": tag},
            drainSeconds=5,
            networkPolicy={"enabled": True},
            metrics={"service": {"enabled": True}},
        )
        cluster.rolled_out(NAMESPACE, DAEMON_SET)
        cluster.until(lambda: not old & set(cluster.kubectl("get", *pods).stdout.split()), "old agents end")
        since = calls.results[0].at
    container = installation.daemon_set()["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == NEXT_IMAGE
    assert "--drain-timeout=5s" in container["args"]
    kinds = ("PodDisruptionBudget", "NetworkPolicy", "Service")
    assert {f"{kind} {NAMESPACE}/{DAEMON_SET}" for kind in kinds} <= all_objects(cluster)
    failed = sum(installation.server_metric(node, "dial_failure_count") for node in CONTROL_PLANES)
    assert failed == failed_before
    failed_calls = calls.failed(since)
    assert {kind_of(each.message) for each in failed_calls} <= {CUT}, failed_calls
    assert len(failed_calls) <= len(old), failed_calls


def test_a_wrong_value_changes_nothing(installation: Installation) -> None:
    before = installation.daemon_set()["metadata"]["generation"]
    words = ("upgrade", RELEASE, str(helm.CHART), "--reuse-values", "--set", "servers.hosts={a:1}")
    done = installation.helm(*words, check=False)
    assert 'servers.hosts: "a:1" contains a port (set servers.port)' in done.stderr
    assert installation.daemon_set()["metadata"]["generation"] == before


def test_uninstall_leaves_nothing(installation: Installation, objects_before: set[str]) -> None:
    """Of all kinds that the chart has; the servers, their roles and the Secret are the operator's."""
    cluster = installation.cluster
    installation.helm("uninstall", RELEASE, "--wait", f"--timeout={WAIT_SECONDS:.0f}s")
    ours = {
        f"Secret {NAMESPACE}/bootbridge-agent",
        f"ServiceAccount {NAMESPACE}/default",
        f"ConfigMap {NAMESPACE}/kube-root-ca.crt",
        "Role kube-system/bootbridge-server-leases",
        "RoleBinding kube-system/bootbridge-server-leases",
    }
    left = all_objects(cluster) - objects_before
    assert {each for each in left if "/load-" not in each} == ours
    remaining = ("pods", f"--namespace={NAMESPACE}", "-o", "name")
    cluster.until(lambda: not cluster.kubectl("get", *remaining).stdout, "the agents have ended")
    for node in CONTROL_PLANES:
        cluster.until(lambda node=node: installation.agents_of(node) == 0, f"{node} has no agent")
