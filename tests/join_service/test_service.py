"""The two calls: what is in a ticket, in which order it is made, and what a caller without one is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.messages import (
    CONTROL_PLANE_FILES,
    ISSUE_TICKET,
    RejoinRequest,
    RejoinTicket,
    Ticket,
    TicketRequest,
)
from bootbridge.join_service.control_plane_lease import LEASE_NAME
from bootbridge.join_service.service import UNDO_SECONDS
from bootbridge.join_service.ticket_limit import TICKETS_PER_KEY_MAX
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.requests import ApiRequest
from bootbridge.node.kubeadm.commands import GRACE_SECONDS
from bootbridge.node.kubeadm.kubelet_service import START_SECONDS
from bootbridge.node.kubeadm.run import RESET_SECONDS
from bootbridge.runtime.grpc import RpcError
from bootbridge.trust.fingerprint import fingerprint
from bootbridge.wire import grpc_messages as grpc
from tests.join_service.environment import (
    CLUSTER,
    CONTROL,
    CONTROL_2,
    MEASUREMENT,
    UNENROLLED,
    WORKER,
    World,
    asking,
    caller,
    csr,
)
from tests.join_service.memory_api import failing
from tests.kube.conftest import until

REJOINING = RejoinRequest("worker-0", csr("worker-0"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def refusal(world: World, who: Any, request: TicketRequest) -> RpcError:
    with pytest.raises(RpcError) as failed:
        await world.ticket(who, request)
    return failed.value


def asked_for(world: World) -> str:
    """The id of the token that the API server was last asked to make."""
    body = world.api.requests[-1].body
    assert body is not None
    return str(body["metadata"]["name"]).removeprefix("bootstrap-token-")


class TestTicket:
    async def test_of_a_worker_field_by_field(self, world: World) -> None:
        ticket = await world.ticket(caller(WORKER), asking(WORKER))
        (secret,) = world.token_secrets
        ca = x509.load_pem_x509_certificate(world.authority.cert_pem)
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

    async def test_of_a_control_plane_has_the_clusters_keys_and_holds_the_lease(self, world: World) -> None:
        ticket = await world.ticket(caller(CONTROL), asking(CONTROL))
        assert ticket.control_plane
        assert tuple(each.name for each in ticket.control_plane_files) == CONTROL_PLANE_FILES
        (lease,) = world.api.below(LEASE_NAME)
        assert lease["spec"]["holderIdentity"] == "control-1"

    async def test_of_a_control_plane_tells_its_turn_which_ends_before_the_lease(self, world: World) -> None:
        """What is not done by then is undone, and only then may the next one begin."""
        ticket = await world.ticket(caller(CONTROL), asking(CONTROL))
        (lease,) = world.api.below(LEASE_NAME)
        assert ticket.turn_seconds == world.policy.ticket.control_plane_join_seconds
        assert lease["spec"]["leaseDurationSeconds"] == ticket.turn_seconds + UNDO_SECONDS
        assert START_SECONDS + RESET_SECONDS + 2 * GRACE_SECONDS < UNDO_SECONDS

    async def test_may_be_asked_for_again(self, world: World) -> None:
        """The answer may have been lost; the token of the first one expires unused."""
        first = await world.ticket(caller(CONTROL), asking(CONTROL))
        second = await world.ticket(caller(CONTROL), asking(CONTROL))
        assert first.token != second.token

    async def test_can_be_had_by_one_key_a_few_times_while_its_tokens_are_good(self, world: World) -> None:
        for _ in range(TICKETS_PER_KEY_MAX):
            await world.ticket(caller(WORKER), asking(WORKER))
        refused = await refusal(world, caller(WORKER), asking(WORKER))
        assert refused.code == grpc.UNAVAILABLE
        assert "try again: 16 tickets were given to this key lately" in refused.message
        assert world.audit[-1]["outcome"] == "not yet"
        assert len(world.token_secrets) == TICKETS_PER_KEY_MAX
        await world.ticket(caller(CONTROL), asking(CONTROL))

    async def test_says_what_the_policy_says(self, world: World) -> None:
        world.allow(ticket=replace(world.policy.ticket, token_seconds=60, certificate_days=7))
        ticket = await world.ticket(caller(WORKER), asking(WORKER))
        assert ticket.token_seconds == 60


class TestRefusal:
    """PERMISSION_DENIED with its reason; in the audit; and nothing was made."""

    @pytest.mark.parametrize(
        ("who", "request_", "reason"),
        [
            (caller(WORKER), asking(WORKER, node_name="control-1"), "by its key it is worker-0"),
            (caller(WORKER), asking(WORKER, control_plane=True), "asks to be a control-plane"),
            (caller(WORKER), asking(WORKER, certificate_request=b""), "certificate request is missing"),
            (caller(WORKER), asking(WORKER, certificate_request=csr("control-1")), "common name"),
            (caller(WORKER, kind="tpm", facts={"pcr15": "ab" * 32}), asking(WORKER), "PCR 15"),
            (replace(caller(UNENROLLED), address="10.0.0.9"), asking(UNENROLLED), "comes from 10.0.0.9"),
        ],
    )
    async def test_leaves_nothing_behind(
        self, world: World, who: Any, request_: TicketRequest, reason: str
    ) -> None:
        refused = await refusal(world, who, request_)
        assert refused.code == grpc.PERMISSION_DENIED
        assert reason in refused.message
        assert world.api.requests == []
        (line,) = world.audit
        assert (line["outcome"], reason in line["reason"]) == ("refused", True)

    async def test_of_a_taken_name_mints_nothing(self, world: World) -> None:
        await world.ticket(replace(caller(UNENROLLED), attested=caller(WORKER).attested), asking(WORKER))
        world.instances = (replace(WORKER, identity=CONTROL.identity),)
        refused = await refusal(world, caller(world.instances[0]), asking(WORKER))
        assert "is bound to" in refused.message
        assert len(world.token_secrets) == 1

    async def test_of_bytes_that_are_no_request(self, world: World) -> None:
        with pytest.raises(RpcError, match="cannot be read") as failed:
            await world.call(ISSUE_TICKET, caller(WORKER), b"\xff\xff")
        assert failed.value.code == grpc.PERMISSION_DENIED


class TestTrouble:
    """Not the caller's fault: it is told to try again, and our log knows why."""

    async def test_another_joining_control_plane_is_named(self, world: World) -> None:
        await world.ticket(caller(CONTROL), asking(CONTROL))
        failed = await refusal(world, caller(CONTROL_2), asking(CONTROL_2))
        assert failed.code == grpc.UNAVAILABLE
        assert "try again: control-1 is joining as a control plane, until" in failed.message
        assert world.audit[-1]["outcome"] == "not yet"

    @pytest.mark.parametrize("error", [KubeUnreachable("no route"), KubeError(500, "Internal", "etcd")])
    @pytest.mark.parametrize("part", ["/configmaps", "/leases", "/secrets"])
    async def test_with_the_api_server_means_try_again(
        self, world: World, error: Exception, part: str
    ) -> None:
        for method in ("GET", "POST", "PUT"):
            world.api.faults.append(failing(method, part, error))
        failed = await refusal(world, caller(CONTROL), asking(CONTROL))
        assert failed.code == grpc.UNAVAILABLE
        assert "try again" in failed.message
        assert world.token_secrets == []
        world.api.faults.clear()
        await world.ticket(caller(CONTROL), asking(CONTROL))

    @pytest.mark.parametrize("name", CONTROL_PLANE_FILES)
    async def test_a_missing_key_file_stops_control_planes_before_anything_is_made(
        self, world: World, name: str
    ) -> None:
        (world.pki / name).unlink()
        failed = await refusal(world, caller(CONTROL), asking(CONTROL))
        assert failed.code == grpc.UNAVAILABLE
        assert world.api.requests == []
        assert name in world.audit[-1]["reason"]

    async def test_a_bug_is_no_refusal(self, world: World) -> None:
        world.api.faults.append(failing("POST", "/configmaps", ZeroDivisionError()))
        with pytest.raises(ZeroDivisionError):
            await world.ticket(caller(WORKER), asking(WORKER))


class TestRejoin:
    async def test_a_rebooted_node_gets_a_new_certificate_and_nothing_else(self, world: World) -> None:
        await world.ticket(caller(WORKER), asking(WORKER))
        ticket = await world.rejoin(caller(WORKER), REJOINING)
        assert ticket == RejoinTicket("worker-0", ticket.kubelet_certificate)
        assert x509.load_pem_x509_certificate(ticket.kubelet_certificate)
        assert len(world.token_secrets) == 1, "a rejoin needs no token"

    @pytest.mark.parametrize("roles", [frozenset(), frozenset(Role)], ids=["nobody may join", "all may join"])
    async def test_an_instance_that_never_joined_gets_nothing(
        self, world: World, roles: frozenset[Role]
    ) -> None:
        """Whatever the policy says: else a rejoin would be a way around all that a ticket asks for."""
        world.allow(roles=roles)
        blank = caller(WORKER, kind="tpm", facts={"pcr15": "00" * 32})
        with pytest.raises(RpcError, match="worker-0 is not a node of this cluster") as failed:
            await world.rejoin(blank, REJOINING)
        assert failed.value.code == grpc.PERMISSION_DENIED
        assert world.api.objects == {}, "its name is still free"
        assert world.audit[-1]["outcome"] == "refused"

    async def test_a_node_is_recognised_by_reading_alone(self, world: World) -> None:
        await world.ticket(caller(WORKER), asking(WORKER))
        world.api.requests.clear()
        await world.rejoin(caller(WORKER), REJOINING)
        assert [each.method for each in world.api.requests] == ["GET"]

    async def test_a_node_whose_bond_an_operator_has_freed_is_bound_by_its_rejoin(self, world: World) -> None:
        """So is the first node of a cluster, which never asked for a ticket."""
        world.api.put("/api/v1/nodes/worker-0", {"metadata": {"name": "worker-0"}})
        await world.rejoin(caller(WORKER), REJOINING)
        (bond,) = world.api.below("bootbridge-node-worker-0")
        assert bond["data"] == {"identity": WORKER.identity}

    async def test_a_node_may_rejoin_though_no_more_of_its_role_may_join(self, world: World) -> None:
        await world.ticket(caller(WORKER), asking(WORKER))
        world.allow(roles=frozenset())
        await world.rejoin(caller(WORKER), REJOINING)

    async def test_a_control_plane_rejoins_while_another_joins(self, world: World) -> None:
        world.api.put("/api/v1/nodes/control-1", {"metadata": {"name": "control-1"}})
        await world.ticket(caller(CONTROL_2), asking(CONTROL_2))
        await world.rejoin(caller(CONTROL), RejoinRequest("control-1", csr("control-1")))

    async def test_can_be_had_by_one_key_a_few_times_in_a_while(self, world: World) -> None:
        await world.ticket(caller(WORKER), asking(WORKER))
        for _ in range(TICKETS_PER_KEY_MAX):
            await world.rejoin(caller(WORKER), REJOINING)
        with pytest.raises(RpcError, match="16 tickets were given to this key lately") as failed:
            await world.rejoin(caller(WORKER), REJOINING)
        assert failed.value.code == grpc.UNAVAILABLE
        world.now += world.policy.ticket.token_seconds
        await world.rejoin(caller(WORKER), REJOINING)

    async def test_another_key_does_not_get_a_nodes_certificate(self, world: World) -> None:
        await world.ticket(caller(WORKER), asking(WORKER))
        world.instances = (replace(WORKER, identity=CONTROL.identity),)
        with pytest.raises(RpcError, match="is bound to"):
            await world.rejoin(caller(world.instances[0]), REJOINING)

    async def test_a_strangers_rejoin_is_refused(self, world: World) -> None:
        stranger = Instance("stranger", Role.WORKER, (ip_address("10.9.9.9"),))
        with pytest.raises(RpcError, match="no instance is named"):
            await world.rejoin(caller(stranger), RejoinRequest("stranger", csr("stranger")))


class TestAudit:
    async def test_a_ticket_is_one_line_that_says_who_by_what_and_which_token(self, world: World) -> None:
        who = caller(WORKER, kind="tpm", facts={"pcr15": "00" * 32})
        ticket = await world.ticket(who, asking(WORKER))
        assert world.audit == [
            {
                "time": "2027-01-15T08:00:00.000Z",
                "what": "ticket",
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

    async def test_no_secret_is_in_it(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        ticket = await world.ticket(caller(CONTROL), asking(CONTROL))
        written = world.log.getvalue() + caplog.text + repr(ticket) + repr(world.service)
        for secret in (ticket.token.partition(".")[2], MEASUREMENT.secret.hex(), "the content of sa.key"):
            assert secret not in written
        assert repr(MEASUREMENT.secret) not in written

    async def test_a_caller_that_leaves_is_noted(self, world: World) -> None:
        world.api.answering.clear()
        waiting = asyncio.ensure_future(world.ticket(caller(WORKER), asking(WORKER)))
        await until(lambda: world.api.requests)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert world.audit[-1]["reason"] == "the caller left"

    async def test_a_token_whose_making_nobody_waited_for_is_named(self, world: World) -> None:
        """The API server has the request: whoever looks for what became of a token finds it."""

        def hold(request: ApiRequest) -> None:
            if "/secrets" in request.path:
                world.api.answering.clear()

        world.api.faults.append(hold)
        waiting = asyncio.ensure_future(world.ticket(caller(WORKER), asking(WORKER)))
        await until(lambda: not world.api.answering.is_set())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert world.audit[-1]["tokenID"] == asked_for(world)

    async def test_a_token_whose_making_was_not_answered_is_named(self, world: World) -> None:
        world.api.faults.append(failing("POST", "/secrets", KubeUnreachable("the connection was lost")))
        await refusal(world, caller(WORKER), asking(WORKER))
        assert (world.audit[-1]["outcome"], world.audit[-1]["tokenID"]) == ("failed", asked_for(world))

    async def test_a_token_of_somebody_else_is_not_named(self, world: World) -> None:
        world.api.faults.append(failing("POST", "/secrets", KubeError(409, "AlreadyExists", "taken")))
        await refusal(world, caller(WORKER), asking(WORKER))
        assert "tokenID" not in world.audit[-1]

    async def test_a_forged_name_stays_within_its_line(self, world: World) -> None:
        await refusal(world, caller(WORKER), asking(WORKER, node_name='x"}\n{"outcome": "issued'))
        (line,) = world.audit
        assert line["outcome"] == "refused"
