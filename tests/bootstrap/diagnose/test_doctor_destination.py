"""`bootbridge doctor` beyond the agents: webhooks found by name, dialled through the tunnel, and judged."""

from __future__ import annotations

import base64
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from bootbridge.bootstrap.diagnose.check.result import CheckResult
from bootbridge.bootstrap.diagnose.doctor import DiagnosisContext, destination, tunnel
from bootbridge.bootstrap.diagnose.doctor.targets import Destination
from bootbridge.bootstrap.diagnose.doctor.tunnel import NoConnectionError
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.plan.plan import Plan, Protocol
from bootbridge.common.host import Host
from bootbridge.trust.authority import Authority, Certificate
from tests.bootstrap.diagnose.doctor_node import LaidNode, laid_node
from tests.bootstrap.diagnose.test_doctor import broken
from tests.support.process_endpoints import Endpoint
from tests.support.process_program import PEERS, Program, free_port, until

NAME = "guard.example.com"
AUTHORITY = Authority.create("webhook-signer")


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaidNode]:
    with laid_node(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def node(laid: LaidNode) -> Iterator[LaidNode]:
    held = dict(laid.api.objects)
    yield laid
    for key in set(laid.api.objects) - set(held):
        del laid.api.objects[key]


@contextmanager
def webhook(folder: Path, certificate: Certificate) -> Iterator[int]:
    """A TLS server, as a webhook's pod is one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate.write(folder, "webhook"))

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as speaking:
            speaking.recv(1)

    endpoint = Endpoint(serve)
    yield endpoint.port
    endpoint.close()


def register(node: LaidNode, port: int, *, ready: bool = True, ca: bytes = AUTHORITY.cert_pem) -> None:
    """A webhook configuration, its service, and the pod behind it."""
    service = {"namespace": "guard", "name": "guard-service", "port": 443}
    client = {"service": service, "caBundle": base64.b64encode(ca).decode()}
    node.put(
        "validatingwebhookconfigurations", "", "guard", webhooks=[{"name": NAME, "clientConfig": client}]
    )
    ports = [{"name": "https", "port": 443, "targetPort": 8443}]
    node.put("services", "guard", "guard-service", spec={"selector": {"app": "guard"}, "ports": ports})
    endpoint = {
        "addresses": ["127.0.0.1"],
        "conditions": {"ready": ready},
        "targetRef": {"kind": "Pod", "name": "guard-0"},
    }
    node.put(
        "endpointslices",
        "guard",
        "guard-service-x",
        metadata={"labels": {"kubernetes.io/service-name": "guard-service"}},
        ports=[{"name": "https", "port": port}],
        endpoints=[endpoint],
    )
    metadata = {"labels": {"app": "guard"}, "annotations": {"kubernetes.io/config.mirror": "1"}}
    status = {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "conditions": [{"type": "Ready", "status": str(ready)}],
    }
    node.put("pods", "guard", "guard-0", metadata=metadata, spec={}, status=status)


def good() -> Certificate:
    return AUTHORITY.issue_server(["guard-service.guard.svc"])


@pytest.mark.parametrize("name", [NAME, "guard"])
def test_a_webhook_that_works_is_reached_through_the_tunnel(
    node: LaidNode, tmp_path: Path, name: str
) -> None:
    """By its own name or by that of its configuration; TLS is spoken as the kube-apiserver speaks it."""
    with webhook(tmp_path, good()) as port:
        register(node, port)
        document = node.doctor("--webhook", name)
    assert {step["verdict"] for step in document["steps"]} == {"ok"}, document
    assert "good for guard-service.guard.svc" in document["steps"][-1]["evidence"]


@pytest.mark.parametrize("name", ["v1.guard.example.com", "guards.example.com"])
def test_aggregated_apis_and_conversions_are_found_too(node: LaidNode, tmp_path: Path, name: str) -> None:
    """The kube-apiserver calls them the same context."""
    with webhook(tmp_path, good()) as port:
        register(node, port)
        held = node.api.objects[("validatingwebhookconfigurations", "", "guard")]
        client = held["webhooks"][0]["clientConfig"]
        node.put("apiservices", "", "v1.guard.example.com", spec=client)
        conversion = {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": client}}}
        node.put("customresourcedefinitions", "", "guards.example.com", spec=conversion)
        document = node.doctor("--webhook", name)
    assert {step["verdict"] for step in document["steps"]} == {"ok"}, document


def test_a_webhook_by_url_does_not_take_this_way(node: LaidNode) -> None:
    """It is said, and nothing is called broken for it."""
    hook = {"name": "by-url", "clientConfig": {"url": "https://example.com/"}}
    node.put("mutatingwebhookconfigurations", "", "by-url", webhooks=[hook])
    document = node.doctor("--webhook", "by-url")
    assert document["works"]
    assert "called by its URL" in str(document["steps"])


def test_a_configuration_with_several_services_has_to_be_named_closer(node: LaidNode) -> None:
    """With the names to choose from."""
    hooks = [
        {"name": name, "clientConfig": {"service": {"namespace": "n", "name": name}}}
        for name in ("one", "two")
    ]
    node.put("mutatingwebhookconfigurations", "", "many", webhooks=hooks)
    broken(node.doctor("--webhook", "many"), "destination", "names several: one, two", "name one of them")


def test_a_webhook_without_a_ready_pod(node: LaidNode) -> None:
    """It is the webhook's own trouble, and its pod is named."""
    register(node, 1, ready=False)
    document = node.doctor("--webhook", NAME)
    broken(document, "destination", "the webhook is not ready", "kubectl -n guard get pods")
    assert "guard-0 is Running, not ready" in document["broken"]["evidence"]


def test_a_webhook_without_its_service(node: LaidNode) -> None:
    """Deleted, or never made."""
    register(node, 1)
    del node.api.objects[("services", "guard", "guard-service")]
    broken(node.doctor("--webhook", NAME), "destination", "guard/guard-service is not there", "guard")


def test_a_pod_on_which_nothing_listens(node: LaidNode) -> None:
    """The agent is answered, with a refusal."""
    register(node, free_port())
    broken(node.doctor("--webhook", NAME), "dial", "nothing listens", "targetPort")


def test_an_expired_certificate_of_the_webhook(node: LaidNode, tmp_path: Path) -> None:
    """Not one of ours."""
    expired = AUTHORITY.issue_server(["guard-service.guard.svc"], validity=timedelta(seconds=-60))
    with webhook(tmp_path, expired) as port:
        register(node, port)
        broken(node.doctor("--webhook", NAME), "destination-tls", "certificate has expired", "renew it")


def test_a_webhook_with_a_certificate_for_another_name(node: LaidNode, tmp_path: Path) -> None:
    """The name that the kube-apiserver expects is said."""
    with webhook(tmp_path, AUTHORITY.issue_server(["guard.example.com"])) as port:
        register(node, port)
        name = "guard-service.guard.svc"
        broken(node.doctor("--webhook", NAME), "destination-tls", f"not for {name}", f"issue it for {name}")


def test_a_ca_bundle_that_is_not_the_webhooks(node: LaidNode, tmp_path: Path) -> None:
    """As when an injector has not done its work."""
    with webhook(tmp_path, good()) as port:
        register(node, port, ca=Authority.create("another").cert_pem)
        broken(node.doctor("--webhook", NAME), "destination-tls", "not that of its caBundle", "caBundle")


def test_a_webhook_that_speaks_no_tls(node: LaidNode) -> None:
    """It hangs up, or says something else."""
    endpoint = Endpoint(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    register(node, endpoint.port)
    broken(node.doctor("--webhook", NAME), "destination-tls", "does not speak TLS", "TLS on that port")
    endpoint.close()


@contextmanager
def silence() -> Iterator[int]:
    """A port that loses every packet: nobody accepts, and the queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        waiting = []
        for _ in range(3):
            caller = socket.socket()
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", port))
            waiting.append(caller)
        yield port
        for caller in waiting:
            caller.close()


def test_silence_behind_a_network_policy(node: LaidNode) -> None:
    """The policy is named, and what it has to allow."""
    with silence() as port:
        register(node, port)
        spec = {"podSelector": {"matchLabels": {"app": "guard"}}, "policyTypes": ["Ingress"], "ingress": []}
        node.put("networkpolicies", "guard", "deny-all", spec=spec)
        document = node.doctor("--webhook", NAME)
    broken(document, "dial", "a NetworkPolicy guards it: guard/deny-all", f"allow TCP {port}")


def test_silence_without_a_network_policy_is_a_missing_route(node: LaidNode) -> None:
    """A policy on other pods is no reason."""
    with silence() as port:
        register(node, port)
        spec = {"podSelector": {"matchLabels": {"app": "other"}}, "policyTypes": ["Ingress"]}
        node.put("networkpolicies", "guard", "others", spec=spec)
        document = node.doctor("--webhook", NAME)
    broken(document, "dial", "the agent has no route to it", "CNI")


def test_an_address_is_dialled_as_it_is_given(node: LaidNode) -> None:
    """Without asking the cluster for anything."""
    endpoint = Endpoint(lambda connection: None)
    document = node.doctor("--to", endpoint.address)
    assert document["works"], document
    until(lambda: endpoint.accepted == 1, "the endpoint has seen the doctor's connection")
    endpoint.close()


@pytest.mark.parametrize(
    ("said", "meaning", "fix"),
    [
        ("No agent available", "no agent is connected", "agents-connected"),
        ("currently no tunnels available: No agent available", "no agent is connected", "why="),
        ("dial tcp 10.1.2.3:443: connect: no route to host", "the agent has no route", "CNI"),
        ("dial tcp 10.1.2.3:443: connect: network is unreachable", "the agent has no route", "CNI"),
        ("dial tcp 10.1.2.3:443: connect: connection refused", "nothing listens", "targetPort"),
        ("dial tcp 10.1.2.3:443: i/o timeout", "packets get lost", "firewall"),
        ("Backend dial timeout: timed out waiting for backend dial", "packets get lost", "firewall"),
        ("something new", "something new", "bootbridge gather"),
    ],
)
def test_what_server_and_agent_say_is_understood(said: str, meaning: str, fix: str) -> None:
    """Ours and the original's words."""
    context = DiagnosisContext(InstallContext(Plan(), Host("/nowhere")))
    outcome: CheckResult = destination._judge(context, Destination("10.1.2.3", 443), NoConnectionError(said))
    assert meaning in outcome.evidence
    assert said in outcome.evidence
    assert fix in outcome.fix


# --- the tunnel itself, with ours and with the original


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("kind", ["ours", pytest.param("go", marks=pytest.mark.interop)])
def test_a_server_without_agents_says_so(
    tmp_path: Path, laid: LaidNode, kind: str, protocol: Protocol
) -> None:
    """In either protocol; and it is known by what it says on its socket which of the two it speaks."""
    from tests.support.process_program import OURS

    path = tmp_path / "s"
    tls = laid.path(laid.plan.paths.tls)
    binary = OURS / "proxy-server" if kind == "ours" else PEERS / "proxy-server"
    flags = {
        "mode": protocol.server_mode,
        "uds-name": path,
        "server-port": 0,
        "agent-port": free_port(),
        "health-port": free_port(),
        "admin-port": free_port(),
        "cluster-cert": tls / "server.crt",
        "cluster-key": tls / "server.key",
        "cluster-ca-cert": tls / "ca.crt",
    }
    server = Program(binary, flags, tmp_path)
    try:
        until(path.exists, "the socket is there")
        with tunnel.opened(path, 5) as connection:
            assert tunnel.spoken_on(connection) is protocol
        refused = pytest.raises(NoConnectionError, match="No agent available")
        with refused, tunnel.dialled(path, protocol, "127.0.0.1:1", 5):
            pass
        other = next(each for each in Protocol if each is not protocol)
        with pytest.raises(tunnel.WrongProtocolError), tunnel.dialled(path, other, "127.0.0.1:1", 5):
            pass
    finally:
        server.kill()


# --- from a node


def test_the_agents_port_is_tried_from_a_node(laid: LaidNode) -> None:
    """Without a tunnel, a cluster or a certificate on that machine."""
    port = laid.plan.ports.agent
    document = laid.doctor("--from-node", f"127.0.0.1:{port}")
    assert document["works"]
    assert document["steps"][0]["name"] == f"127.0.0.1:{port}"


def test_every_address_is_tried_and_the_closed_one_named(laid: LaidNode) -> None:
    """With the fix; an open one before or after it does not hide it."""
    port, closed = laid.plan.ports.agent, free_port()
    document = laid.doctor("--from-node", f"127.0.0.1:{closed}", "--from-node", f"127.0.0.1:{port}")
    assert [step["verdict"] for step in document["steps"]] == ["broken", "ok"]
    assert "konnectivity-server" in document["broken"]["fix"]


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (
            ("--platform", "aws", "--infra-id", "c-1"),
            "bootbridge firewall create --platform aws --infra-id c-1",
        ),
        (("--platform", "baremetal"), "On baremetal the firewall is yours: TCP 8091"),
        (("--platform", "aws", "--user-provisioned"), "On user-provisioned the firewall is yours"),
    ],
)
def test_a_filtered_port_has_its_platforms_fix(laid: LaidNode, flags: tuple[str, ...], fix: str) -> None:
    """The command where the cloud's rule is ours, words where the firewall is the operator's."""
    with silence() as port:
        document = laid.doctor("--from-node", f"127.0.0.1:{port}", "--timeout", "300ms", *flags)
    assert "filtered" in document["broken"]["evidence"]
    assert fix in document["broken"]["fix"]
