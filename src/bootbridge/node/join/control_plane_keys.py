"""Whose key a machine that answers as a control plane must have: evidence shows a machine of ours, not which.

Once the keys of control planes are listed, only these will do. An authority vouches for many machines, and
somebody else's may be among them.
"""

from __future__ import annotations

from collections.abc import Iterable

from bootbridge.join_api.instance import Instance, Role
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused


def refuse_others(peer: AttestedPeer, listed: Iterable[Instance], *, called: str, by: str) -> None:
    """Unless `peer` has a listed control plane's key, or none is listed; `by` is whose list it is."""
    named = {each.identity: each for each in listed if each.identity}
    found = named.get(peer.identity)
    if found is None:
        if any(each.role is Role.CONTROL_PLANE for each in named.values()):
            shown = f"the key {peer.identity}" if peer.identity else f"{peer.kind} evidence, which has no key"
            raise EvidenceRefused(f"{called} shows {shown}; {by} lists no control plane with it")
    elif found.role is not Role.CONTROL_PLANE:
        raise EvidenceRefused(f"{called} shows the key of {found.name}, which is a {found.role} in {by}")
