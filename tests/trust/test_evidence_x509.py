"""Evidence by certificate: chains, sessions and keys that are accepted or refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier
from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.errors import OperatorError
from bootbridge.trust.authority import Authority, KeyKind
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused
from bootbridge.trust.evidence.x509 import PrivateKey, Usage, X509Evidence, X509Issuer, X509Verifier

BINDING = bytes(range(32))
OTHER_BINDING = bytes(range(1, 33))
NOW = datetime(2026, 11, 16, tzinfo=UTC)
DAY = timedelta(days=1)


class Certificate:
    """A certificate with its key; it can issue others."""

    def __init__(
        self,
        name: str,
        issuer: Certificate | None = None,
        *,
        key: PrivateKey | None = None,
        authority: bool = False,
        path_length: int | None = None,
        usage: ObjectIdentifier | None = ExtendedKeyUsageOID.CLIENT_AUTH,
        starts: datetime = NOW - DAY,
        ends: datetime = NOW + DAY,
        critical: ObjectIdentifier | None = None,
        key_usage: x509.KeyUsage | None = None,
    ) -> None:
        self.key = key or ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = issuer.key if issuer else self.key
        builder = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(issuer.name if issuer else self.name)
            .public_key(self.key.public_key())
            .serial_number(0xABC)
            .not_valid_before(starts)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=path_length), critical=True)
        )
        if usage is not None and not authority:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if key_usage is not None:
            builder = builder.add_extension(key_usage, critical=True)
        if critical is not None:
            builder = builder.add_extension(x509.UnrecognizedExtension(critical, b"\5\0"), critical=True)
        digest = None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()
        self.certificate = builder.sign(signer, digest)

    def issuer(self, *others: Certificate) -> X509Issuer:
        return X509Issuer([self.certificate, *(each.certificate for each in others)], self.key)


ROOT = Certificate("root", authority=True)


def verifier(*authorities: Certificate, usage: Usage = Usage.CLIENT) -> X509Verifier:
    return X509Verifier([each.certificate for each in authorities or (ROOT,)], usage=usage, clock=lambda: NOW)


async def refusal(issuer: X509Issuer, verifies: X509Verifier, binding: bytes = BINDING) -> str:
    document = await issuer.issue(BINDING)
    with pytest.raises(EvidenceRefused) as raised:
        verifies.begin(binding).verify_evidence(document)
    return str(raised.value)


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP256R1()),
        rsa.generate_private_key(public_exponent=65537, key_size=2048),
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=["P-256", "RSA", "Ed25519"],
)
async def test_a_trusted_certificate_is_accepted(key: PrivateKey) -> None:
    issuer = Certificate("node-1", ROOT, key=key).issuer()
    found = verifier().begin(BINDING).verify_evidence(await issuer.issue(BINDING))
    assert found == AttestedPeer("x509", issuer.identity, {"subject": "CN=node-1", "serial": "abc"})


async def test_evidence_of_another_session_is_refused() -> None:
    text = await refusal(Certificate("node", ROOT).issuer(), verifier(), OTHER_BINDING)
    assert "forged or from another session" in text


async def test_a_certificate_without_its_key_is_refused() -> None:
    node, other = Certificate("node", ROOT), Certificate("other")
    assert "forged or from another session" in await refusal(
        X509Issuer([node.certificate], other.key), verifier()
    )


@pytest.mark.parametrize("binding", [b"", bytes(31), bytes(33)])
async def test_a_channel_binding_of_the_wrong_length_is_refused_on_both_sides(binding: bytes) -> None:
    with pytest.raises(EvidenceRefused, match="channel binding of"):
        await Certificate("node", ROOT).issuer().issue(binding)
    with pytest.raises(EvidenceRefused, match="channel binding of"):
        verifier().begin(binding)


IMPOSTOR = Certificate("root", authority=True)
EXPIRED_CA = Certificate("past", authority=True, starts=NOW - 3 * DAY, ends=NOW - DAY)
LEAF = Certificate("node", ROOT)
SIGNATURES_ONLY = Certificate("root", authority=True, key_usage=x509.KeyUsage(True, *[False] * 8))
PATH_LENGTH_0 = Certificate("root", authority=True, path_length=0)
BELOW = Certificate("below", PATH_LENGTH_0, authority=True)


@pytest.mark.parametrize(
    ("issuer", "trusted"),
    [
        pytest.param(Certificate("node", IMPOSTOR).issuer(), ROOT, id="another CA of the same name"),
        pytest.param(Certificate("node").issuer(), ROOT, id="self-signed"),
        pytest.param(Certificate("node", EXPIRED_CA).issuer(), EXPIRED_CA, id="expired CA"),
        pytest.param(Certificate("child", LEAF).issuer(LEAF), ROOT, id="issued by a leaf"),
        pytest.param(Certificate("node", SIGNATURES_ONLY).issuer(), SIGNATURES_ONLY, id="no keyCertSign"),
        pytest.param(Certificate("node", BELOW).issuer(BELOW), PATH_LENGTH_0, id="path too long"),
    ],
)
async def test_a_certificate_that_no_trusted_ca_has_issued_is_refused(
    issuer: X509Issuer, trusted: Certificate
) -> None:
    assert "not issued by a trusted" in await refusal(issuer, verifier(trusted))


@pytest.mark.parametrize(
    ("starts", "ends"),
    [(NOW - 2 * DAY, NOW - DAY), (NOW + DAY, NOW + 2 * DAY)],
    ids=["expired", "not yet valid"],
)
async def test_a_certificate_outside_of_its_validity_is_refused(starts: datetime, ends: datetime) -> None:
    node = Certificate("node", ROOT, starts=starts, ends=ends)
    assert "expired or not yet valid" in await refusal(node.issuer(), verifier())


@pytest.mark.parametrize(
    ("usage", "wanted", "accepted"),
    [
        (ExtendedKeyUsageOID.CLIENT_AUTH, Usage.CLIENT, True),
        (ExtendedKeyUsageOID.SERVER_AUTH, Usage.CLIENT, False),
        (ExtendedKeyUsageOID.SERVER_AUTH, Usage.SERVER, True),
        (None, Usage.CLIENT, False),
        (None, Usage.ANY, True),
        (ExtendedKeyUsageOID.CODE_SIGNING, Usage.ANY, True),
    ],
)
async def test_the_extended_key_usage_is_required(
    usage: ObjectIdentifier | None, wanted: Usage, accepted: bool
) -> None:
    issuer, verifies = Certificate("node", ROOT, usage=usage).issuer(), verifier(usage=wanted)
    if accepted:
        assert (
            verifies.begin(BINDING).verify_evidence(await issuer.issue(BINDING)).identity == issuer.identity
        )
    else:
        assert f"without extended key usage {wanted}" in await refusal(issuer, verifies)


async def test_intermediate_cas_are_accepted_in_any_order() -> None:
    first = Certificate("first", ROOT, authority=True)
    second = Certificate("second", first, authority=True)
    issuer = Certificate("node", second).issuer(first, second)
    assert verifier().begin(BINDING).verify_evidence(await issuer.issue(BINDING)).identity == issuer.identity


async def test_an_intermediate_ca_can_be_the_trusted_one() -> None:
    first = Certificate("first", ROOT, authority=True)
    issuer = Certificate("node", first).issuer()
    assert verifier(first).begin(BINDING).verify_evidence(await issuer.issue(BINDING)).identity


async def test_the_refusal_names_the_certificate_without_an_issuer() -> None:
    first = Certificate("first", ROOT, authority=True)
    second = Certificate("second", first, authority=True)
    text = await refusal(Certificate("node", second).issuer(second), verifier())
    assert "'CN=second' was not issued by a trusted CA" in text


async def test_an_unknown_critical_extension_is_refused() -> None:
    node = Certificate("node", ROOT, critical=ObjectIdentifier("1.2.3.4"))
    assert "unsupported critical extensions 1.2.3.4" in await refusal(node.issuer(), verifier())


async def test_a_chain_that_is_too_long_is_refused() -> None:
    node = Certificate("node", ROOT)
    assert "6 certificates presented" in await refusal(node.issuer(*[ROOT] * 5), verifier())


async def test_an_unsupported_key_type_is_refused() -> None:
    for key in (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 1024)):
        node = Certificate("node", ROOT, key=key)
        assert "unsupported key type" in await refusal(node.issuer(), verifier())


@pytest.mark.parametrize("kind", ["ecdsa-p256", "rsa-2048"])
async def test_certificates_of_our_own_ca_are_accepted(kind: KeyKind) -> None:
    authority = Authority.create("nodes", key=kind)
    made = authority.issue_client("node-1")
    issuer = X509Issuer.from_pem(made.cert_pem, made.key_pem)
    verifies = X509Verifier(x509.load_pem_x509_certificates(authority.cert_pem))
    assert (
        verifies.begin(BINDING).verify_evidence(await issuer.issue(BINDING)).facts["subject"] == "CN=node-1"
    )


async def test_challenges_are_refused() -> None:
    issuer = Certificate("node", ROOT).issuer()
    with pytest.raises(EvidenceRefused, match="unexpected challenge"):
        await issuer.answer(BINDING, b"")
    with pytest.raises(EvidenceRefused, match="no challenge was sent"):
        verifier().begin(BINDING).verify_answer(b"")


def pem(key: PrivateKey, *, password: bytes = b"") -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def test_invalid_certificate_and_key_files_are_errors() -> None:
    node, other = Certificate("node", ROOT), Certificate("other", ROOT)
    certificate = node.certificate.public_bytes(Encoding.PEM)
    unusual = ec.generate_private_key(ec.SECP384R1())
    for given_certificate, given_key, message in (
        (b"nothing", pem(node.key), "node.yaml.certificate"),
        (certificate, b"SECRET", "node.yaml.key: invalid private key"),
        (certificate, pem(node.key, password=b"x"), "node.yaml.key: invalid private key"),
        (certificate, pem(other.key), "node.yaml.key: private key does not match the certificate"),
        (certificate, pem(unusual), "node.yaml.key: unsupported key type"),
    ):
        with pytest.raises(OperatorError, match=message) as raised:
            X509Issuer.from_pem(given_certificate, given_key, "node.yaml")
        assert "SECRET" not in str(raised.value)


def test_a_verifier_without_a_ca_is_an_error() -> None:
    with pytest.raises(OperatorError, match="no CA configured"):
        X509Verifier([])


NODE = Certificate("node", ROOT)
CERTIFICATE = NODE.certificate.public_bytes(Encoding.DER)


@settings(max_examples=50)
@given(st.binary(max_size=300), st.integers(0, 5000), st.binary(max_size=80))
def test_arbitrary_bytes_are_refused(noise: bytes, at: int, signature: bytes) -> None:
    verifies = verifier()
    at %= len(CERTIFICATE)
    damaged = CERTIFICATE[:at] + noise + CERTIFICATE[at + len(noise) :]
    for document in (noise, X509Evidence((damaged,), signature).encode()):
        with pytest.raises(EvidenceRefused):
            verifies.begin(BINDING).verify_evidence(document)


async def test_evidence_without_certificates_is_refused() -> None:
    valid = X509Evidence.decode(await NODE.issuer().issue(BINDING))
    with pytest.raises(EvidenceRefused, match="0 certificates"):
        verifier().begin(BINDING).verify_evidence(replace(valid, certificates=()).encode())
