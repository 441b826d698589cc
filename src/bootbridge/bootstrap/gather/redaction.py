"""Takes secrets out of what goes into a bundle.

By shape: private keys in PEM, also inside base64 (also twice), the data of Secrets, bearer and bootstrap
tokens, keys and tokens of kubeconfigs, pull secrets. And by name: the keys that are known to lie on
this node are looked for as such, line by line. What cannot be understood but looks like a Secret is
withheld as a whole. Whoever reads a bundle sees that, and where, something was taken out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

import yaml

from bootbridge.bootstrap.yaml_text import to_yaml

GONE = "[redacted]"
WITHHELD = b"[withheld: it holds a Secret that could not be taken out]\n"
_GONE = GONE.encode()
_LINE_END = rb"(?:\r?\n|\\r|\\n|%0[aA]|\s)"
_KEY_WORDS = rb"[A-Z0-9 +%]{0,40}PRIVATE(?: |%20)KEY(?: |%20)?(?:BLOCK)?"
# Whole; or cut off at the end; or cut off at its beginning.
_PEM = re.compile(
    rb"-----BEGIN (?=[^\n]{0,60}PRIVATE)".replace(b" ", rb"(?: |%20)") + _KEY_WORDS + rb"-----"
    rb"(?:.(?!-----BEGIN))*?(?:-----END(?: |%20)" + _KEY_WORDS + rb"-----|\Z)",
    re.DOTALL,
)
_PEM_END = re.compile(
    rb"(?:[A-Za-z0-9+/=]{16,}" + _LINE_END + rb"*)+-----END(?: |%20)" + _KEY_WORDS + rb"-----"
)
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{24,}={0,2}")
_BASE64_DEPTH = 3
_PRIVATE = re.compile(rb"PRIVATE KEY")
_NAMES = (
    rb"client-key-data|client_key_data|token|id-token|access-token|refresh-token|access_token|refresh_token|"
    rb"bearer-token|password|passwd|auth|identitytoken|registrytoken|\.dockerconfigjson|\.dockercfg|"
    rb"pull-?secret|aws_secret_access_key|secret-?access-?key|client-?secret|kubeadmin-password"
)
# name: value, "name": "value", name=value, --name=value; with quotes escaped as in JSON in JSON, too.
_NAMED = re.compile(
    rb"""(?i)(?<![A-Za-z0-9_-])((?:--)?\\*["']?(?:""" + _NAMES + rb""")\\*["']?[ \t]*[:=][ \t]*)"""
    rb"""(\\*"(?:[^"\\\n]|\\(?!"))*\\*"|\\*'[^'\n]*'|[^\s"',;}\]\\]+)"""
)
_BEARER = re.compile(rb"(?i)(\b(?:bearer|basic)[ \t]+)[A-Za-z0-9._~+/=-]{8,}")
_JWT = re.compile(rb"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*")
_OPENSHIFT_TOKEN = re.compile(rb"\bsha256~[A-Za-z0-9_-]{20,}")
_BOOTSTRAP_TOKEN = re.compile(rb"(?<![A-Za-z0-9.])[a-z0-9]{6}\.[a-z0-9]{16}(?![A-Za-z0-9.])")
_SECRET_KIND = re.compile(rb"""(?m)\\*["']?kind\\*["']?\s*:\s*\\*["']?Secret(?:List)?\b""")
_HELD_TWICE = "kubectl.kubernetes.io/last-applied-configuration"
_KEY_LINE_MIN = 16


def is_secret_file(path: str) -> bool:
    """Files that are not even opened."""
    name = path.rpartition("/")[2].lower()
    return name.endswith((".key", ".p12", ".pfx", ".jks")) or name.startswith(
        ("id_rsa", "id_ecdsa", "id_ed25519")
    )


class Redactor:
    """Cleans bytes; `known` are keys in PEM that must not come out in any shape."""

    def __init__(self, known: Iterable[bytes] = ()) -> None:
        self._known: set[bytes] = set()
        for secret in known:
            self.learn(secret)

    def __repr__(self) -> str:
        return f"<Redactor {len(self._known)} known>"

    def learn(self, secret: bytes) -> None:
        """A key in PEM, or a token: each of its lines is one to look for."""
        lines = [line.strip() for line in secret.splitlines() if b"-----" not in line]
        self._known |= {line for line in lines if len(line) >= _KEY_LINE_MIN}

    def clean(self, data: bytes) -> bytes:
        data = _without_secret_objects(data)
        return self._by_name(_by_shape(data))

    def _by_name(self, data: bytes) -> bytes:
        for line in self._known:
            if line in data:
                data = data.replace(line, _GONE)
        return _BASE64.sub(self._known_inside, data) if self._known else data

    def _known_inside(self, found: re.Match[bytes]) -> bytes:
        readings = _readings(found[0])
        return _GONE if any(line in each for each in readings for line in self._known) else found[0]


# --- by shape


def _by_shape(data: bytes) -> bytes:
    data = _PEM.sub(_GONE, data)
    data = _PEM_END.sub(_GONE, data)
    data = _BASE64.sub(_unless_key, data)
    data = _JWT.sub(_GONE, data)
    data = _OPENSHIFT_TOKEN.sub(_GONE, data)
    data = _BEARER.sub(rb"\1" + _GONE, data)
    data = _NAMED.sub(_named, data)
    return _BOOTSTRAP_TOKEN.sub(_GONE, data)


def _named(found: re.Match[bytes]) -> bytes:
    """The quotes stay, so that JSON stays JSON."""
    value = found[2]
    quote = re.match(rb"""\\*["']""", value)
    mark = quote[0] if quote else b""
    return found[1] + mark + _GONE + mark


def _unless_key(found: re.Match[bytes]) -> bytes:
    return _GONE if any(_PRIVATE.search(each) for each in _readings(found[0])) else found[0]


def _readings(text: bytes, depth: int = _BASE64_DEPTH) -> list[bytes]:
    """What a run of base64 may say, cut at any place, and what the base64 in it says."""
    readings = []
    for shift in range(4):
        run = text[shift:].rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
        run = run[: len(run) - len(run) % 4]
        try:
            readings.append(base64.b64decode(run))
        except binascii.Error:
            continue
    if depth > 1:
        inner = [found for each in readings for found in _BASE64.findall(each) if _is_text(each)]
        readings += [deeper for each in inner for deeper in _readings(each, depth - 1)]
    return readings


def _is_text(data: bytes) -> bool:
    return data[:64].isascii() and b"\0" not in data[:64]


# --- objects


def _without_secret_objects(data: bytes) -> bytes:
    if not _SECRET_KIND.search(data):
        return data
    try:
        return _json_cleaned(data)
    except ValueError:
        pass
    try:
        documents = list(yaml.safe_load_all(data))
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return WITHHELD
    if not all(isinstance(each, dict | list | None) for each in documents):
        return WITHHELD
    return b"---\n".join(to_yaml(without_secrets(each)) for each in documents)


def _json_cleaned(data: bytes) -> bytes:
    return (json.dumps(without_secrets(json.loads(data)), indent=2, ensure_ascii=False) + "\n").encode()


def without_secrets(document: Any) -> Any:
    """The same with every Secret's values told by their size and hash alone."""
    if isinstance(document, list):
        return [without_secrets(each) for each in document]
    if not isinstance(document, dict):
        return document
    if document.get("kind") == "SecretList":
        return {**document, "items": [_told(each) for each in document.get("items") or ()]}
    if document.get("kind") == "Secret":
        return _told(document)
    return {key: without_secrets(value) for key, value in document.items()}


def _told(secret: dict[str, Any]) -> dict[str, Any]:
    metadata = dict(secret.get("metadata") or {})
    if metadata.get("annotations"):
        # kubectl keeps the whole object here, a copy of the data included.
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != _HELD_TWICE}
    fields = {key: _hashes(secret[key]) for key in ("data", "stringData") if secret.get(key)}
    return {**secret, "metadata": metadata, **fields}


def _hashes(values: Any) -> Any:
    if not isinstance(values, dict):
        return GONE
    return {key: _hash(value) for key, value in values.items()}


def _hash(value: Any) -> str:
    text = str(value).encode()
    try:
        text = base64.b64decode(text, validate=True)
    except binascii.Error:
        pass
    return f"{GONE} {len(text)} bytes, sha256 {hashlib.sha256(text).hexdigest()[:16]}…"
