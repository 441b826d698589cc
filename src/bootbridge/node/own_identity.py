"""The identity of this instance as its evidence proves it, and as a join policy lists it.

An operator runs `bootbridge node enrol` on the machine, because the identity must be read from its TPM or
key, not taken from a request.
"""

from __future__ import annotations

from typing import Any

from bootbridge.join_api.instance import Instance
from bootbridge.trust.evidence import AttestedPeer, Issuer
from bootbridge.trust.evidence.token import TokenIssuer
from bootbridge.trust.evidence.tpm import TpmIssuer
from bootbridge.trust.evidence.x509 import X509Issuer


async def evidence_identity(issuer: Issuer) -> str:
    """Returns the value of `AttestedPeer.identity`. Raises EvidenceUnavailable."""
    if isinstance(issuer, TpmIssuer):
        return await issuer.identity()
    return issuer.identity if isinstance(issuer, X509Issuer | TokenIssuer) else ""


async def own_attestation(issuer: Issuer) -> AttestedPeer:
    """Returns what a verifier will find about this instance, without measured facts."""
    facts: dict[str, str] = {"token": issuer.id} if isinstance(issuer, TokenIssuer) else {}
    return AttestedPeer(issuer.kind, await evidence_identity(issuer), facts)


def policy_entry(instance: Instance, identity: str) -> dict[str, Any]:
    """Returns one element of the policy's `instances`."""
    entry = {
        "name": instance.name,
        "role": str(instance.role),
        "addresses": [str(address) for address in instance.addresses],
        "providerID": instance.provider_id,
        "identity": identity,
    }
    return {name: value for name, value in entry.items() if value}
