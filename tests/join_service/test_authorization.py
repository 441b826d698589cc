"""What a caller says of itself must be what is known about it; nothing is corrected in its favour."""

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

LISTED = InventorySnapshot.of(INSTANCES)
KEY = "sha256:of the kubelet's key"
ZERO = "00" * 32


def judged(request: TicketRequest, who: AttestedCaller, roles: frozenset[Role] = frozenset(Role)) -> Grant:
    return authorize_ticket(request, KEY, who, LISTED, roles)


def test_an_honest_instance_is_granted_what_the_inventory_says() -> None:
    assert judged(TicketRequest("worker-0"), caller(WORKER)) == Grant(
        WORKER, "worker-0", Role.WORKER, WORKER.identity
    )
    assert judged(TicketRequest("control-1", True), caller(CONTROL)).control_plane


def test_another_instances_name_is_refused() -> None:
    with pytest.raises(JoinRefused, match="says it is 'worker-1', but by its key it is worker-0"):
        judged(TicketRequest("worker-1"), caller(WORKER))


@pytest.mark.parametrize("name", ["", "-", "Worker-0", "worker_0", "../x", "x" * 300])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(JoinRefused):
        judged(TicketRequest(name), caller(WORKER))


@pytest.mark.parametrize(("instance", "claim"), [(WORKER, True), (CONTROL, False)])
def test_another_role_than_the_listed_one_is_refused(instance: object, claim: bool) -> None:
    assert isinstance(instance, type(WORKER))
    with pytest.raises(JoinRefused, match=r"asks to be a .*listed as a"):
        judged(TicketRequest(instance.name, claim), caller(instance))


def test_a_role_that_the_policy_does_not_let_in_is_refused() -> None:
    with pytest.raises(JoinRefused, match="lets no control-plane join now"):
        judged(TicketRequest("control-1", True), caller(CONTROL), frozenset([Role.WORKER]))


class TestHolder:
    """What a node's name will be bound to."""

    def test_is_the_evidences_own_key(self) -> None:
        who = replace(caller(UNENROLLED), attested=AttestedPeer("x509", identity("e")))
        assert judged(TicketRequest("worker-1"), who).holder == identity("e")

    def test_is_the_token_where_there_is_one(self) -> None:
        """An instance that lost its ticket asks again, with a new key but with its own token."""
        who = caller(UNENROLLED, kind="token", facts={"token": "alpha"})
        assert judged(TicketRequest("worker-1"), who).holder == "token:alpha"

    def test_is_else_the_kubelets_key(self) -> None:
        assert judged(TicketRequest("worker-1"), caller(UNENROLLED, kind="other")).holder == KEY


class TestLockRegister:
    """An instance that is bound to a cluster gets no other ticket until it reboots."""

    def shows(self, value: str) -> AttestedCaller:
        return caller(WORKER, kind="tpm", facts={"pcr15": value} if value else {})

    def rejoin(self, value: str) -> Grant:
        return authorize_rejoin(
            RejoinRequest("worker-0"), KEY, self.shows(value), LISTED, MEASUREMENT.locked_value
        )

    def test_zero_gets_a_ticket(self) -> None:
        assert judged(TicketRequest("worker-0"), self.shows(ZERO)).name == "worker-0"

    @pytest.mark.parametrize("value", [MEASUREMENT.locked_value, "ab" * 32])
    def test_anything_else_gets_none(self, value: str) -> None:
        with pytest.raises(JoinRefused, match=f"PCR 15 is {value}.*reboot"):
            judged(TicketRequest("worker-0"), self.shows(value))

    def test_not_shown_gets_none(self) -> None:
        with pytest.raises(JoinRefused, match="does not show PCR 15"):
            judged(TicketRequest("worker-0"), self.shows(""))

    @pytest.mark.parametrize("value", [ZERO, MEASUREMENT.locked_value])
    def test_a_node_of_this_cluster_rejoins_before_and_after_it_measured(self, value: str) -> None:
        assert self.rejoin(value).name == "worker-0"

    def test_a_node_of_another_cluster_does_not_rejoin_this_one(self) -> None:
        with pytest.raises(JoinRefused, match="PCR 15"):
            self.rejoin("ab" * 32)

    def test_the_locked_value_is_the_known_one(self) -> None:
        assert MEASUREMENT.locked_value == "23400370357e846478cce7cc0c76cdfe4da077cc57b36dee0f665ede2c8b3f2f"
