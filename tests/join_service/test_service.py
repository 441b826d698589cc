"""The join service's two calls: contents of a ticket, order of its steps, refusals and audit lines."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.kubeadm_defaults import CONTROL_PLANE_FILES
from bootbridge.join_api.messages import (
    ISSUE_TICKET,
    RejoinRequest,
    RejoinTicket,
    Ticket,
    TicketRequest,
)
from bootbridge.join_service import service
from bootbridge.join_service.audit import TEXT_CHARACTERS_MAX
from bootbridge.join_service.control_plane_lease import LEASE_NAME
from bootbridge.join_service.service import UNDO_SECONDS
from bootbridge.join_service.ticket_limit import TICKETS_PER_KEY_MAX
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.node.kubeadm.commands import GRACE_SECONDS
from bootbridge.node.kubeadm.kubelet_service import START_SECONDS
from bootbridge.node.kubeadm.run import RESET_SECONDS
from bootbridge.runtime.grpc import RpcError
from bootbridge.trust import key_hierarchy
from bootbridge.trust.fingerprint import fingerprint
from bootbridge.wire import grpc_messages as grpc
from tests.join_service.environment import (
    CLUSTER,
    CONTROL,
    CONTROL_2,
    MEASUREMENT,
    NOW,
    UNENROLLED,
    WORKER,
    Environment,
    caller,
    csr,
    identity,
    ticket_request,
)
from tests.kube.conftest import until
from tests.support.fake_api_objects import Call, failing

REJOINING = RejoinRequest("worker-0", csr("worker-0"))


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


async def refusal(environment: Environment, who: Any, request: TicketRequest) -> RpcError:
    with pytest.raises(RpcError) as failed:
        await environment.ticket(who, request)
    return failed.value


def last_token_id(environment: Environment) -> str:
    """Of the last request to create a bootstrap token."""
    body = environment.api.calls[-1].body
    assert body is not None
    return str(body["metadata"]["name"]).removeprefix("bootstrap-token-")


class TestTicket:
    async def test_of_a_worker_has_all_fields(self, environment: Environment) -> None:
        ticket = await environment.ticket(caller(WORKER), ticket_request(WORKER))
        (secret,) = environment.token_secrets
        ca = x509.load_pem_x509_certificate(environment.authority.cert_pem)
        assert ticket == Ticket(
            node_name="worker-0",
            control_plane=False,
            kubernetes_version="v1.36.3",
            api_server_endpoint="10.0.0.1:6443",
            token=ticket.token,
            token_seconds=900,
            ca_certificate_hashes=(fingerprint(ca.public_key()),),
            kubelet_certificate=ticket.kubelet_certificate,
            control_plane_files=(),
            measurement_secret=MEASUREMENT.secret,
            measurement_salt=MEASUREMENT.salt,
            components=CLUSTER.components,
            addresses=("10.0.0.5", "fd00::5"),
            provider_id="cloud://w0",
            cri_socket=CLUSTER.cri_socket,
            ignore_preflight_errors=("Swap",),
        )
        assert secret["metadata"]["name"] == f"bootstrap-token-{ticket.token.partition('.')[0]}"
        x509.load_pem_x509_certificate(ticket.kubelet_certificate).verify_directly_issued_by(ca)

    async def test_of_a_control_plane_has_the_keys_and_holds_the_lease(
        self, environment: Environment
    ) -> None:
        ticket = await environment.ticket(caller(CONTROL), ticket_request(CONTROL))
        assert ticket.control_plane
        assert tuple(each.name for each in ticket.control_plane_files) == CONTROL_PLANE_FILES
        (lease,) = environment.api.named(LEASE_NAME)
        assert lease["spec"]["holderIdentity"] == "control-1"

    async def test_of_a_control_plane_has_a_turn_that_ends_before_the_lease(
        self, environment: Environment
    ) -> None:
        """The lease includes the time that an expired join needs to be undone."""
        ticket = await environment.ticket(caller(CONTROL), ticket_request(CONTROL))
        (lease,) = environment.api.named(LEASE_NAME)
        assert ticket.turn_seconds == environment.policy.ticket.control_plane_join_seconds
        assert lease["spec"]["leaseDurationSeconds"] == ticket.turn_seconds + UNDO_SECONDS
        assert START_SECONDS + RESET_SECONDS + 2 * GRACE_SECONDS < UNDO_SECONDS

    async def test_can_be_requested_again(self, environment: Environment) -> None:
        """The response may have been lost; the first token expires unused."""
        first = await environment.ticket(caller(CONTROL), ticket_request(CONTROL))
        second = await environment.ticket(caller(CONTROL), ticket_request(CONTROL))
        assert first.token != second.token

    async def test_one_key_has_a_limit_of_valid_tickets(self, environment: Environment) -> None:
        for _ in range(TICKETS_PER_KEY_MAX):
            await environment.ticket(caller(WORKER), ticket_request(WORKER))
        refused = await refusal(environment, caller(WORKER), ticket_request(WORKER))
        assert refused.code == grpc.UNAVAILABLE
        assert "retry later: 16 valid tickets for this key" in refused.message
        assert environment.audit[-1]["outcome"] == "not yet"
        assert len(environment.token_secrets) == TICKETS_PER_KEY_MAX
        await environment.ticket(caller(CONTROL), ticket_request(CONTROL))

    async def test_has_the_policys_durations(self, environment: Environment) -> None:
        environment.allow(ticket=replace(environment.policy.ticket, token_seconds=60, certificate_days=7))
        ticket = await environment.ticket(caller(WORKER), ticket_request(WORKER))
        assert ticket.token_seconds == 60


class TestRefusal:
    """PERMISSION_DENIED with a reason, an audit line, and nothing created."""

    @pytest.mark.parametrize(
        ("who", "request_", "reason"),
        [
            (caller(WORKER), ticket_request(WORKER, node_name="control-1"), "key belongs to worker-0"),
            (caller(WORKER), ticket_request(WORKER, control_plane=True), "role control-plane requested"),
            (caller(WORKER), ticket_request(WORKER, certificate_request=b""), "CSR missing"),
            (caller(WORKER), ticket_request(WORKER, certificate_request=csr("control-1")), "common name"),
            (caller(WORKER, kind="tpm", facts={"pcr15": "ab" * 32}), ticket_request(WORKER), "PCR 15"),
            (
                replace(caller(UNENROLLED), address="10.0.0.9"),
                ticket_request(UNENROLLED),
                "call from address 10.0.0.9",
            ),
        ],
    )
    async def test_creates_nothing(
        self, environment: Environment, who: Any, request_: TicketRequest, reason: str
    ) -> None:
        refused = await refusal(environment, who, request_)
        assert refused.code == grpc.PERMISSION_DENIED
        assert reason in refused.message
        assert environment.api.calls == []
        (line,) = environment.audit
        assert (line["outcome"], reason in line["reason"]) == ("refused", True)

    async def test_of_a_bound_name_creates_no_token(self, environment: Environment) -> None:
        await environment.ticket(
            replace(caller(UNENROLLED), attested=caller(WORKER).attested), ticket_request(WORKER)
        )
        environment.instances = (replace(WORKER, identity=CONTROL.identity),)
        refused = await refusal(environment, caller(environment.instances[0]), ticket_request(WORKER))
        assert "node name bound to" in refused.message
        assert len(environment.token_secrets) == 1

    async def test_of_a_malformed_request(self, environment: Environment) -> None:
        with pytest.raises(RpcError, match="malformed request") as failed:
            await environment.call(ISSUE_TICKET, caller(WORKER), b"\xff\xff")
        assert failed.value.code == grpc.PERMISSION_DENIED


class TestUnavailable:
    """Not the caller's fault: it retries, and the log has the reason."""

    async def test_while_another_control_plane_joins(self, environment: Environment) -> None:
        await environment.ticket(caller(CONTROL), ticket_request(CONTROL))
        failed = await refusal(environment, caller(CONTROL_2), ticket_request(CONTROL_2))
        assert failed.code == grpc.UNAVAILABLE
        assert "retry later: control plane control-1 is joining, until" in failed.message
        assert environment.audit[-1]["outcome"] == "not yet"

    @pytest.mark.parametrize("error", [KubeUnreachable("no route"), KubeError(500, "Internal", "etcd")])
    @pytest.mark.parametrize("part", ["/configmaps", "/leases", "/secrets"])
    async def test_when_the_api_server_fails(
        self, environment: Environment, error: Exception, part: str
    ) -> None:
        for method in ("GET", "POST", "PUT"):
            environment.api.faults.append(failing(method, part, error))
        failed = await refusal(environment, caller(CONTROL), ticket_request(CONTROL))
        assert failed.code == grpc.UNAVAILABLE
        assert "retry later" in failed.message
        assert environment.token_secrets == []
        environment.api.faults.clear()
        await environment.ticket(caller(CONTROL), ticket_request(CONTROL))

    @pytest.mark.parametrize("name", CONTROL_PLANE_FILES)
    async def test_when_a_key_file_is_missing_and_nothing_is_created(
        self, environment: Environment, name: str
    ) -> None:
        (environment.pki / name).unlink()
        failed = await refusal(environment, caller(CONTROL), ticket_request(CONTROL))
        assert failed.code == grpc.UNAVAILABLE
        assert environment.api.calls == []
        assert name in environment.audit[-1]["reason"]

    async def test_an_unexpected_exception_is_not_a_refusal(self, environment: Environment) -> None:
        environment.api.faults.append(failing("POST", "/configmaps", ZeroDivisionError()))
        with pytest.raises(ZeroDivisionError):
            await environment.ticket(caller(WORKER), ticket_request(WORKER))


class TestRejoin:
    async def test_a_rebooted_node_gets_a_new_certificate_only(self, environment: Environment) -> None:
        await environment.ticket(caller(WORKER), ticket_request(WORKER))
        ticket = await environment.rejoin(caller(WORKER), REJOINING)
        assert ticket == RejoinTicket("worker-0", ticket.kubelet_certificate)
        assert x509.load_pem_x509_certificate(ticket.kubelet_certificate)
        assert len(environment.token_secrets) == 1, "a rejoin needs no token"

    @pytest.mark.parametrize(
        "roles", [frozenset(), frozenset(Role)], ids=["no role may join", "all may join"]
    )
    async def test_an_instance_that_never_joined_is_refused(
        self, environment: Environment, roles: frozenset[Role]
    ) -> None:
        """With any policy: else a rejoin would bypass the checks of a ticket."""
        environment.allow(roles=roles)
        blank = caller(WORKER, kind="tpm", facts={"pcr15": "00" * 32})
        with pytest.raises(RpcError, match="worker-0: not a node of this cluster") as failed:
            await environment.rejoin(blank, REJOINING)
        assert failed.value.code == grpc.PERMISSION_DENIED
        assert environment.api.objects == {}, "its name is still free"
        assert environment.audit[-1]["outcome"] == "refused"

    async def test_a_bound_node_needs_no_write(self, environment: Environment) -> None:
        await environment.ticket(caller(WORKER), ticket_request(WORKER))
        environment.api.calls.clear()
        await environment.rejoin(caller(WORKER), REJOINING)
        assert [each.method for each in environment.api.calls] == ["GET"]

    async def test_a_node_without_binding_is_bound_by_its_rejoin(self, environment: Environment) -> None:
        """For example the first node, which had no ticket."""
        environment.api.put("/api/v1/nodes/worker-0", {"metadata": {"name": "worker-0"}})
        await environment.rejoin(caller(WORKER), REJOINING)
        (binding,) = environment.api.named("bootbridge-node-worker-0")
        assert binding["data"] == {"identity": WORKER.identity}

    async def test_a_node_may_rejoin_although_its_role_may_not_join(self, environment: Environment) -> None:
        await environment.ticket(caller(WORKER), ticket_request(WORKER))
        environment.allow(roles=frozenset())
        await environment.rejoin(caller(WORKER), REJOINING)

    async def test_a_control_plane_rejoins_while_another_joins(self, environment: Environment) -> None:
        environment.api.put("/api/v1/nodes/control-1", {"metadata": {"name": "control-1"}})
        await environment.ticket(caller(CONTROL_2), ticket_request(CONTROL_2))
        await environment.rejoin(caller(CONTROL), RejoinRequest("control-1", csr("control-1")))

    async def test_one_key_has_a_limit_of_rejoins(self, environment: Environment) -> None:
        await environment.ticket(caller(WORKER), ticket_request(WORKER))
        for _ in range(TICKETS_PER_KEY_MAX):
            await environment.rejoin(caller(WORKER), REJOINING)
        with pytest.raises(RpcError, match="16 valid tickets for this key") as failed:
            await environment.rejoin(caller(WORKER), REJOINING)
        assert failed.value.code == grpc.UNAVAILABLE
        environment.now += environment.policy.ticket.token_seconds
        await environment.rejoin(caller(WORKER), REJOINING)

    async def test_another_key_is_refused(self, environment: Environment) -> None:
        await environment.ticket(caller(WORKER), ticket_request(WORKER))
        environment.instances = (replace(WORKER, identity=CONTROL.identity),)
        with pytest.raises(RpcError, match="node name bound to"):
            await environment.rejoin(caller(environment.instances[0]), REJOINING)

    async def test_an_unlisted_instance_is_refused(self, environment: Environment) -> None:
        unlisted = Instance("unlisted", Role.WORKER, (ip_address("10.9.9.9"),))
        with pytest.raises(RpcError, match="not in the inventory"):
            await environment.rejoin(caller(unlisted), RejoinRequest("unlisted", csr("unlisted")))


class TestAudit:
    async def test_the_text_of_a_caller_is_cut_and_escaped(self, environment: Environment) -> None:
        request = TicketRequest("\n" + "x" * 100_000, False, csr("worker-0"))
        with pytest.raises(RpcError):
            await environment.ticket(caller(WORKER), request)
        (line,) = environment.audit
        assert len(line["node"]) == TEXT_CHARACTERS_MAX + 1
        assert len(environment.log.getvalue()) < 5 * TEXT_CHARACTERS_MAX

    async def test_a_ticket_is_one_line_with_caller_evidence_and_token_id(
        self, environment: Environment
    ) -> None:
        who = caller(WORKER, kind="tpm", facts={"pcr15": "00" * 32})
        ticket = await environment.ticket(who, ticket_request(WORKER))
        assert environment.audit == [
            {
                "time": "2027-01-15T08:00:00.000Z",
                "event": "ticket",
                "outcome": "issued",
                "node": "worker-0",
                "role": "worker",
                "address": "10.0.0.5",
                "evidence": "tpm",
                "identity": WORKER.identity,
                "facts": {"pcr15": "00" * 32},
                "tokenID": ticket.token.partition(".")[0],
            }
        ]

    async def test_secrets_are_not_in_audit_logs_and_repr(
        self, environment: Environment, caplog: pytest.LogCaptureFixture
    ) -> None:
        ticket = await environment.ticket(caller(CONTROL), ticket_request(CONTROL))
        written = environment.log.getvalue() + caplog.text + repr(ticket) + repr(environment.service)
        for secret in (ticket.token.partition(".")[2], MEASUREMENT.secret.hex(), "the content of sa.key"):
            assert secret not in written
        assert repr(MEASUREMENT.secret) not in written

    async def test_a_disconnected_caller_is_audited(self, environment: Environment) -> None:
        environment.api.answering.clear()
        waiting = asyncio.ensure_future(environment.ticket(caller(WORKER), ticket_request(WORKER)))
        await until(lambda: environment.api.calls)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert environment.audit[-1]["reason"] == "the caller disconnected"

    async def test_a_token_of_a_disconnected_caller_is_audited(self, environment: Environment) -> None:
        """The API server may create the token nevertheless."""

        def hold(request: Call) -> None:
            if "/secrets" in request.path:
                environment.api.answering.clear()

        environment.api.faults.append(hold)
        waiting = asyncio.ensure_future(environment.ticket(caller(WORKER), ticket_request(WORKER)))
        await until(lambda: not environment.api.answering.is_set())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert environment.audit[-1]["tokenID"] == last_token_id(environment)

    async def test_a_token_whose_response_was_lost_is_audited(self, environment: Environment) -> None:
        environment.api.faults.append(failing("POST", "/secrets", KubeUnreachable("the connection was lost")))
        await refusal(environment, caller(WORKER), ticket_request(WORKER))
        assert (environment.audit[-1]["outcome"], environment.audit[-1]["tokenID"]) == (
            "failed",
            last_token_id(environment),
        )

    async def test_a_colliding_token_is_not_audited(self, environment: Environment) -> None:
        environment.api.faults.append(failing("POST", "/secrets", KubeError(409, "AlreadyExists", "taken")))
        await refusal(environment, caller(WORKER), ticket_request(WORKER))
        assert "tokenID" not in environment.audit[-1]

    async def test_a_forged_name_cannot_add_a_line(self, environment: Environment) -> None:
        await refusal(
            environment, caller(WORKER), ticket_request(WORKER, node_name='x"}\n{"outcome": "issued')
        )
        (line,) = environment.audit
        assert line["outcome"] == "refused"


def test_a_request_cannot_choose_a_key_to_derive() -> None:
    """A service that derives keys by a caller's string would reveal every other key, such as a disk's."""
    fields = {field.name for kind in (TicketRequest, RejoinRequest) for field in dataclasses.fields(kind)}
    assert fields == {"node_name", "control_plane", "certificate_request"}
    modules = list(Path(service.__file__).parent.glob("*.py"))
    assert len(modules) > 10
    for module in modules:
        assert key_hierarchy.state_disk_key.__name__ not in module.read_text()


async def test_an_address_in_the_csr_must_be_in_the_inventory(environment: Environment) -> None:
    request = csr("worker-0", sans=[x509.IPAddress(ip_address("10.0.0.1"))])
    refused = await refusal(environment, caller(WORKER), ticket_request(WORKER, certificate_request=request))
    assert "10.0.0.1" in refused.message


async def test_control_planes_that_wait_create_no_tokens(environment: Environment) -> None:
    await environment.ticket(caller(CONTROL), ticket_request(CONTROL))
    for _ in range(5):
        await refusal(environment, caller(CONTROL_2), ticket_request(CONTROL_2))
    assert len(environment.token_secrets) == 1


async def test_one_of_two_control_planes_at_two_services_gets_a_token(environment: Environment) -> None:
    outcomes = await asyncio.gather(
        environment.ticket(caller(CONTROL), ticket_request(CONTROL)),
        environment.ticket(caller(CONTROL_2), ticket_request(CONTROL_2), environment.another_service()),
        return_exceptions=True,
    )
    assert [isinstance(each, RpcError) for each in outcomes].count(True) == 1
    assert len(environment.token_secrets) == 1


async def test_addresses_are_of_the_clusters_families(environment: Environment) -> None:
    """A dual-stack machine in a single-stack cluster gets the addresses that the init would choose."""
    four = replace(environment.policy.cluster, service_subnets=("10.96.0.0/12",))
    environment.policy = replace(environment.policy, cluster=four)
    ticket = await environment.ticket(caller(WORKER), ticket_request(WORKER))
    assert {ip_address(each).version for each in ticket.addresses} == {4}
    assert {each.version for each in WORKER.addresses} == {4, 6}


async def test_a_node_name_may_have_dots(environment: Environment) -> None:
    dotted = Instance(
        "worker-7.rack-2.example.com", Role.WORKER, (ip_address("10.0.0.7"),), "", identity("d")
    )
    environment.instances = (dotted,)
    ticket = await environment.ticket(caller(dotted), ticket_request(dotted))
    assert ticket.node_name == "worker-7.rack-2.example.com"


async def test_a_slow_request_does_not_delay_others(environment: Environment) -> None:
    environment.api.answering.clear()
    slow = asyncio.ensure_future(environment.ticket(caller(WORKER), ticket_request(WORKER)))
    await until(lambda: environment.api.calls)
    # Later requests are answered; the first still waits for the old event.
    environment.api.answering = asyncio.Event()
    environment.api.answering.set()
    async with asyncio.timeout(5):
        assert (await environment.ticket(caller(CONTROL), ticket_request(CONTROL))).node_name == "control-1"
    assert not slow.done()
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


async def test_a_rejoin_renews_the_serving_certificate(environment: Environment) -> None:
    first = await environment.ticket(caller(WORKER), ticket_request(WORKER))
    environment.now += timedelta(hours=12).total_seconds()
    again = await environment.rejoin(caller(WORKER), REJOINING)
    old, new = (x509.load_pem_x509_certificate(each.kubelet_certificate) for each in (first, again))
    assert new.not_valid_before_utc - old.not_valid_before_utc == timedelta(hours=12)
    assert new.not_valid_after_utc > old.not_valid_after_utc > datetime.fromtimestamp(NOW, UTC)
