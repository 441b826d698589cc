"""Issues the certificates of one tunnel: a CA, the server's certificate and the agents' certificate.

The CA key exists only in memory, while it signs. If `renewal_reason` returns a reason, all certificates are
issued again, and the manifests rendered again. The generated shell does the same with openssl and passes the
same tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from bootbridge.bootstrap.plan.plan import IPAddress, KeyKind, Plan
from bootbridge.common.files import Asset, Tree
from bootbridge.trust.authority import RENEWAL_FRACTION, Authority, Certificate

CERT_MODE, KEY_MODE = 0o644, 0o600


@dataclass(frozen=True)
class CertificateSet:
    """Holds what the server and the agents need. The CA key is not included."""

    ca_cert: bytes
    server: Certificate
    agent: Certificate


def issue(plan: Plan, addresses: Sequence[IPAddress]) -> CertificateSet:
    """Creates a CA and issues both certificates. The CA key is discarded."""
    authority = Authority.create(plan.ca_common_name, key=plan.key_kind, validity=plan.validity)
    return CertificateSet(
        authority.cert_pem,
        authority.issue_server(map(str, addresses), common_name=plan.server_common_name),
        authority.issue_client(plan.agent_common_name),
    )


def files(plan: Plan, bundle: CertificateSet) -> Tree:
    """Returns the files on the node. Only their owner can read the keys."""
    paths = plan.paths
    return {
        paths.ca_cert: Asset(bundle.ca_cert, CERT_MODE),
        paths.server_key: Asset(bundle.server.key_pem, KEY_MODE),
        paths.server_cert: Asset(bundle.server.cert_pem, CERT_MODE),
        paths.agent_key: Asset(bundle.agent.key_pem, KEY_MODE),
        paths.agent_cert: Asset(bundle.agent.cert_pem, CERT_MODE),
    }


def load(root: Path, plan: Plan) -> CertificateSet | None:
    """Reads the files below `root`. Returns None if one is missing or unreadable."""

    def read(path: str) -> bytes:
        return (root / path.lstrip("/")).read_bytes()

    paths = plan.paths
    try:
        return CertificateSet(
            read(paths.ca_cert),
            Certificate(read(paths.server_cert), read(paths.server_key)),
            Certificate(read(paths.agent_cert), read(paths.agent_key)),
        )
    except OSError:
        return None


def renewal_reason(
    bundle: CertificateSet | None, plan: Plan, addresses: Sequence[IPAddress], now: datetime
) -> str:
    """Returns why the certificates must be renewed; empty if they are valid."""
    if bundle is None:
        return "certificates missing or unreadable"
    try:
        ca = x509.load_pem_x509_certificate(bundle.ca_cert)
        server = x509.load_pem_x509_certificate(bundle.server.cert_pem)
        agent = x509.load_pem_x509_certificate(bundle.agent.cert_pem)
        keys = [load_pem_private_key(each.key_pem, None) for each in (bundle.server, bundle.agent)]
    except (ValueError, TypeError) as error:
        return f"invalid certificate or key: {type(error).__name__}"
    if any(leaf.public_key() != key.public_key() for leaf, key in zip((server, agent), keys, strict=True)):
        return "certificate and key do not match"
    if not all(_signed_by(ca, each) for each in (ca, server, agent)):
        return "certificates are not signed by this CA"
    if any(_key_kind(each) != plan.key_kind for each in (ca, server, agent)):
        return f"key type is not {plan.key_kind}"
    return _address_mismatch(server, addresses) or _expiry_reason((ca, server, agent), plan, now)


def _address_mismatch(server: x509.Certificate, addresses: Sequence[IPAddress]) -> str:
    held = set(addresses_of(server))
    if held == set(addresses):
        return ""
    listed = ", ".join(sorted(map(str, held))) or "none"
    return f"node addresses changed: the certificate contains {listed}"


def _expiry_reason(certificates: Sequence[x509.Certificate], plan: Plan, now: datetime) -> str:
    if any(now < each.not_valid_before_utc for each in certificates):
        return "certificates are not valid yet"
    ends = min(each.not_valid_after_utc for each in certificates)
    if now >= ends:
        return f"certificates expired at {ends:%Y-%m-%dT%H:%M:%SZ}"
    if ends - now < plan.validity / RENEWAL_FRACTION:
        return f"certificates expire soon, at {ends:%Y-%m-%dT%H:%M:%SZ}"
    return ""


def _signed_by(ca: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _key_kind(certificate: x509.Certificate) -> KeyKind | None:
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size == 2048:
        return "rsa-2048"
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return "ecdsa-p256"
    return None


def addresses_of(certificate: x509.Certificate) -> tuple[IPAddress, ...]:
    """Returns the IP addresses in a certificate, in its order."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    found = names.get_values_for_type(x509.IPAddress)
    return tuple(each for each in found if each.version in (4, 6))  # type: ignore[misc]
