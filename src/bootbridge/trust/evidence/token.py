"""Evidence by a shared token, for development: whoever knows it is let in, from wherever, whatever it runs.

The token itself never travels. What does is a MAC over the statement, good for one session.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from bootbridge.errors import OperatorError
from bootbridge.runtime import logs
from bootbridge.trust.evidence import Attested, EvidenceRefused
from bootbridge.trust.evidence.statement import checked
from bootbridge.wire.proto import Message, MessageError, at

KIND = "token"
# A peer that makes us prove could try secrets against the MAC afterwards, as long as it likes.
SECRET_CHARACTERS_MIN = 16

_CONTEXT = b"bootbridge evidence token\0"
_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_FORM = f"ID.SECRET: small letters, digits and '-', a dot, and at least {SECRET_CHARACTERS_MIN} characters"


@dataclass(frozen=True, slots=True)
class TokenDocument(Message):
    id: str = at(1, "")
    mac: bytes = at(2, b"")


def parse_token(text: str, subject: str = "token") -> tuple[str, bytes]:
    """(id, secret) of "ID.SECRET"; no error shows what was given."""
    name, _, secret = text.strip().partition(".")
    return require_token(name, secret, subject)


def require_token(name: object, secret: object, subject: str) -> tuple[str, bytes]:
    sound = isinstance(name, str) and _ID.fullmatch(name) and isinstance(secret, str)
    if not sound or len(str(secret)) < SECRET_CHARACTERS_MIN:
        raise OperatorError("holds no token", subject=subject, hint=_FORM)
    return str(name), str(secret).encode()


class TokenIssuer:
    """Proves that it knows the token."""

    kind = KIND

    def __init__(self, token_id: str, secret: bytes) -> None:
        self.id = token_id
        self._secret = secret
        text = "evidence by token: for development only, it proves neither the machine nor what runs on it"
        logs.event("evidence", logs.WARNING, text, token=token_id)

    def __repr__(self) -> str:
        return f"<TokenIssuer {self.id}>"

    async def issue(self, statement: bytes) -> bytes:
        return TokenDocument(self.id, _mac(self._secret, checked(statement))).encode()

    async def answer(self, statement: bytes, challenge: bytes) -> bytes:
        raise EvidenceRefused("evidence by token knows no challenge")


class TokenVerifier:
    """Accepts these tokens. Whether one may be used twice is for the caller to decide, by its id."""

    kind = KIND

    def __init__(self, tokens: Mapping[str, bytes], *, subject: str = "") -> None:
        if not tokens:
            raise OperatorError(
                "no token is accepted", subject=subject or "the token policy", hint="give tokens"
            )
        self._tokens = dict(tokens)
        text = "tokens are accepted as evidence: for development only, any machine that knows one is let in"
        logs.event("evidence", logs.WARNING, text, tokens=len(tokens))

    def __repr__(self) -> str:
        return f"<TokenVerifier {', '.join(sorted(self._tokens))}>"

    def begin(self, statement: bytes) -> TokenVerification:
        return TokenVerification(self._tokens, checked(statement))


class TokenVerification:
    """One peer being verified."""

    def __init__(self, tokens: Mapping[str, bytes], statement: bytes) -> None:
        self._tokens = tokens
        self._statement = statement

    def document(self, document: bytes) -> Attested:
        try:
            shown = TokenDocument.decode(document)
        except MessageError as error:
            raise EvidenceRefused(f"no evidence by token: {error}") from error
        # An unknown id takes as long and is told the same, so that nobody learns which ids there are.
        secret = self._tokens.get(shown.id) or secrets.token_bytes(SECRET_CHARACTERS_MIN)
        if not hmac.compare_digest(shown.mac, _mac(secret, self._statement)):
            raise EvidenceRefused("the token is unknown or wrong, or the evidence is of another session")
        return Attested(KIND, facts={"token": shown.id})

    def answered(self, answer: bytes) -> Attested:
        raise EvidenceRefused("an answer came where nothing was asked")


def _mac(secret: bytes, statement: bytes) -> bytes:
    return hmac.digest(secret, _CONTEXT + statement, "sha256")
