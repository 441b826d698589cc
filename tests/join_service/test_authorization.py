"""Claims must match the evidence and the inventory; none is corrected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bootbridge.join_api.errors import JoinRefused
from bootbridge.join_api.instance import Role
from bootbridge.join_api.messages import RejoinRequest, TicketRequest
from bootbridge.join_service.authorization import AttestedCaller, Grant, authorize_rejoin, authorize_ticket
from bootbridge.join_service.inventory import InventorySnapshot
from bootbridge.trust.evidence import AttestedPeer
from tests.join_service.environment import (
    CONTROL,
    INSTANCES,
    MEASUREMENT,
    UNENROLLED,
    WORKER,
    caller,
    identity,
)

INVENTORY = InventorySnapshot.of(INSTANCES)
KEY = "sha256:of the kubelet's key"
ZERO = "00" * 32


def authorize(request: TicketRequest, who: AttestedCaller, roles: frozenset[Role] = frozenset(Role)) -> Grant:
    return authorize_ticket(request, KEY, who, INVENTORY, roles)


def test_the_grant_has_the_inventorys_values() -> None:
    assert authorize(TicketRequest("worker-0"), caller(WORKER)) == Grant(
        WORKER, "worker-0", Role.WORKER, WORKER.identity
    )
    assert authorize(TicketRequest("control-1", True), caller(CONTROL)).control_plane


def test_the_name_of_another_instance_is_refused() -> None:
    with pytest.raises(JoinRefused, match="'worker-1' requested, but the evidence's key belongs to worker-0"):
        authorize(TicketRequest("worker-1"), caller(WORKER))


@pytest.mark.parametrize("name", ["", "-", "Worker-0", "worker_0", "../x", "x" * 300])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(JoinRefused):
        authorize(TicketRequest(name), caller(WORKER))


@pytest.mark.parametrize(("instance", "claim"), [(WORKER, True), (CONTROL, False)])
def test_another_role_than_the_inventorys_is_refused(instance: object, claim: bool) -> None:
    assert isinstance(instance, type(WORKER))
    with pytest.raises(JoinRefused, match=r"role .* requested, but the inventory has"):
        authorize(TicketRequest(instance.name, claim), caller(instance))


def test_a_role_that_is_not_in_the_policy_is_refused() -> None:
    with pytest.raises(JoinRefused, match="role control-plane is not in the join policy's roles"):
        authorize(TicketRequest("control-1", True), caller(CONTROL), frozenset([Role.WORKER]))


class TestBoundIdentity:
    def test_is_the_key_of_the_evidence(self) -> None:
        who = replace(caller(UNENROLLED), attested=AttestedPeer("x509", identity("e")))
        assert authorize(TicketRequest("worker-1"), who).identity == identity("e")

    def test_is_the_token_id_for_token_evidence(self) -> None:
        """An instance that lost its ticket requests another with a new key, but the same token."""
        who = caller(UNENROLLED, kind="token", facts={"token": "alpha"})
        assert authorize(TicketRequest("worker-1"), who).identity == "token:alpha"

    def test_is_the_kubelets_key_otherwise(self) -> None:
        assert authorize(TicketRequest("worker-1"), caller(UNENROLLED, kind="other")).identity == KEY


class TestLockRegister:
    """A locked instance gets no other ticket until it reboots."""

    def caller_with(self, value: str) -> AttestedCaller:
        return caller(WORKER, kind="tpm", facts={"pcr15": value} if value else {})

    def rejoin(self, value: str) -> Grant:
        return authorize_rejoin(
            RejoinRequest("worker-0"), KEY, self.caller_with(value), INVENTORY, MEASUREMENT.locked_value
        )

    def test_zero_is_accepted(self) -> None:
        assert authorize(TicketRequest("worker-0"), self.caller_with(ZERO)).name == "worker-0"

    @pytest.mark.parametrize("value", [MEASUREMENT.locked_value, "ab" * 32])
    def test_any_other_value_is_refused(self, value: str) -> None:
        with pytest.raises(JoinRefused, match=f"PCR 15 is {value}.*reboot"):
            authorize(TicketRequest("worker-0"), self.caller_with(value))

    def test_a_missing_value_is_refused(self) -> None:
        with pytest.raises(JoinRefused, match="evidence without PCR 15"):
            authorize(TicketRequest("worker-0"), self.caller_with(""))

    @pytest.mark.parametrize("value", [ZERO, MEASUREMENT.locked_value])
    def test_a_node_of_this_cluster_rejoins_before_and_after_it_is_locked(self, value: str) -> None:
        assert self.rejoin(value).name == "worker-0"

    def test_a_rejoin_of_another_clusters_node_is_refused(self) -> None:
        with pytest.raises(JoinRefused, match="PCR 15"):
            self.rejoin("ab" * 32)

    def test_the_locked_value_of_a_known_secret(self) -> None:
        assert MEASUREMENT.locked_value == "23400370357e846478cce7cc0c76cdfe4da077cc57b36dee0f665ede2c8b3f2f"
