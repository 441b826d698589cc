"""`bootbridge doctor` beyond the agents: it finds webhooks by name and dials them through the tunnel."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from bootbridge.bootstrap.diagnose.check.result import CheckResult
from bootbridge.bootstrap.diagnose.doctor import DiagnosisContext, destination
from bootbridge.bootstrap.diagnose.doctor.targets import Destination
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.plan.plan import Plan, Protocol
from bootbridge.common.host import Host
from bootbridge.frontend_client.call import DialError, FrontendMode, ProtocolMismatchError
from bootbridge.frontend_client.frontend import UnixFrontend, detect_mode
from bootbridge.frontend_client.tunnel_stream import open_tunnel
from bootbridge.trust.authority import Authority, Certificate
from tests.bootstrap.diagnose.doctor_node import InstalledNode
from tests.bootstrap.diagnose.test_doctor import broken
from tests.support.process_endpoints import Endpoint
from tests.support.process_program import PEERS, Program, free_port, until

NAME = "guard.example.com"
AUTHORITY = Authority.create("webhook-signer")


@pytest.fixture
def node(installed: InstalledNode) -> Iterator[InstalledNode]:
    held = dict(installed.api.objects)
    yield installed
    for key in set(installed.api.objects) - set(held):
        del installed.api.objects[key]


@contextmanager
def webhook(folder: Path, certificate: Certificate) -> Iterator[int]:
    """Serves TLS as a webhook's pod does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate.write(folder, "webhook"))

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as stream:
            stream.recv(1)

    endpoint = Endpoint(serve)
    yield endpoint.port
    endpoint.close()


def register(node: InstalledNode, port: int, *, ready: bool = True, ca: bytes = AUTHORITY.cert_pem) -> None:
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
def test_a_working_webhook_passes_all_steps(node: InstalledNode, tmp_path: Path, name: str) -> None:
    """By its name or that of its configuration."""
    with webhook(tmp_path, good()) as port:
        register(node, port)
        document = node.doctor("--webhook", name)
    assert {step["verdict"] for step in document["steps"]} == {"ok"}, document
    assert "valid for guard-service.guard.svc" in document["steps"][-1]["evidence"]


@pytest.mark.parametrize("name", ["v1.guard.example.com", "guards.example.com"])
def test_aggregated_apis_and_conversions_are_found_too(
    node: InstalledNode, tmp_path: Path, name: str
) -> None:
    with webhook(tmp_path, good()) as port:
        register(node, port)
        held = node.api.objects[("validatingwebhookconfigurations", "", "guard")]
        client = held["webhooks"][0]["clientConfig"]
        node.put("apiservices", "", "v1.guard.example.com", spec=client)
        conversion = {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": client}}}
        node.put("customresourcedefinitions", "", "guards.example.com", spec=conversion)
        document = node.doctor("--webhook", name)
    assert {step["verdict"] for step in document["steps"]} == {"ok"}, document


def test_a_webhook_by_url_does_not_use_the_tunnel(node: InstalledNode) -> None:
    """This is reported, and no hop is broken."""
    hook = {"name": "by-url", "clientConfig": {"url": "https://example.com/"}}
    node.put("mutatingwebhookconfigurations", "", "by-url", webhooks=[hook])
    document = node.doctor("--webhook", "by-url")
    assert document["works"]
    assert "called by its URL" in str(document["steps"])


def test_an_ambiguous_name_is_rejected_with_the_candidates(node: InstalledNode) -> None:
    hooks = [
        {"name": name, "clientConfig": {"service": {"namespace": "n", "name": name}}}
        for name in ("one", "two")
    ]
    node.put("mutatingwebhookconfigurations", "", "many", webhooks=hooks)
    broken(node.doctor("--webhook", "many"), "destination", "is ambiguous: one, two", "name one of them")


def test_a_webhook_without_a_ready_pod(node: InstalledNode) -> None:
    register(node, 1, ready=False)
    document = node.doctor("--webhook", NAME)
    broken(document, "destination", "the webhook is not ready", "kubectl -n guard get pods")
    assert "guard-0 is Running, not ready" in document["broken"]["evidence"]


def test_a_webhook_without_its_service(node: InstalledNode) -> None:
    register(node, 1)
    del node.api.objects[("services", "guard", "guard-service")]
    broken(node.doctor("--webhook", NAME), "destination", "guard/guard-service does not exist", "guard")


def test_a_pod_that_refuses_connections(node: InstalledNode) -> None:
    register(node, free_port())
    broken(node.doctor("--webhook", NAME), "dial", "connection refused by the pod", "targetPort")


def test_an_expired_certificate_of_the_webhook(node: InstalledNode, tmp_path: Path) -> None:
    expired = AUTHORITY.issue_server(["guard-service.guard.svc"], validity=timedelta(seconds=-60))
    with webhook(tmp_path, expired) as port:
        register(node, port)
        broken(node.doctor("--webhook", NAME), "destination-tls", "certificate has expired", "renew it")


def test_a_webhook_with_a_certificate_for_another_name(node: InstalledNode, tmp_path: Path) -> None:
    with webhook(tmp_path, AUTHORITY.issue_server(["guard.example.com"])) as port:
        register(node, port)
        name = "guard-service.guard.svc"
        broken(
            node.doctor("--webhook", NAME), "destination-tls", f"not valid for {name}", f"issue it for {name}"
        )


def test_a_ca_bundle_that_does_not_match(node: InstalledNode, tmp_path: Path) -> None:
    """For example if a CA injector did not run."""
    with webhook(tmp_path, good()) as port:
        register(node, port, ca=Authority.create("another").cert_pem)
        broken(node.doctor("--webhook", NAME), "destination-tls", "not signed by its caBundle", "caBundle")


def test_a_webhook_without_tls(node: InstalledNode) -> None:
    endpoint = Endpoint(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    register(node, endpoint.port)
    broken(node.doctor("--webhook", NAME), "destination-tls", "TLS handshake with", "TLS on that port")
    endpoint.close()


@contextmanager
def dropped_packets() -> Iterator[int]:
    """A port that drops all packets: its accept queue is full."""
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


def test_a_timeout_behind_a_network_policy_names_the_policy(node: InstalledNode) -> None:
    with dropped_packets() as port:
        register(node, port)
        spec = {"podSelector": {"matchLabels": {"app": "guard"}}, "policyTypes": ["Ingress"], "ingress": []}
        node.put("networkpolicies", "guard", "deny-all", spec=spec)
        document = node.doctor("--webhook", NAME)
    broken(document, "dial", "a NetworkPolicy selects it: guard/deny-all", f"TCP {port}")


def test_a_timeout_without_a_network_policy_is_a_missing_route(node: InstalledNode) -> None:
    """A policy that selects other pods does not count."""
    with dropped_packets() as port:
        register(node, port)
        spec = {"podSelector": {"matchLabels": {"app": "other"}}, "policyTypes": ["Ingress"]}
        node.put("networkpolicies", "guard", "others", spec=spec)
        document = node.doctor("--webhook", NAME)
    broken(document, "dial", "the agent has no route to it", "CNI")


def test_a_given_address_is_dialled(node: InstalledNode) -> None:
    endpoint = Endpoint(lambda connection: None)
    document = node.doctor("--to", endpoint.address)
    assert document["works"], document
    until(lambda: endpoint.accepted == 1, "the endpoint has seen the doctor's connection")
    endpoint.close()


@pytest.mark.parametrize(
    ("message", "meaning", "fix"),
    [
        ("No agent available", "no connected agent", "agents-connected"),
        ("currently no tunnels available: No agent available", "no connected agent", "server's log"),
        ("dial tcp 10.1.2.3:443: connect: no route to host", "the agent has no route", "CNI"),
        ("dial tcp 10.1.2.3:443: connect: network is unreachable", "the agent has no route", "CNI"),
        ("dial tcp 10.1.2.3:443: connect: connection refused", "refused by the pod", "targetPort"),
        ("dial tcp 10.1.2.3:443: i/o timeout", "timed out", "firewall"),
        ("Backend dial timeout: timed out waiting for backend dial", "timed out", "firewall"),
        ("something new", "something new", "bootbridge gather"),
    ],
)
def test_known_errors_are_explained(message: str, meaning: str, fix: str) -> None:
    """In the words of our programs and of the Go programs."""
    context = DiagnosisContext(InstallContext(Plan(), Host("/nowhere")))
    result: CheckResult = destination._judge(context, Destination("10.1.2.3", 443), DialError(message))
    assert meaning in result.evidence
    assert message in result.evidence
    assert fix in result.fix


# --- the connection through the server, ours and the Go server


def dial_once(frontend: UnixFrontend) -> None:
    asyncio.run(open_tunnel(frontend, "127.0.0.1:1", 5))


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("kind", ["ours", pytest.param("go", marks=pytest.mark.interop)])
def test_dial_without_agents_and_protocol_detection(
    tmp_path: Path, installed: InstalledNode, kind: str, protocol: Protocol
) -> None:
    from tests.support.process_program import OURS

    path = tmp_path / "s"
    tls = installed.path(installed.plan.paths.tls)
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
        until(path.exists, "the socket exists")
        assert detect_mode(path, 5) == protocol.server_mode
        with pytest.raises(DialError, match="No agent available"):
            dial_once(UnixFrontend(path, FrontendMode(protocol.server_mode)))
        other = next(each for each in FrontendMode if each != protocol.server_mode)
        with pytest.raises(ProtocolMismatchError):
            dial_once(UnixFrontend(path, other))
    finally:
        server.kill()


# --- from a node


def test_the_agents_port_is_tested_from_a_node(installed: InstalledNode) -> None:
    """Needs no tunnel, cluster or certificate on that machine."""
    port = installed.plan.ports.agent
    document = installed.doctor("--from-node", f"127.0.0.1:{port}")
    assert document["works"]
    assert document["steps"][0]["name"] == f"127.0.0.1:{port}"


def test_all_addresses_are_tested_from_a_node(installed: InstalledNode) -> None:
    port, closed = installed.plan.ports.agent, free_port()
    document = installed.doctor("--from-node", f"127.0.0.1:{closed}", "--from-node", f"127.0.0.1:{port}")
    assert [step["verdict"] for step in document["steps"]] == ["broken", "ok"]
    assert "konnectivity-server" in document["broken"]["fix"]


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (
            ("--platform", "aws", "--infra-id", "c-1"),
            "bootbridge firewall create --platform aws --infra-id c-1",
        ),
        (("--platform", "baremetal"), "On baremetal you manage the firewall: open TCP 8091"),
        (("--platform", "aws", "--user-provisioned"), "On user-provisioned you manage the firewall"),
    ],
)
def test_a_filtered_port_has_the_fix_of_its_platform(
    installed: InstalledNode, flags: tuple[str, ...], fix: str
) -> None:
    with dropped_packets() as port:
        document = installed.doctor("--from-node", f"127.0.0.1:{port}", "--timeout", "300ms", *flags)
    assert "filtered" in document["broken"]["evidence"]
    assert fix in document["broken"]["fix"]
