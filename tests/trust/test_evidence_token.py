"""Evidence by token: valid for one session, with a warning, and without the secret in any output."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.errors import OperatorError
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused
from bootbridge.trust.evidence.token import TokenEvidence, TokenIssuer, TokenVerifier, parse_token

BINDING = bytes(range(32))
OTHER_BINDING = bytes(range(1, 33))
SECRET = b"a secret of enough letters"
TOKENS = {"dev-1": SECRET, "dev-2": b"another secret, long enough"}


async def test_a_known_token_is_accepted_with_its_id() -> None:
    document = await TokenIssuer("dev-1", SECRET).issue(BINDING)
    assert TokenVerifier(TOKENS).begin(BINDING).verify_evidence(document) == AttestedPeer(
        "token", "token:dev-1", {"token": "dev-1"}
    )


async def test_the_secret_is_not_sent() -> None:
    assert SECRET not in await TokenIssuer("dev-1", SECRET).issue(BINDING)


async def test_evidence_of_another_session_is_refused() -> None:
    document = await TokenIssuer("dev-1", SECRET).issue(BINDING)
    with pytest.raises(EvidenceRefused, match="another session"):
        TokenVerifier(TOKENS).begin(OTHER_BINDING).verify_evidence(document)


async def test_a_wrong_secret_and_an_unknown_id_get_the_same_refusal() -> None:
    texts = set()
    for issuer in (
        TokenIssuer("dev-1", b"x" * 16),
        TokenIssuer("dev-9", SECRET),
        TokenIssuer("dev-2", SECRET),
    ):
        document = await issuer.issue(BINDING)
        with pytest.raises(EvidenceRefused) as raised:
            TokenVerifier(TOKENS).begin(BINDING).verify_evidence(document)
        texts.add(str(raised.value))
    assert len(texts) == 1


@pytest.mark.parametrize("binding", [b"", bytes(31), bytes(33)])
async def test_a_channel_binding_of_the_wrong_length_is_refused_on_both_sides(binding: bytes) -> None:
    with pytest.raises(EvidenceRefused, match="channel binding of"):
        await TokenIssuer("dev-1", SECRET).issue(binding)
    with pytest.raises(EvidenceRefused, match="channel binding of"):
        TokenVerifier(TOKENS).begin(binding)


def test_both_sides_log_a_warning_without_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    issuer, verifier = TokenIssuer("dev-1", SECRET), TokenVerifier(TOKENS)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.text.count("for development only") == 2
    shown = caplog.text + repr(issuer) + repr(verifier) + str([record.__dict__ for record in caplog.records])
    assert SECRET.decode() not in shown


async def test_challenges_are_refused() -> None:
    with pytest.raises(EvidenceRefused, match="unexpected challenge"):
        await TokenIssuer("dev-1", SECRET).answer(BINDING, b"")
    with pytest.raises(EvidenceRefused, match="no challenge was sent"):
        TokenVerifier(TOKENS).begin(BINDING).verify_answer(b"")


def test_a_token_is_parsed_from_one_line() -> None:
    assert parse_token("dev-1.a.secret.with.dots.in.it\n") == ("dev-1", b"a.secret.with.dots.in.it")


@pytest.mark.parametrize(
    "text", ["", "dev-1", "dev-1.short-secretttt", ".0123456789abcdef", "DEV.0123456789abcdef"]
)
def test_the_error_about_an_invalid_token_does_not_quote_it(text: str) -> None:
    with pytest.raises(OperatorError, match=r"ID\.SECRET") as raised:
        parse_token(text[:16] if "short" in text else text)
    assert "0123456789" not in str(raised.value)
    assert "short" not in str(raised.value)


def test_a_verifier_without_tokens_is_an_error() -> None:
    with pytest.raises(OperatorError, match="no tokens configured"):
        TokenVerifier({})


@settings(max_examples=50)
@given(st.binary(max_size=60), st.text(max_size=8), st.binary(max_size=40))
def test_arbitrary_bytes_are_refused(noise: bytes, name: str, mac: bytes) -> None:
    verifier = TokenVerifier(TOKENS)
    for document in (noise, TokenEvidence(name, mac).encode(), TokenEvidence("dev-1", mac).encode()):
        with pytest.raises(EvidenceRefused):
            verifier.begin(BINDING).verify_evidence(document)
