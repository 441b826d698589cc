"""Evidence by certificate: who is believed, for which session, and with which keys."""

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


class Made:
    """A certificate with its key, and the means to issue others."""

    def __init__(
        self,
        name: str,
        issuer: Made | None = None,
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

    def issuer(self, *others: Made) -> X509Issuer:
        return X509Issuer([self.certificate, *(each.certificate for each in others)], self.key)


ROOT = Made("root", authority=True)


def verifier(*authorities: Made, usage: Usage = Usage.CLIENT) -> X509Verifier:
    return X509Verifier([each.certificate for each in authorities or (ROOT,)], usage=usage, clock=lambda: NOW)


async def refusal(issuer: X509Issuer, judge: X509Verifier, binding: bytes = BINDING) -> str:
    document = await issuer.issue(BINDING)
    with pytest.raises(EvidenceRefused) as raised:
        judge.begin(binding).verify_evidence(document)
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
async def test_the_holder_of_a_trusted_certificate_convinces(key: PrivateKey) -> None:
    issuer = Made("node-1", ROOT, key=key).issuer()
    found = verifier().begin(BINDING).verify_evidence(await issuer.issue(BINDING))
    assert found == AttestedPeer("x509", issuer.identity, {"subject": "CN=node-1", "serial": "abc"})


async def test_evidence_of_another_session_is_refused() -> None:
    text = await refusal(Made("node", ROOT).issuer(), verifier(), OTHER_BINDING)
    assert "forged or from another session" in text


async def test_a_certificate_without_its_key_is_refused() -> None:
    node, thief = Made("node", ROOT), Made("thief")
    assert "forged or from another session" in await refusal(
        X509Issuer([node.certificate], thief.key), verifier()
    )


@pytest.mark.parametrize("binding", [b"", bytes(31), bytes(33)])
async def test_a_statement_of_the_wrong_length_is_refused_on_both_sides(binding: bytes) -> None:
    with pytest.raises(EvidenceRefused, match="channel binding of"):
        await Made("node", ROOT).issuer().issue(binding)
    with pytest.raises(EvidenceRefused, match="channel binding of"):
        verifier().begin(binding)


async def test_a_certificate_of_another_authority_of_the_same_name_is_refused() -> None:
    impostor = Made("root", authority=True)
    assert "not issued by a trusted" in await refusal(Made("node", impostor).issuer(), verifier())


async def test_a_certificate_that_signed_itself_is_refused() -> None:
    assert "not issued by a trusted" in await refusal(Made("node").issuer(), verifier())


@pytest.mark.parametrize(
    ("starts", "ends"), [(NOW - 2 * DAY, NOW - DAY), (NOW + DAY, NOW + 2 * DAY)], ids=["over", "to come"]
)
async def test_a_certificate_outside_of_its_time_is_refused(starts: datetime, ends: datetime) -> None:
    node = Made("node", ROOT, starts=starts, ends=ends)
    assert "expired or not yet valid" in await refusal(node.issuer(), verifier())


async def test_an_authority_outside_of_its_time_is_refused() -> None:
    past = Made("past", authority=True, starts=NOW - 3 * DAY, ends=NOW - DAY)
    assert "not issued by a trusted" in await refusal(Made("node", past).issuer(), verifier(past))


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
    issuer, judge = Made("node", ROOT, usage=usage).issuer(), verifier(usage=wanted)
    if accepted:
        assert judge.begin(BINDING).verify_evidence(await issuer.issue(BINDING)).identity == issuer.identity
    else:
        assert f"without extended key usage {wanted}" in await refusal(issuer, judge)


async def test_a_chain_through_others_is_followed_in_any_order() -> None:
    first = Made("first", ROOT, authority=True)
    second = Made("second", first, authority=True)
    issuer = Made("node", second).issuer(first, second)
    assert verifier().begin(BINDING).verify_evidence(await issuer.issue(BINDING)).identity == issuer.identity


async def test_an_intermediate_authority_can_be_the_one_that_is_trusted() -> None:
    first = Made("first", ROOT, authority=True)
    issuer = Made("node", first).issuer()
    assert verifier(first).begin(BINDING).verify_evidence(await issuer.issue(BINDING)).identity


async def test_a_missing_link_is_named() -> None:
    first = Made("first", ROOT, authority=True)
    second = Made("second", first, authority=True)
    text = await refusal(Made("node", second).issuer(second), verifier())
    assert "'CN=second' was not issued by a trusted CA" in text


async def test_a_leaf_cannot_issue_others() -> None:
    node = Made("node", ROOT)
    assert "not issued by a trusted" in await refusal(Made("child", node).issuer(node), verifier())


async def test_an_authority_whose_key_is_not_for_certificates_is_refused() -> None:
    signs_only = x509.KeyUsage(True, *[False] * 8)
    root = Made("root", authority=True, key_usage=signs_only)
    assert "not issued by a trusted" in await refusal(Made("node", root).issuer(), verifier(root))


async def test_the_path_length_of_a_ca_is_enforced() -> None:
    root = Made("root", authority=True, path_length=0)
    below = Made("below", root, authority=True)
    assert "not issued by a trusted" in await refusal(Made("node", below).issuer(below), verifier(root))


async def test_a_critical_extension_that_we_do_not_know_is_refused() -> None:
    node = Made("node", ROOT, critical=ObjectIdentifier("1.2.3.4"))
    assert "unsupported critical extensions 1.2.3.4" in await refusal(node.issuer(), verifier())


async def test_more_certificates_than_a_chain_has_are_refused() -> None:
    node = Made("node", ROOT)
    assert "6 certificates presented" in await refusal(node.issuer(*[ROOT] * 5), verifier())


async def test_a_key_that_is_too_weak_or_unusual_is_refused() -> None:
    for key in (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 1024)):
        node = Made("node", ROOT, key=key)
        assert "unsupported key type" in await refusal(node.issuer(), verifier())


@pytest.mark.parametrize("kind", ["ecdsa-p256", "rsa-2048"])
async def test_certificates_of_our_own_authorities_serve(kind: KeyKind) -> None:
    authority = Authority.create("nodes", key=kind)
    made = authority.issue_client("node-1")
    issuer = X509Issuer.from_pem(made.cert_pem, made.key_pem)
    judge = X509Verifier(x509.load_pem_x509_certificates(authority.cert_pem))
    assert judge.begin(BINDING).verify_evidence(await issuer.issue(BINDING)).facts["subject"] == "CN=node-1"


async def test_challenges_are_refused() -> None:
    issuer = Made("node", ROOT).issuer()
    with pytest.raises(EvidenceRefused, match="unexpected challenge"):
        await issuer.answer(BINDING, b"")
    with pytest.raises(EvidenceRefused, match="no challenge was sent"):
        verifier().begin(BINDING).verify_answer(b"")


def pem(key: PrivateKey, *, password: bytes = b"") -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def test_files_that_do_not_go_together_are_named() -> None:
    node, other = Made("node", ROOT), Made("other", ROOT)
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


def test_a_verifier_without_authorities_is_not_built() -> None:
    with pytest.raises(OperatorError, match="no CA configured"):
        X509Verifier([])


NODE = Made("node", ROOT)
CERTIFICATE = NODE.certificate.public_bytes(Encoding.DER)


@settings(max_examples=50)
@given(st.binary(max_size=300), st.integers(0, 5000), st.binary(max_size=80))
def test_garbage_is_refused_and_never_anything_else(noise: bytes, at: int, signature: bytes) -> None:
    judge = verifier()
    at %= len(CERTIFICATE)
    damaged = CERTIFICATE[:at] + noise + CERTIFICATE[at + len(noise) :]
    for document in (noise, X509Evidence((damaged,), signature).encode()):
        with pytest.raises(EvidenceRefused):
            judge.begin(BINDING).verify_evidence(document)


async def test_a_document_without_certificates_is_refused() -> None:
    true = X509Evidence.decode(await NODE.issuer().issue(BINDING))
    with pytest.raises(EvidenceRefused, match="0 certificates"):
        verifier().begin(BINDING).verify_evidence(replace(true, certificates=()).encode())
