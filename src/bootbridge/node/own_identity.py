"""This instance as a join policy would list it: how an operator enrols a machine, on the machine itself.

The identity must come from the chip or key here, over a way the operator trusts, and not from whoever asks to
be enrolled.
"""

from __future__ import annotations

from typing import Any

from bootbridge.join_api.instance import Instance
from bootbridge.trust.evidence import AttestedPeer, Issuer
from bootbridge.trust.evidence.token import TokenIssuer
from bootbridge.trust.evidence.tpm import TpmIssuer
from bootbridge.trust.evidence.x509 import X509Issuer


async def evidence_identity(issuer: Issuer) -> str:
    """As `AttestedPeer.identity` will be; empty for a kind that knows no key. Raises EvidenceUnavailable."""
    if isinstance(issuer, TpmIssuer):
        return await issuer.identity()
    return issuer.identity if isinstance(issuer, X509Issuer) else ""


async def own_attestation(issuer: Issuer) -> AttestedPeer:
    """Who a verifier will find this machine to be, without what is measured."""
    facts = {"token": issuer.id} if isinstance(issuer, TokenIssuer) else {}
    return AttestedPeer(issuer.kind, await evidence_identity(issuer), facts)


def policy_entry(instance: Instance, identity: str) -> dict[str, Any]:
    """One element of the policy's `instances`."""
    entry = {
        "name": instance.name,
        "role": str(instance.role),
        "addresses": [str(address) for address in instance.addresses],
        "providerID": instance.provider_id,
        "identity": identity,
    }
    return {name: value for name, value in entry.items() if value}
