"""Kubelet serving certificates: the node's CSR is checked, and the cluster's CA signs.

A CSR contains the key and proves its possession. Subject and addresses come from the inventory; a CSR that
requests others is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bootbridge.errors import OperatorError
from bootbridge.join_api.errors import JoinRefused
from bootbridge.join_api.instance import IPAddress
from bootbridge.trust.authority import BACKDATED
from bootbridge.trust.certificate_chain import CERTIFICATE_PARSE_ERRORS
from bootbridge.trust.fingerprint import fingerprint

ORGANISATION: Final = "system:nodes"
COMMON_NAME_PREFIX: Final = "system:node:"
# A request with a P-256 key and a handful of addresses is below 1 KiB.
REQUEST_BYTES_MAX: Final = 8 * 1024
# Of a caller's text in a refusal: twice the length of a valid name.
_QUOTED_CHARACTERS_MAX: Final = 128


class KubeletCsr:
    """A parsed CSR with a valid signature; raises JoinRefused. Check the subject with `require_subject`."""

    def __init__(self, der: bytes) -> None:
        if not der:
            raise JoinRefused("CSR missing")
        if len(der) > REQUEST_BYTES_MAX:
            raise JoinRefused(f"CSR larger than {REQUEST_BYTES_MAX} bytes")
        try:
            self._request = x509.load_der_x509_csr(der)
            key = self._request.public_key()
            # Kept: the library parses it again at each access.
            self.subject = self._request.subject
            proven = self._request.is_signature_valid
            self._names = _requested_names(self._request)
        except (InvalidSignature, *CERTIFICATE_PARSE_ERRORS):
            raise JoinRefused("malformed CSR") from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise JoinRefused("CSR: unsupported key type (accepted: P-256)")
        if not proven:
            raise JoinRefused("CSR: invalid signature")
        self.key = key

    def require_subject(self, name: str, addresses: Iterable[IPAddress]) -> None:
        """Refuses another name and other addresses."""
        attributes = [(each.oid, each.value) for each in self.subject]
        organisations = [value for oid, value in attributes if oid == NameOID.ORGANIZATION_NAME]
        if organisations != [ORGANISATION]:
            raise JoinRefused(f"CSR: organisation is not {ORGANISATION} only")
        common_names = [value for oid, value in attributes if oid == NameOID.COMMON_NAME]
        if common_names != [COMMON_NAME_PREFIX + name]:
            quoted = f"{common_names}"[:_QUOTED_CHARACTERS_MAX]
            raise JoinRefused(f"CSR: common name {quoted} (expected {COMMON_NAME_PREFIX}{name})")
        if len(attributes) != 2:
            raise JoinRefused("CSR: subject has more than organisation and common name")
        allowed = set(_alternative_names(name, addresses))
        if others := [str(each.value) for each in self._names if each not in allowed]:
            raise JoinRefused(f"CSR: subject alternative name {others[0]} does not belong to {name}")

    def require_no_attributes(self) -> None:
        """Refuses attributes, such as subject alternative names."""
        try:
            found = len(self._request.attributes) > 0
        except CERTIFICATE_PARSE_ERRORS:
            found = True
        if found:
            raise JoinRefused("CSR: attributes are not allowed")


class KubeletCa:
    """The cluster's CA, from kubeadm's `ca.crt` and `ca.key`."""

    def __init__(self, certificates_pem: bytes, key_pem: bytes) -> None:
        self.certificates = _certificates(certificates_pem)
        self._key = _key(key_pem)
        own = self._key.public_key()
        matching = [each for each in self.certificates if each.public_key() == own]
        if not matching:
            raise OperatorError("private key does not match the certificate in ca.crt", subject="ca.key")
        self._certificate = matching[0]
        self._template = _template(self._certificate.subject, own)
        self._expires = self._certificate.not_valid_after_utc
        # kubeadm's `discovery-token-ca-cert-hash`, one for each CA certificate.
        self.pins = tuple(fingerprint(each.public_key()) for each in self.certificates)

    def sign(
        self,
        request: KubeletCsr,
        name: str,
        addresses: Iterable[IPAddress],
        *,
        now: float,
        validity: timedelta,
    ) -> bytes:
        """Returns PEM with the given name and addresses; it expires no later than the CA."""
        addresses = tuple(addresses)
        request.require_subject(name, addresses)
        began = datetime.fromtimestamp(now, UTC)
        ends = min(began + validity, self._expires)
        if ends <= began:
            raise OperatorError("certificate expired", subject="ca.crt", hint="renew the cluster's CA")
        certificate = (
            # The CSR's own, equal to the expected one: a new name could not exceed X.520's 64 characters.
            self._template.subject_name(request.subject)
            .public_key(request.key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(began - BACKDATED)
            .not_valid_after(ends)
            .add_extension(x509.SubjectAlternativeName(_alternative_names(name, addresses)), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM)


def _template(
    issuer: x509.Name, key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey
) -> x509.CertificateBuilder:
    """Returns what all certificates have in common."""
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_DIGITAL_SIGNATURE, critical=True)
        # Not clientAuth: the API server signs the kubelet's client certificate.
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key), critical=False)
    )


_DIGITAL_SIGNATURE: Final = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


def _requested_names(request: x509.CertificateSigningRequest) -> list[x509.GeneralName]:
    values = [each.value for each in request.extensions]
    return [name for value in values if isinstance(value, x509.SubjectAlternativeName) for name in value]


def _alternative_names(name: str, addresses: Iterable[IPAddress]) -> list[x509.GeneralName]:
    return [x509.DNSName(name), *(x509.IPAddress(each) for each in addresses)]


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise OperatorError("invalid PEM certificate", subject="ca.crt") from None


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    """Parses PKCS #8, or the older formats of EC and RSA keys that kubeadm writes."""
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise OperatorError("invalid PEM private key", subject="ca.key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise OperatorError("unsupported key type (accepted: EC, RSA)", subject="ca.key")
    return key
