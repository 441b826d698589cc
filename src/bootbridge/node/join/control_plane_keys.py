"""Requires that a peer which acts as a control plane has the key of a listed control plane.

Evidence proves that a machine is trusted by an authority, not which machine it is. One authority may vouch
for many machines, including workers and machines of other clusters.
"""

from __future__ import annotations

from collections.abc import Iterable

from bootbridge.join_api.instance import Instance, Role
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused


def require_control_plane_key(
    peer: AttestedPeer, listed: Iterable[Instance], *, subject: str, source: str
) -> None:
    """Raises EvidenceRefused unless `peer` has a listed control plane's key, or no such key is listed.

    `source` names the list in the error.
    """
    by_identity = {each.identity: each for each in listed if each.identity}
    found = by_identity.get(peer.identity)
    if found is None:
        if any(each.role is Role.CONTROL_PLANE for each in by_identity.values()):
            raise EvidenceRefused(
                f"{subject}: key {peer.identity} is not that of a control plane in {source}"
            )
    elif found.role is not Role.CONTROL_PLANE:
        raise EvidenceRefused(f"{subject}: has the key of {found.name}, which is a {found.role} in {source}")
