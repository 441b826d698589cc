"""Compares a request's claims with the evidence and the inventory; the result is a grant.

A ticket contains nothing that the caller claimed. A claim that differs from the inventory is refused, not
corrected: the instance is misconfigured, or it is another machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bootbridge.errors import OperatorError
from bootbridge.join_api.errors import JoinRefused
from bootbridge.join_api.instance import Instance, Role, node_name
from bootbridge.join_api.messages import RejoinRequest, TicketRequest
from bootbridge.join_api.policy import JoinPolicy
from bootbridge.join_service.inventory import InventorySnapshot
from bootbridge.trust.evidence import AttestedPeer, tpm

# Kinds whose evidence contains the lock register. Other kinds cannot show that an instance is unlocked.
KINDS_WITH_LOCK_REGISTER: Final = (tpm.KIND,)


@dataclass(frozen=True)
class AttestedCaller:
    """The peer of an attested channel, and its address."""

    attested: AttestedPeer
    address: str


@dataclass(frozen=True)
class Grant:
    """The instance that the caller is, with the name and role that it may have."""

    instance: Instance
    name: str
    role: Role
    # What the node name is bound to: see name_bindings.py.
    identity: str

    @property
    def control_plane(self) -> bool:
        return self.role is Role.CONTROL_PLANE


def authorize_ticket(
    request: TicketRequest, caller: AttestedCaller, inventory: InventorySnapshot, policy: JoinPolicy
) -> Grant:
    """Raises JoinRefused."""
    grant = _authorize(request.node_name, caller, inventory, policy)
    claimed = Role.CONTROL_PLANE if request.control_plane else Role.WORKER
    if claimed is not grant.role:
        raise JoinRefused(f"{grant.name}: role {claimed} requested, but the inventory has {grant.role}")
    if grant.role not in policy.roles:
        raise JoinRefused(f"{grant.name}: role {grant.role} is not in the join policy's roles")
    _require_unlocked(caller.attested)
    return grant


def authorize_rejoin(
    request: RejoinRequest,
    caller: AttestedCaller,
    inventory: InventorySnapshot,
    policy: JoinPolicy,
    locked_value: str,
) -> Grant:
    """Raises JoinRefused. `locked_value` is the lock register's value on this cluster's nodes, in hex."""
    grant = _authorize(request.node_name, caller, inventory, policy)
    _require_unlocked(caller.attested, locked_value)
    return grant


def _authorize(
    claimed_name: str, caller: AttestedCaller, inventory: InventorySnapshot, policy: JoinPolicy
) -> Grant:
    try:
        claimed = node_name(claimed_name)
    except OperatorError as error:
        raise JoinRefused(str(error)) from None
    if not caller.attested.identity:
        raise JoinRefused(
            f"{caller.attested.kind} evidence has no identity that a node name could be bound to"
        )
    instance = inventory.find_caller(caller.attested, claimed, caller.address)
    name = node_name(instance.name)
    if claimed_name != name:
        raise JoinRefused(f"node name {claimed_name!r} requested, but the evidence's key belongs to {name}")
    _require_kind(name, caller.attested.kind, instance, policy)
    return Grant(instance, name, instance.role, caller.attested.identity)


def _require_kind(name: str, kind: str, instance: Instance, policy: JoinPolicy) -> None:
    """Both must accept it: an inventory cannot accept what the policy does not accept for the role."""
    if instance.evidence and kind not in instance.evidence:
        raise JoinRefused(f"{name}: {kind} evidence presented (accepted: {', '.join(instance.evidence)})")
    if problem := policy.kind_problem(kind, instance.role):
        raise JoinRefused(f"{name}: {problem}")


def _require_unlocked(attested: AttestedPeer, *allowed: str) -> None:
    if attested.kind not in KINDS_WITH_LOCK_REGISTER:
        return
    value = attested.facts.get(tpm.LOCK_FACT, "")
    if not value:
        raise JoinRefused("evidence without PCR 15, which shows whether the instance is locked")
    if value.strip("0") and value not in allowed:
        raise JoinRefused(f"PCR 15 is {value}: the instance joined a cluster since it booted (reboot it)")
