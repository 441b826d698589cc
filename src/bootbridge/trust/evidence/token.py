"""Evidence by a shared token, for development: it proves neither the machine nor what runs on it.

The token itself is never sent, only a MAC over the channel binding, which is valid for one session.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from bootbridge.errors import OperatorError
from bootbridge.runtime import logs
from bootbridge.trust.evidence import PROGRAM, AttestedPeer, EvidenceRefused, Requester, require_binding
from bootbridge.trust.identity import TOKEN_ID, EvidenceKind, token_identity
from bootbridge.wire.proto import Message, MessageError, at

KIND = EvidenceKind.TOKEN
# A peer that received a MAC can try secrets against it offline.
SECRET_CHARACTERS_MIN = 16

_CONTEXT = b"bootbridge evidence token\0"
_FORM = (
    f"ID.SECRET: lower-case letters, digits and '-', a dot, and at least {SECRET_CHARACTERS_MIN} characters"
)


@dataclass(frozen=True, slots=True)
class TokenEvidence(Message):
    id: str = at(1, "")
    mac: bytes = at(2, b"")


def parse_token(text: str, subject: str = "token") -> tuple[str, bytes]:
    """Returns (id, secret) of "ID.SECRET"; errors do not quote the text."""
    name, _, secret = text.strip().partition(".")
    return require_token(name, secret, subject)


def require_token(name: object, secret: object, subject: str) -> tuple[str, bytes]:
    sound = isinstance(name, str) and TOKEN_ID.fullmatch(name) and isinstance(secret, str)
    if not sound or len(str(secret)) < SECRET_CHARACTERS_MIN:
        raise OperatorError("invalid token", subject=subject, hint=_FORM)
    return str(name), str(secret).encode()


class TokenIssuer:
    kind: str = KIND

    def __init__(self, token_id: str, secret: bytes) -> None:
        self.id = token_id
        self.identity = token_identity(token_id)
        self._secret = secret
        logs.event("evidence", logs.WARNING, "token evidence is for development only", token=token_id)

    def __repr__(self) -> str:
        return f"<TokenIssuer {self.id}>"

    async def issue(self, binding: bytes, requester: Requester = PROGRAM) -> bytes:
        return TokenEvidence(self.id, _mac(self._secret, require_binding(binding))).encode()

    async def answer(self, binding: bytes, challenge: bytes, requester: Requester = PROGRAM) -> bytes:
        raise EvidenceRefused("unexpected challenge for token evidence")


class TokenVerifier:
    """Accepts these tokens. The caller limits their reuse, by `facts["token"]`."""

    kind: str = KIND

    def __init__(self, tokens: Mapping[str, bytes], *, subject: str = "") -> None:
        if not tokens:
            raise OperatorError(
                "no tokens configured", subject=subject or "token policy", hint="list at least one token"
            )
        self._tokens = dict(tokens)
        logs.event("evidence", logs.WARNING, "token evidence is for development only", tokens=len(tokens))

    def __repr__(self) -> str:
        return f"<TokenVerifier {', '.join(sorted(self._tokens))}>"

    def begin(self, binding: bytes) -> TokenVerification:
        return TokenVerification(self._tokens, require_binding(binding))


class TokenVerification:
    def __init__(self, tokens: Mapping[str, bytes], binding: bytes) -> None:
        self._tokens = tokens
        self._binding = binding

    def verify_evidence(self, evidence: bytes) -> AttestedPeer:
        try:
            presented = TokenEvidence.decode(evidence)
        except MessageError as error:
            raise EvidenceRefused(f"malformed token evidence: {error}") from error
        # An unknown id takes as long and gets the same answer, so that ids cannot be probed.
        secret = self._tokens.get(presented.id) or secrets.token_bytes(SECRET_CHARACTERS_MIN)
        if not hmac.compare_digest(presented.mac, _mac(secret, self._binding)):
            raise EvidenceRefused("unknown or invalid token, or evidence from another session")
        return AttestedPeer(KIND, token_identity(presented.id), {"token": presented.id})

    def verify_answer(self, answer: bytes) -> AttestedPeer:
        raise EvidenceRefused("unexpected answer: no challenge was sent")


def _mac(secret: bytes, binding: bytes) -> bytes:
    return hmac.digest(secret, _CONTEXT + binding, "sha256")
