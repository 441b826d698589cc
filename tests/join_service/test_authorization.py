"""Claims must match the evidence and the inventory; none is corrected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bootbridge.join_api.errors import JoinRefused
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.messages import RejoinRequest, TicketRequest
from bootbridge.join_api.policy import JoinPolicy
from bootbridge.join_service.authorization import AttestedCaller, Grant, authorize_rejoin, authorize_ticket
from bootbridge.join_service.inventory import InventorySnapshot
from bootbridge.trust.evidence import AttestedPeer
from bootbridge.trust.evidence.configuration import (
    TokenVerifierSettings,
    VerifierSettings,
    X509VerifierSettings,
)
from bootbridge.trust.identity import EvidenceKind
from tests.join_service.environment import (
    CLUSTER,
    CONTROL,
    INSTANCES,
    MEASUREMENT,
    UNENROLLED,
    WORKER,
    caller,
    identity,
)

INVENTORY = InventorySnapshot.of(INSTANCES)
ZERO = "00" * 32


TOKENS = TokenVerifierSettings({"alpha": "0123456789abcdef"})
POLICY = JoinPolicy(
    VerifierSettings(x509=X509VerifierSettings("PEM"), token=TOKENS), INSTANCES, cluster=CLUSTER
)


def authorize(request: TicketRequest, who: AttestedCaller, policy: JoinPolicy = POLICY) -> Grant:
    return authorize_ticket(request, who, InventorySnapshot.of(policy.instances), policy)


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
        authorize(
            TicketRequest("control-1", True), caller(CONTROL), replace(POLICY, roles=frozenset([Role.WORKER]))
        )


class TestBoundIdentity:
    def test_is_the_key_of_the_evidence(self) -> None:
        who = replace(caller(UNENROLLED), attested=AttestedPeer("x509", identity("e")))
        assert authorize(TicketRequest("worker-1"), who).identity == identity("e")

    def test_is_the_token_id_for_token_evidence(self) -> None:
        """An instance that lost its ticket requests another with a new key, but the same token."""
        who = caller(UNENROLLED, kind="token", facts={"token": "alpha"})
        assert authorize(TicketRequest("worker-1"), who).identity == "token:alpha"

    def test_evidence_without_an_identity_is_refused(self) -> None:
        with pytest.raises(JoinRefused, match="other evidence has no identity"):
            authorize(TicketRequest("worker-1"), AttestedCaller(AttestedPeer("other"), "10.0.0.6"))


class TestKind:
    """The policy decides which kinds of evidence earn a ticket, by role and by instance."""

    def with_token(self, instance: Instance) -> AttestedCaller:
        return caller(replace(instance, identity=""), kind="token", facts={"token": "alpha"})

    def policy(self, instance: Instance, **changes: Any) -> JoinPolicy:
        return replace(POLICY, instances=(replace(instance, identity=""),), **changes)

    def test_a_token_does_not_earn_a_control_plane_ticket(self) -> None:
        line = r"write in the join policy: roleEvidence: \{control-plane: \[x509, token\]\}"
        with pytest.raises(JoinRefused, match=rf"token evidence is not accepted for the role .*{line}"):
            authorize(TicketRequest("control-1", True), self.with_token(CONTROL), self.policy(CONTROL))

    def test_a_token_earns_a_control_plane_ticket_if_the_policy_lists_it(self) -> None:
        kinds = {Role.CONTROL_PLANE: (EvidenceKind.X509, EvidenceKind.TOKEN)}
        policy = self.policy(CONTROL, role_evidence=kinds)
        assert authorize(TicketRequest("control-1", True), self.with_token(CONTROL), policy).control_plane

    def test_a_token_earns_no_rejoin_of_a_control_plane(self) -> None:
        policy = self.policy(CONTROL)
        inventory = InventorySnapshot.of(policy.instances)
        with pytest.raises(JoinRefused, match="token evidence is not accepted for the role control-plane"):
            authorize_rejoin(
                RejoinRequest("control-1"),
                self.with_token(CONTROL),
                inventory,
                policy,
                MEASUREMENT.locked_value,
            )

    def test_a_role_may_require_a_kind(self) -> None:
        policy = replace(POLICY, role_evidence={Role.WORKER: (EvidenceKind.X509,)})
        with pytest.raises(JoinRefused, match="token evidence is not accepted for the role worker"):
            authorize(TicketRequest("worker-1"), self.with_token(UNENROLLED), policy)

    def test_an_instance_may_require_a_kind(self) -> None:
        entry = replace(UNENROLLED, evidence=(EvidenceKind.X509,))
        policy = replace(POLICY, instances=(entry,))
        with pytest.raises(JoinRefused, match=r"worker-1: token evidence presented \(accepted: x509\)"):
            authorize(TicketRequest("worker-1"), self.with_token(UNENROLLED), policy)
        who = replace(caller(UNENROLLED), attested=AttestedPeer("x509", identity("e")))
        assert authorize(TicketRequest("worker-1"), who, policy).name == "worker-1"

    def test_an_inventory_cannot_accept_what_the_policy_does_not(self) -> None:
        """A metadata service may be less trusted than the policy."""
        entry = replace(CONTROL, identity="", evidence=(EvidenceKind.TOKEN,))
        with pytest.raises(JoinRefused, match="token evidence is not accepted for the role control-plane"):
            authorize(
                TicketRequest("control-1", True),
                self.with_token(CONTROL),
                replace(POLICY, instances=(entry,)),
            )

    def test_a_listed_key_of_another_kind_is_another_key(self) -> None:
        who = AttestedCaller(AttestedPeer("x509", identity("a")), "10.0.0.5")
        with pytest.raises(JoinRefused, match="worker-0: the inventory has another key than the evidence's"):
            authorize(TicketRequest("worker-0"), who)

    def test_a_listed_token_is_accepted_from_the_addresses_of_its_instance_only(self) -> None:
        policy = replace(POLICY, instances=(replace(UNENROLLED, identity="token:alpha"),))
        who = self.with_token(UNENROLLED)
        assert authorize(TicketRequest("worker-1"), who, policy).identity == "token:alpha"
        with pytest.raises(JoinRefused, match=r"worker-1: call from address 10\.0\.0\.9"):
            authorize(TicketRequest("worker-1"), replace(who, address="10.0.0.9"), policy)


class TestLockRegister:
    """A locked instance gets no other ticket until it reboots."""

    def caller_with(self, value: str) -> AttestedCaller:
        return caller(WORKER, kind="tpm", facts={"pcr15": value} if value else {})

    def rejoin(self, value: str) -> Grant:
        return authorize_rejoin(
            RejoinRequest("worker-0"), self.caller_with(value), INVENTORY, POLICY, MEASUREMENT.locked_value
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
