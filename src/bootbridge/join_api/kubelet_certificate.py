"""Certificates that kubelets serve with: asked for by a node, worded by the inventory, signed by the cluster.

A certificate request says which key shall be certified and proves that the caller has it. Who the key belongs
to is not the caller's to say: subject and addresses are compared with the inventory's and taken from there.
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
# Of a caller's words, in a refusal: twice what fits into a sound name.
_TOLD_CHARACTERS_MAX: Final = 128


class KubeletCsr:
    """A certificate request that proves its key; whom it is for is yet to be compared."""

    def __init__(self, der: bytes) -> None:
        if not der:
            raise JoinRefused("the certificate request is missing")
        if len(der) > REQUEST_BYTES_MAX:
            raise JoinRefused(f"the certificate request exceeds {REQUEST_BYTES_MAX} bytes")
        try:
            self._request = x509.load_der_x509_csr(der)
            key = self._request.public_key()
            # The library reads it anew each time it is asked.
            self.subject = self._request.subject
            proven = self._request.is_signature_valid
            self._names = _names_asked_for(self._request)
        except (InvalidSignature, *CERTIFICATE_PARSE_ERRORS):
            raise JoinRefused("the certificate request cannot be read") from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise JoinRefused("the certificate request's key is not on the curve P-256")
        if not proven:
            raise JoinRefused("the certificate request is not signed with its own key")
        self.key = key

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)

    def require_subject(self, name: str, addresses: Iterable[IPAddress]) -> None:
        """Refuses a request that asks to be anybody else, or at any other address."""
        attributes = [(each.oid, each.value) for each in self.subject]
        organisations = [value for oid, value in attributes if oid == NameOID.ORGANIZATION_NAME]
        if organisations != [ORGANISATION]:
            raise JoinRefused(f"the certificate request's organisation is not {ORGANISATION} alone")
        common_names = [value for oid, value in attributes if oid == NameOID.COMMON_NAME]
        if common_names != [COMMON_NAME_PREFIX + name]:
            told = f"{common_names}"[:_TOLD_CHARACTERS_MAX]
            raise JoinRefused(
                f"the certificate request's common name is not {COMMON_NAME_PREFIX}{name} but {told}"
            )
        if len(attributes) != 2:
            raise JoinRefused("the certificate request's subject says more than organisation and common name")
        allowed = set(_alternative_names(name, addresses))
        if others := [str(each.value) for each in self._names if each not in allowed]:
            raise JoinRefused(f"the certificate request asks for {others[0]}, which is not {name}'s")

    def require_no_attributes(self) -> None:
        """Refuses whatever comes beside subject and key; alternative names would come as an attribute."""
        try:
            more = len(self._request.attributes) > 0
        except CERTIFICATE_PARSE_ERRORS:
            more = True
        if more:
            raise JoinRefused("the certificate request asks for more than its subject")


class KubeletCa:
    """The cluster's authority, as kubeadm keeps it: `ca.crt` and `ca.key`."""

    def __init__(self, certificates_pem: bytes, key_pem: bytes) -> None:
        self.certificates = _certificates(certificates_pem)
        self._key = _key(key_pem)
        own = self._key.public_key()
        matching = [each for each in self.certificates if each.public_key() == own]
        if not matching:
            raise OperatorError("does not belong to the certificate in ca.crt", subject="ca.key")
        self._certificate = matching[0]
        self._form = _form(self._certificate.subject, own)
        self._expires = self._certificate.not_valid_after_utc
        # kubeadm's `discovery-token-ca-cert-hash`, one for each of the cluster's authorities.
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
        """PEM; subject and alternative names are the inventory's. It never outlives the authority."""
        addresses = tuple(addresses)
        request.require_subject(name, addresses)
        began = datetime.fromtimestamp(now, UTC)
        ends = min(began + validity, self._expires)
        if ends <= began:
            raise OperatorError("the cluster's authority has expired", subject="ca.crt", hint="renew it")
        certificate = (
            # Compared word by word above; made anew it could not be longer than X.520's 64 characters.
            self._form.subject_name(request.subject)
            .public_key(request.key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(began - BACKDATED)
            .not_valid_after(ends)
            .add_extension(x509.SubjectAlternativeName(_alternative_names(name, addresses)), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM)


def _form(issuer: x509.Name, key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey) -> x509.CertificateBuilder:
    """What is the same in all of them: made once, and filled in for each."""
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_DIGITAL_SIGNATURE, critical=True)
        # Not clientAuth: as a client the kubelet is certified by the API server, on its own request.
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


def _names_asked_for(request: x509.CertificateSigningRequest) -> list[x509.GeneralName]:
    values = [each.value for each in request.extensions]
    return [name for value in values if isinstance(value, x509.SubjectAlternativeName) for name in value]


def _alternative_names(name: str, addresses: Iterable[IPAddress]) -> list[x509.GeneralName]:
    return [x509.DNSName(name), *(x509.IPAddress(each) for each in addresses)]


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise OperatorError("holds no certificate in PEM form", subject="ca.crt") from None


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    """PKCS #8, or the older forms of EC and RSA keys that kubeadm writes."""
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise OperatorError("holds no usable private key in PEM form", subject="ca.key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise OperatorError("is neither an EC nor an RSA key", subject="ca.key")
    return key
