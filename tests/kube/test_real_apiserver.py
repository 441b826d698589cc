"""Token reviews, leases and webhooks through the tunnel with a real kube-apiserver."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from bootbridge.demo import environment as demo_environment
from bootbridge.demo.interrupts import Interrupts
from bootbridge.demo.network import DemoNamespaces, NetworkContext, namespaces_unavailable_reason
from bootbridge.demo.processes import DemoProcess, DemoProcesses
from bootbridge.demo.webhook import DENIAL
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError
from bootbridge.kube.kubeconfig import load_kubeconfig
from bootbridge.kube.labels import selector_of
from bootbridge.kube.lease_counter import LeaseCounter
from bootbridge.kube.lease_garbage_collector import LeaseGarbageCollector
from bootbridge.kube.lease_publisher import LeasePublisher
from bootbridge.kube.leases import Lease, format_time
from bootbridge.kube.objects import delete_object
from bootbridge.kube.token_review import TokenDenied, TokenReviewer
from bootbridge.trust.authority import Authority
from tests.kube.conftest import running, until
from tests.support import process_program
from tests.support.kubernetes import ControlPlane, Json
from tests.support.process_endpoints import HttpEndpoint
from tests.support.process_program import OURS
from tests.support.process_tunnels import fetch
from tests.support.token_mode import agent_token
from tests.support.tunnel_programs import Programs, Server

pytest_plugins = ["tests.support.kubernetes"]
pytestmark = pytest.mark.kubernetes

AUDIENCE = "system:konnectivity-server"
ACCOUNT = "konnectivity-agent"
LABELS = {"k8s-app": "konnectivity-server"}
HELLO = b"hello from the endpoint"
_numbers = count(1)


@pytest.fixture
def namespace(kubernetes: ControlPlane) -> str:
    """A namespace for one test, with the agents' service account."""
    name = kubernetes.namespace(f"test-{next(_numbers)}")
    kubernetes.service_account(name, ACCOUNT)
    return name


@pytest.fixture
async def client(kubernetes: ControlPlane) -> AsyncIterator[KubeClient]:
    client = KubeClient(load_kubeconfig(kubernetes.kubeconfig), qps=-1)
    yield client
    await client.aclose()


# --- tokens


def reviewer(client: KubeClient, namespace: str, audience: str = AUDIENCE) -> TokenReviewer:
    return TokenReviewer(client, namespace, ACCOUNT, audience, time.time)


async def verdict(reviewer: TokenReviewer, token: str) -> str:
    """Returns the reason of a denial; empty if the token is accepted."""
    try:
        await reviewer.authenticate([f"Bearer {token}"])
    except TokenDenied as denied:
        return denied.reason
    return ""


class TestTokenReview:
    async def test_a_real_token_is_accepted(
        self, kubernetes: ControlPlane, client: KubeClient, namespace: str
    ) -> None:
        token = kubernetes.token(namespace, ACCOUNT, AUDIENCE)
        assert await verdict(reviewer(client, namespace), token) == ""

    async def test_a_forged_token_is_refused(
        self, kubernetes: ControlPlane, client: KubeClient, namespace: str
    ) -> None:
        head, claims, signature = kubernetes.token(namespace, ACCOUNT, AUDIENCE).split(".")
        forged = f"{head}.{claims}.{signature[::-1]}"
        assert "lookup failed: " in await verdict(reviewer(client, namespace), forged)

    @pytest.mark.parametrize("audience", ["another-audience", ""])
    async def test_a_token_for_another_audience_is_refused(
        self, kubernetes: ControlPlane, client: KubeClient, namespace: str, audience: str
    ) -> None:
        """Every pod has a token for the default audience, which is that of the API server."""
        token = kubernetes.token(namespace, ACCOUNT, audience)
        assert "lookup failed: " in await verdict(reviewer(client, namespace), token)

    async def test_without_a_configured_audience_the_default_one_is_required(
        self, kubernetes: ControlPlane, client: KubeClient, namespace: str
    ) -> None:
        ours, other = (kubernetes.token(namespace, ACCOUNT, name) for name in ("", "another-audience"))
        assert await verdict(reviewer(client, namespace, audience=""), ours) == ""
        assert await verdict(reviewer(client, namespace, audience=""), other) != ""

    async def test_a_token_of_another_service_account_is_refused(
        self, kubernetes: ControlPlane, client: KubeClient, namespace: str
    ) -> None:
        token = kubernetes.token(namespace, "default", AUDIENCE)
        reason = await verdict(reviewer(client, namespace), token)
        assert f'from "default" service account. Expected "{ACCOUNT}"' in reason

    async def test_a_token_of_a_deleted_service_account_is_refused(
        self, kubernetes: ControlPlane, client: KubeClient, namespace: str
    ) -> None:
        """Its signature is still valid."""
        token = kubernetes.token(namespace, ACCOUNT, AUDIENCE)
        kubernetes.api.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}")
        reasons = [""]
        while not reasons[-1]:  # the API server caches service accounts
            assert len(reasons) < 200, "a deleted account's token is still accepted"
            reasons.append(await verdict(reviewer(client, namespace), token))
            await asyncio.sleep(0.05)
        assert "lookup failed: " in reasons[-1]

    async def test_a_server_without_permission_to_review_accepts_no_agent(
        self, kubernetes: ControlPlane, namespace: str
    ) -> None:
        """The agent may retry, and the error names the forbidden resource."""
        client = KubeClient(load_kubeconfig(kubernetes.kubeconfig_for("without-permission")), qps=-1)
        subject = f"system:serviceaccount:{namespace}:{ACCOUNT}"
        token = agent_token("unknown", sub=subject, aud=[AUDIENCE])
        with pytest.raises(TokenDenied, match="tokenreviews") as denied:
            await reviewer(client, namespace).authenticate([f"Bearer {token}"])
        await client.aclose()
        assert denied.value.transient


# --- leases


def leases(kubernetes: ControlPlane, namespace: str) -> dict[str, Lease]:
    items = kubernetes.api.get(lease_path(namespace))["items"]
    return {lease.name: lease for lease in map(Lease.from_json, items)}


def lease_path(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def put_lease(kubernetes: ControlPlane, namespace: str, name: str, *, age: float = 0.0) -> Lease:
    spec = {
        "holderIdentity": name,
        "leaseDurationSeconds": 30,
        "renewTime": format_time(time.time() - age),
    }
    body = {"metadata": {"name": name, "labels": LABELS}, "spec": spec}
    return Lease.from_json(kubernetes.api.create(lease_path(namespace), body))


def publisher(client: KubeClient, namespace: str) -> LeasePublisher:
    return LeasePublisher(client, namespace, "one", LABELS, clock=time.time, rng=random.Random(1))


class TestLeases:
    async def test_a_lease_is_published_renewed_and_withdrawn(
        self, kubernetes: ControlPlane, client: KubeClient, namespace: str
    ) -> None:
        ours = publisher(client, namespace)
        await ours.publish()
        first = leases(kubernetes, namespace)[ours.ref.name]
        await ours.publish()
        second = leases(kubernetes, namespace)[ours.ref.name]
        assert (first.holder, first.labels, first.duration) == ("one", LABELS, 30)
        assert first.renewed is not None
        assert second.renewed is not None
        assert first.renewed < second.renewed <= time.time()
        await ours.withdraw()
        assert leases(kubernetes, namespace) == {}

    async def test_a_lease_deleted_or_changed_by_others_is_published_again(
        self, kubernetes: ControlPlane, client: KubeClient, namespace: str
    ) -> None:
        ours, other = publisher(client, namespace), publisher(client, namespace)
        await ours.publish()
        await other.publish()  # a new version: ours is now refused with 409 and read again
        await ours.publish()
        kubernetes.api.delete(f"{lease_path(namespace)}/{ours.ref.name}")
        await ours.publish()
        assert leases(kubernetes, namespace)[ours.ref.name].valid(time.time())

    async def test_valid_leases_are_counted(
        self, kubernetes: ControlPlane, client: KubeClient, namespace: str
    ) -> None:
        """One list, then a watch; expired leases do not count."""
        calls: list[tuple[str, int]] = []
        counter = LeaseCounter(
            client,
            namespace,
            selector_of(LABELS),
            clock=time.time,
            rng=random.Random(1),
            observe=lambda verb, status, reason, seconds: calls.append((verb, status)),
        )
        put_lease(kubernetes, namespace, "expired", age=60)
        async with running(counter.run()):
            for number in range(3):
                put_lease(kubernetes, namespace, f"server-{number}")
            await until(lambda: counter.count == 3)
            kubernetes.api.delete(f"{lease_path(namespace)}/server-2")
            await until(lambda: counter.count == 2)
        assert calls == [("list", 200), ("watch", 200)]

    async def test_only_expired_leases_are_collected(
        self, kubernetes: ControlPlane, client: KubeClient, namespace: str
    ) -> None:
        for name, age in (("expired", 60.0), ("long-expired", 6000.0), ("valid", 0.0)):
            put_lease(kubernetes, namespace, name, age=age)
        deleted: list[None] = []
        collector = LeaseGarbageCollector(
            client,
            namespace,
            selector_of(LABELS),
            clock=time.time,
            on_deleted=lambda: deleted.append(None),
        )
        await collector.collect()
        assert set(leases(kubernetes, namespace)) == {"valid"}
        assert len(deleted) == 2

    async def test_a_lease_renewed_after_the_list_is_not_deleted(
        self, kubernetes: ControlPlane, client: KubeClient, namespace: str
    ) -> None:
        """The deletion has the resource version as its precondition."""
        ours = publisher(client, namespace)
        await ours.publish()
        seen = leases(kubernetes, namespace)[ours.ref.name]
        await ours.publish()
        with pytest.raises(KubeError) as refused:
            await client.send(delete_object(ours.ref, resource_version=seen.resource_version))
        assert refused.value.status == 409
        assert set(leases(kubernetes, namespace)) == {ours.ref.name}


# --- server and agent processes with least privilege


def grant(kubernetes: ControlPlane, namespace: str, account: str, verbs: list[str]) -> Path:
    """Creates a service account with these verbs on leases and returns its kubeconfig."""
    kubernetes.service_account(namespace, account)
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    rbac, name = "/apis/rbac.authorization.k8s.io/v1", f"{namespace}-{account}"
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs}
    kubernetes.api.create(
        f"{rbac}/namespaces/{namespace}/roles", {"metadata": {"name": name}, "rules": [rule]}
    )
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": role}
    kubernetes.api.create(f"{rbac}/namespaces/{namespace}/rolebindings", binding)
    return kubernetes.kubeconfig_with_token(name, kubernetes.token(namespace, account))


@pytest.fixture
def reviewing_server(programs: Programs, kubernetes: ControlPlane, namespace: str) -> Server:
    """A proxy-server that reviews tokens and publishes its lease, with its own service account."""
    verbs = ["get", "list", "watch", "create", "update", "delete"]
    kubeconfig = grant(kubernetes, namespace, "konnectivity-server", verbs)
    delegator = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "system:auth-delegator",
    }
    subject = {"kind": "ServiceAccount", "name": "konnectivity-server", "namespace": namespace}
    kubernetes.api.create(
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {"metadata": {"name": f"{namespace}-reviews"}, "subjects": [subject], "roleRef": delegator},
    )
    return programs.server(
        flags={
            "cluster-ca-cert": None,
            "agent-namespace": namespace,
            "agent-service-account": ACCOUNT,
            "authentication-audience": AUDIENCE,
            "kubeconfig": kubeconfig,
            "enable-lease-controller": True,
            "lease-namespace": namespace,
            "server-id": "one",
        }
    )


def token_flags(programs: Programs, token: str) -> dict[str, object]:
    path = programs.folder / "token"
    path.write_text(token)
    return {"agent-cert": None, "agent-key": None, "service-account-token-path": path}


def test_an_agent_with_a_service_account_token_forwards_traffic(
    programs: Programs, kubernetes: ControlPlane, namespace: str, reviewing_server: Server, web: HttpEndpoint
) -> None:
    """The lease is published, counted, and deleted at shutdown, with RBAC enabled."""
    token = kubernetes.token(namespace, ACCOUNT, AUDIENCE)
    counting = {
        "count-server-leases": True,
        "lease-namespace": namespace,
        "kubeconfig": grant(kubernetes, namespace, ACCOUNT, ["get", "list", "watch"]),
    }
    agent = programs.agent(reviewing_server, flags=token_flags(programs, token) | counting)
    reviewing_server.wait_until_ready()
    assert fetch(reviewing_server, web.address) == HELLO
    assert reviewing_server.metric("token_reviews_total", result="authenticated") == 1
    assert set(leases(kubernetes, namespace)) == {"konnectivity-proxy-server-one"}
    put_lease(kubernetes, namespace, "konnectivity-proxy-server-two")
    process_program.until(lambda: agent.metric("known_server_count") == 2, "the agent counts two servers")
    reviewing_server.terminate()
    assert reviewing_server.wait() == 0
    assert set(leases(kubernetes, namespace)) == {"konnectivity-proxy-server-two"}


def test_an_agent_with_a_token_for_another_audience_is_refused(
    programs: Programs, kubernetes: ControlPlane, namespace: str, reviewing_server: Server
) -> None:
    """Both processes log the reason, without the token."""
    token = kubernetes.token(namespace, ACCOUNT)
    agent = programs.agent(reviewing_server, flags=token_flags(programs, token))
    reviewing_server.wait_for_log("Failed to validate authentication token")
    agent.wait_for_log("Failed to validate authentication token")
    assert reviewing_server.metric("ready_backend_connections") == 0
    assert token not in reviewing_server.log + agent.log


# --- webhooks behind the tunnel

# In CI these tests must run.
needs_namespaces = pytest.mark.skipif(
    bool(namespaces_unavailable_reason()) and os.environ.get("CI") != "true",
    reason=f"network namespaces: {namespaces_unavailable_reason()}",
)
WEBHOOK_SECONDS = 10
FAMILIES = {"IPv4": demo_environment.POD_IPV4, "IPv6": demo_environment.POD_IPV6}
SERVICES = {"IPv4": "webhook-ipv4", "IPv6": "webhook-ipv6"}
PROTOCOLS = {"GRPC": "grpc", "HTTPConnect": "http-connect"}


class Bootstrap:
    """A control plane without a route to the pods, a node that has one, and a webhook in a pod.

    The kube-apiserver and our proxy-server share a unix socket; our proxy-agent runs on the node.
    """

    def __init__(self, folder: Path, namespaces: DemoNamespaces) -> None:
        self.folder = folder
        self.layout = demo_environment.in_namespaces(namespaces, ipv6=True)
        self.control_plane = ControlPlane(folder, self.layout.control_plane)
        self._programs = DemoProcesses(folder, Interrupts())
        self._agents: list[DemoProcess] = []
        self._tunnel_ca, self._webhook_ca = Authority.create("tunnel"), Authority.create("webhook")
        self._write_certificates()
        self._start_webhook()

    def start(self, protocol: str) -> None:
        """Starts the kube-apiserver; without a protocol it has no egress proxy."""
        routing: dict[str, object] = {"enable_aggregator_routing": True}
        if protocol:
            self._start_server(PROTOCOLS[protocol])
            routing["egress_selector_config_file"] = self._egress_selector(protocol)
        self.control_plane.start(**routing)
        self._publish_webhook()

    def start_agent(self) -> None:
        node = self.layout.nodes[0]
        agent = self._start(
            "proxy-agent",
            node.network,
            f"--proxy-server-host={node.server_host}",
            f"--proxy-server-port={self.layout.agent_port}",
            f"--ca-cert={self.folder}/tunnel-ca.crt",
            f"--agent-cert={self.folder}/agent.crt",
            f"--agent-key={self.folder}/agent.key",
            "--sync-interval=100ms",
            "--sync-interval-cap=500ms",
        )
        self.control_plane.until(self.has_agent, "the agent is connected")
        self._agents.append(agent)

    def stop_agents(self) -> None:
        """Kills the agents with SIGKILL."""
        while self._agents:
            self._agents.pop().kill()
        self.control_plane.until(lambda: not self.has_agent(), "the agent is disconnected")

    def guard(self, family: str) -> str:
        """Creates a namespace whose pods are validated by the webhook, over this IP family."""
        name = self.control_plane.namespace(f"guarded-{next(_numbers)}")
        hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        configuration = _webhook_configuration(name, SERVICES[family], self._webhook_ca.cert_pem)
        self.control_plane.api.create(hooks, configuration)
        # The kube-apiserver loads the configuration by a watch; until then it does not call the webhook.
        self.control_plane.until(
            lambda: self.create_pod(name, "probe", deny="true", query="?dryRun=All")[0] != 201,
            "the webhook is called",
        )
        return name

    def create_pod(self, namespace: str, name: str, *, deny: str, query: str = "") -> tuple[int, str]:
        """Returns status and message of the response."""
        pod = {
            "metadata": {"name": name, "labels": {"deny": deny}},
            "spec": {
                "containers": [{"name": "pause", "image": "pause"}],
                "automountServiceAccountToken": False,
            },
        }
        status, answer = self.control_plane.api.call("POST", f"{_pods(namespace)}{query}", pod)
        return status, str(answer.get("message", ""))

    def pods(self, namespace: str) -> list[str]:
        items = self.control_plane.api.get(_pods(namespace))["items"]
        return [pod["metadata"]["name"] for pod in items]

    def dials(self, protocol: str) -> float:
        """Returns the number of connections through the tunnel, from the metrics of the kube-apiserver."""
        sample = re.compile(
            r"^apiserver_egress_dialer_dial_duration_seconds_count"
            rf'{{protocol="{PROTOCOLS[protocol].replace("-", "_")}",transport="uds"}} (\S+)$',
            re.MULTILINE,
        )
        return sum(map(float, sample.findall(self.control_plane.api.text("/metrics"))))

    def has_agent(self) -> bool:
        try:
            return self._server_health("/readyz") == 200
        except OSError:
            return False

    def close(self) -> None:
        self.control_plane.close()
        for program in self._programs.running():
            program.kill()

    def _server_health(self, path: str) -> int:
        place, port = self.layout.control_plane, self.layout.health_port
        with place.connect("127.0.0.1", port, timeout=5) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            return int(connection.makefile("rb").readline().split()[1])

    def _start(self, name: str, place: NetworkContext, *flags: str) -> DemoProcess:
        return self._programs.start(name, place, [str(OURS / name), *flags])

    def _start_server(self, mode: str) -> None:
        self._start(
            "proxy-server",
            self.layout.control_plane,
            f"--mode={mode}",
            f"--uds-name={self.folder}/proxy.sock",
            "--server-port=0",
            f"--agent-port={self.layout.agent_port}",
            f"--health-port={self.layout.health_port}",
            f"--admin-port={self.layout.admin_port}",
            f"--cluster-ca-cert={self.folder}/tunnel-ca.crt",
            f"--cluster-cert={self.folder}/proxy-server.crt",
            f"--cluster-key={self.folder}/proxy-server.key",
        )

    def _start_webhook(self) -> None:
        listen = [f"--listen={address}" for address in self.layout.pod_addresses]
        certificate = [f"--cert={self.folder}/webhook.crt", f"--key={self.folder}/webhook.key"]
        module = [sys.executable, "-P", "-m", "bootbridge.demo.webhook"]
        argv = [*module, *listen, f"--port={self.layout.pod_port}", *certificate]
        self._programs.start("webhook", self.layout.pod, argv)
        process_program.until(self._webhook_listens, "the webhook listens")

    def _publish_webhook(self) -> None:
        """Creates services without a selector, with the pod as their endpoint."""
        api, hooks = self.control_plane.api, self.control_plane.namespace("hooks")
        for family in FAMILIES:
            api.create(f"/api/v1/namespaces/{hooks}/services", _service(family))
            slices = f"/apis/discovery.k8s.io/v1/namespaces/{hooks}/endpointslices"
            api.create(slices, _endpoint_slice(family, self.layout.pod_port))

    def _webhook_listens(self) -> bool:
        try:
            for address in self.layout.pod_addresses:
                self.layout.nodes[0].network.connect(address, self.layout.pod_port, timeout=5).close()
        except OSError:
            return False
        return True

    def _write_certificates(self) -> None:
        self._tunnel_ca.write(self.folder, "tunnel-ca")
        self._tunnel_ca.issue_server(self.layout.server_hosts).write(self.folder, "proxy-server")
        self._tunnel_ca.issue_client("agent").write(self.folder, "agent")
        names = [f"{service}.hooks.svc" for service in SERVICES.values()]
        self._webhook_ca.issue_server(names).write(self.folder, "webhook")

    def _egress_selector(self, protocol: str) -> Path:
        uds = {"uds": {"udsName": f"{self.folder}/proxy.sock"}}
        connection = {"proxyProtocol": protocol, "transport": uds}
        document = {
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [{"name": "cluster", "connection": connection}],
        }
        path = self.folder / "egress-selector.json"
        path.write_text(json.dumps(document))
        return path


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def _service(family: str) -> Json:
    port = {"name": "https", "port": 443, "targetPort": 8443}
    spec = {"ipFamilies": [family], "ipFamilyPolicy": "SingleStack", "ports": [port]}
    return {"metadata": {"name": SERVICES[family]}, "spec": spec}


def _endpoint_slice(family: str, port: int) -> Json:
    name = SERVICES[family]
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": family,
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [FAMILIES[family]], "conditions": {"ready": True}}],
    }


def _webhook_configuration(guarded: str, service_name: str, ca: bytes) -> Json:
    service = {"namespace": "hooks", "name": service_name, "path": "/validate"}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    webhook = {
        "name": "label-guard.example.com",
        "clientConfig": {"service": service, "caBundle": base64.b64encode(ca).decode()},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": guarded}},
        "failurePolicy": "Fail",
        "timeoutSeconds": WEBHOOK_SECONDS,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {"metadata": {"name": guarded}, "webhooks": [webhook]}


@pytest.fixture(scope="module")
def bootstrap_without_tunnel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bootstrap]:
    yield from _bootstrap(tmp_path_factory, "")


@pytest.fixture(scope="module", params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory, protocol: str) -> Iterator[Bootstrap]:
    """A kube-apiserver that uses this protocol to our server."""
    yield from _bootstrap(tmp_path_factory, protocol)


@pytest.fixture
def agent(bootstrap: Bootstrap) -> Iterator[None]:
    """Runs an agent during one test."""
    bootstrap.start_agent()
    yield
    bootstrap.stop_agents()


def _bootstrap(folders: pytest.TempPathFactory, protocol: str) -> Iterator[Bootstrap]:
    namespaces = DemoNamespaces(f"bb-kube-{os.getpid()}-{next(_numbers)}")
    try:
        with closing(Bootstrap(folders.mktemp("bootstrap"), namespaces)) as bootstrap:
            bootstrap.start(protocol)
            yield bootstrap
    finally:
        namespaces.remove()


@needs_namespaces
@pytest.mark.parametrize("family", FAMILIES)
def test_without_the_tunnel_an_unreachable_webhook_blocks_pods(
    bootstrap_without_tunnel: Bootstrap, family: str
) -> None:
    """Its failurePolicy is Fail, and the kube-apiserver has no route to its pod."""
    guarded = bootstrap_without_tunnel.guard(family)
    status, message = bootstrap_without_tunnel.create_pod(guarded, "allowed", deny="false")
    assert status == 500
    assert "failed calling webhook" in message
    assert "network is unreachable" in message
    assert bootstrap_without_tunnel.pods(guarded) == []


@needs_namespaces
@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("family", FAMILIES)
def test_through_the_tunnel_the_webhook_allows_and_denies_pods(
    bootstrap: Bootstrap, protocol: str, family: str
) -> None:
    before = bootstrap.dials(protocol)
    guarded = bootstrap.guard(family)
    denied = bootstrap.create_pod(guarded, "denied", deny="true")
    allowed = bootstrap.create_pod(guarded, "allowed", deny="false")
    assert (denied[0], DENIAL in denied[1]) == (403, True), denied
    assert allowed[0] == 201, allowed
    assert bootstrap.pods(guarded) == ["allowed"]
    assert bootstrap.dials(protocol) > before


@needs_namespaces
@pytest.mark.usefixtures("agent")
def test_without_an_agent_no_pod_is_created(bootstrap: Bootstrap) -> None:
    """The request fails before the timeout of the webhook, and succeeds once an agent is connected again."""
    guarded = bootstrap.guard("IPv4")
    assert bootstrap.create_pod(guarded, "first", deny="false")[0] == 201
    bootstrap.stop_agents()
    began = time.monotonic()
    status, message = bootstrap.create_pod(guarded, "second", deny="false")
    took = time.monotonic() - began
    assert (status, "failed calling webhook" in message) == (500, True), message
    assert took < WEBHOOK_SECONDS
    assert bootstrap.pods(guarded) == ["first"]
    bootstrap.start_agent()
    status, message = bootstrap.create_pod(guarded, "third", deny="false")
    assert status == 201, message
