"""Is what a caller says of itself what is known about it? Request, evidence and inventory in, grant out.

Nothing that a caller claims goes into its ticket. A claim that differs from the inventory is refused, not
corrected: the instance is misconfigured, or it is not who it says.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from bootbridge.errors import OperatorError
from bootbridge.join_api.errors import JoinRefused
from bootbridge.join_api.instance import Instance, Role, node_name
from bootbridge.join_api.messages import RejoinRequest, TicketRequest
from bootbridge.join_service.inventory import InventorySnapshot
from bootbridge.trust.evidence import AttestedPeer, tpm

# Kinds whose evidence shows the lock register. The others cannot show that an instance is not locked.
KINDS_WITH_LOCK_REGISTER: Final = (tpm.KIND,)


@dataclass(frozen=True)
class AttestedCaller:
    """Who is at the other end of an attested channel."""

    attested: AttestedPeer
    address: str


@dataclass(frozen=True)
class Grant:
    """What a caller was found to be."""

    instance: Instance
    name: str
    role: Role
    # What its node name is bound to for ever: see name_binding.py.
    holder: str

    @property
    def control_plane(self) -> bool:
        return self.role is Role.CONTROL_PLANE


def authorize_ticket(
    request: TicketRequest,
    key: str,
    caller: AttestedCaller,
    listed: InventorySnapshot,
    roles: Collection[Role],
) -> Grant:
    """`key` is the fingerprint of the key in the certificate request."""
    grant = _judge(request.node_name, key, caller, listed)
    claimed = Role.CONTROL_PLANE if request.control_plane else Role.WORKER
    if claimed is not grant.role:
        raise JoinRefused(f"{grant.name} asks to be a {claimed}, but it is listed as a {grant.role}")
    if grant.role not in roles:
        raise JoinRefused(f"{grant.name} is a {grant.role}, and the policy lets no {grant.role} join now")
    _must_be_unlocked(caller.attested)
    return grant


def authorize_rejoin(
    request: RejoinRequest, key: str, caller: AttestedCaller, listed: InventorySnapshot, locked_value: str
) -> Grant:
    """`locked_value`: what this cluster's nodes have in their lock register, in hex."""
    grant = _judge(request.node_name, key, caller, listed)
    _must_be_unlocked(caller.attested, locked_value)
    return grant


def _judge(claimed_name: str, key: str, caller: AttestedCaller, listed: InventorySnapshot) -> Grant:
    try:
        claimed = node_name(claimed_name)
    except OperatorError as error:
        raise JoinRefused(str(error)) from None
    instance = listed.caller(caller.attested, claimed, caller.address)
    name = node_name(instance.name)
    if claimed_name != name:
        raise JoinRefused(f"the caller says it is {claimed_name!r}, but by its key it is {name}")
    return Grant(instance, name, instance.role, identity_for_binding(caller.attested, key))


def identity_for_binding(attested: AttestedPeer, key: str = "") -> str:
    """The evidence's own key. A token has none but is one node's; else the key of the kubelet counts."""
    if attested.identity:
        return attested.identity
    if token := attested.facts.get("token", ""):
        return f"token:{token}"
    return key


def _must_be_unlocked(attested: AttestedPeer, *others: str) -> None:
    if attested.kind not in KINDS_WITH_LOCK_REGISTER:
        return
    value = attested.facts.get(tpm.LOCK_FACT, "")
    if not value:
        raise JoinRefused("the evidence does not show PCR 15, which tells whether the instance is locked")
    if value.strip("0") and value not in others:
        raise JoinRefused(
            f"PCR 15 is {value}: the instance has been bound to a cluster since it booted; reboot it"
        )
