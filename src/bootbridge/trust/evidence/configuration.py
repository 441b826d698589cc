"""Kinds of evidence by name, and the documents in which an operator chooses among them.

What a machine proves itself with, exactly one kind:

    {"tpm": {"device": "/dev/tpmrm0"}}               or unix:PATH, tcp:HOST:PORT (swtpm)
    {"x509": {"certificate": PATH, "key": PATH}}     PEM; the leaf first, then what leads to the authority
    {"token": {"file": PATH}}                        ID.SECRET, for development

What is accepted from a peer, any number of kinds:

    {"tpm": {"measurements": {"15": {"expected": "00…", "warnOnly": false}, "4": "ab…"},
             "trustedKeys": ["sha256:…"],            enrolled attestation keys
             "endorsementCAs": "PEM…"},              or whose chips are trusted; at least one of the two
     "x509": {"cas": "PEM…", "usage": "clientAuth"}, usage: clientAuth (default), serverAuth or any
     "token": {"tokens": {"ID": "SECRET"}}}

A new kind is a module with an issuer and a verifier, and a line in each of the two tables below.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from bootbridge.errors import OperatorError
from bootbridge.trust.certificate_chain import parse_trust_anchors
from bootbridge.trust.evidence import Issuer, Verifier, token, tpm, x509
from bootbridge.trust.evidence.tpm import Enrolled
from bootbridge.trust.fingerprint import is_fingerprint
from bootbridge.trust.measurement import MeasurementPolicy
from bootbridge.trust.tpm.device import TpmDevice

DEFAULT_DEVICE = "/dev/tpmrm0"


def issuer_from(document: object, subject: str) -> Issuer:
    """What this machine proves itself with; `subject` is what errors call the document."""
    kinds = _mapping(document, subject)
    if len(kinds) != 1:
        hint = f"one of: {', '.join(_ISSUERS)}"
        raise OperatorError(f"{len(kinds)} kinds are chosen, one is needed", subject=subject, hint=hint)
    ((kind, given),) = kinds.items()
    place = f"{subject}.{kind}"
    return _known(_ISSUERS, kind, subject)(_mapping(given, place), place)


def verifiers_from(
    document: object, subject: str, *, is_enrolled: Enrolled | None = None
) -> tuple[Verifier, ...]:
    """What is accepted from a peer; none for an empty document.

    `is_enrolled` knows further attestation keys, from an inventory that may change while we run.
    """
    found: list[Verifier] = []
    for kind, given in _mapping(document, subject).items():
        place = f"{subject}.{kind}"
        found.append(_known(_VERIFIERS, kind, subject)(_mapping(given, place), place, is_enrolled))
    return tuple(found)


def _tpm_issuer(given: Mapping[str, Any], subject: str) -> Issuer:
    _only(given, {"device"}, subject)
    return tpm.TpmIssuer(TpmDevice(_text(given, "device", subject, DEFAULT_DEVICE), f"{subject}.device"))


def _x509_issuer(given: Mapping[str, Any], subject: str) -> Issuer:
    _only(given, {"certificate", "key"}, subject)
    return x509.X509Issuer.from_pem(
        _content(given, "certificate", subject), _content(given, "key", subject, secret=True), subject
    )


def _token_issuer(given: Mapping[str, Any], subject: str) -> Issuer:
    _only(given, {"file"}, subject)
    text = _content(given, "file", subject, secret=True).decode("utf-8", "replace")
    return token.TokenIssuer(*token.parse_token(text, f"{subject}.file"))


def _tpm_verifier(given: Mapping[str, Any], subject: str, is_enrolled: Enrolled | None) -> Verifier:
    _only(given, {"measurements", "trustedKeys", "endorsementCAs"}, subject)
    authorities = given.get("endorsementCAs")
    place = f"{subject}.endorsementCAs"
    return tpm.TpmVerifier(
        MeasurementPolicy.parse(given.get("measurements", {}), f"{subject}.measurements"),
        trusted_keys=_enrolled(given.get("trustedKeys", []), f"{subject}.trustedKeys", is_enrolled),
        endorsement_authorities=parse_trust_anchors(authorities, place) if authorities is not None else (),
        subject=subject,
    )


def _x509_verifier(given: Mapping[str, Any], subject: str, _: Enrolled | None) -> Verifier:
    _only(given, {"cas", "usage"}, subject)
    usage = _text(given, "usage", subject, x509.Usage.CLIENT)
    if usage not in list(x509.Usage):
        hint = f"one of: {', '.join(x509.Usage)}"
        raise OperatorError(f"unknown usage {usage!r}", subject=f"{subject}.usage", hint=hint)
    authorities = parse_trust_anchors(given.get("cas"), f"{subject}.cas")
    return x509.X509Verifier(authorities, usage=x509.Usage(usage), subject=subject)


def _token_verifier(given: Mapping[str, Any], subject: str, _: Enrolled | None) -> Verifier:
    _only(given, {"tokens"}, subject)
    place = f"{subject}.tokens"
    tokens = _mapping(given.get("tokens", {}), place)
    sound = [token.require_token(name, secret, f"{place}.{name}") for name, secret in tokens.items()]
    return token.TokenVerifier(dict(sound), subject=subject)


_ISSUERS: dict[str, Callable[[Mapping[str, Any], str], Issuer]] = {
    tpm.KIND: _tpm_issuer,
    x509.KIND: _x509_issuer,
    token.KIND: _token_issuer,
}
_VERIFIERS: dict[str, Callable[[Mapping[str, Any], str, Enrolled | None], Verifier]] = {
    tpm.KIND: _tpm_verifier,
    x509.KIND: _x509_verifier,
    token.KIND: _token_verifier,
}


def _enrolled(given: object, subject: str, is_enrolled: Enrolled | None) -> Collection[str] | Enrolled:
    if not isinstance(given, list) or not all(
        isinstance(each, str) and is_fingerprint(each) for each in given
    ):
        hint = 'a list of "sha256:" and 64 small hexadecimal digits each'
        raise OperatorError("holds something else than keys' fingerprints", subject=subject, hint=hint)
    keys = frozenset(given)
    if is_enrolled is None:
        return keys
    known_elsewhere = is_enrolled
    return lambda identity: identity in keys or known_elsewhere(identity)


def _known(table: Mapping[str, Any], kind: str, subject: str) -> Any:
    if kind not in table:
        hint = f"known are: {', '.join(table)}"
        raise OperatorError(f"unknown kind {kind!r}", subject=subject, hint=hint)
    return table[kind]


def _mapping(given: object, subject: str) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise OperatorError("is no mapping", subject=subject)
    return given


def _only(given: Mapping[str, Any], known: Collection[str], subject: str) -> None:
    if unknown := sorted(str(key) for key in given if key not in known):
        hint = f"known are: {', '.join(sorted(known))}"
        raise OperatorError(f"unknown field {', '.join(unknown)}", subject=subject, hint=hint)


def _text(given: Mapping[str, Any], key: str, subject: str, default: str = "") -> str:
    value = given.get(key, default)
    if not isinstance(value, str) or not value:
        raise OperatorError("is missing or no text", subject=f"{subject}.{key}")
    return value


def _content(given: Mapping[str, Any], key: str, subject: str, *, secret: bool = False) -> bytes:
    """A secret is refused if others may read it: they could prove to be this machine."""
    path = Path(_text(given, key, subject))
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
    except OSError as error:
        text = f"cannot read {path}: {error.strerror or error}"
        raise OperatorError(text, subject=f"{subject}.{key}") from error
    if secret and mode & 0o077:
        raise OperatorError(f"others may read {path}", subject=f"{subject}.{key}", hint=f"chmod 600 {path}")
    return data
