"""Removes secrets from the files of a log bundle.

By format: private keys in PEM, also inside base64 (up to three levels), the data of Secrets, bearer and
bootstrap tokens, keys and tokens of kubeconfigs, pull secrets. By value: each line of a known key of this
node. A text that looks like a Secret but cannot be parsed is withheld completely. A marker replaces each
removed secret.
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

from bootbridge.common.yaml_text import to_yaml

GONE = "[redacted]"
WITHHELD = b"[withheld: contains a Secret that could not be redacted]\n"
_GONE = GONE.encode()
_BEGIN = re.compile(rb"-----BEGIN[^-\n]{0,60}PRIVATE[^-\n]{0,20}-----")
_END = re.compile(rb"-----END[^-\n]{0,60}PRIVATE[^-\n]{0,20}-----")
# The characters of a key's body, with line ends as in text, JSON and URLs.
_KEY_BODY = re.compile(rb"[A-Za-z0-9+/=\s\\%:,.-]*")
_KEY_BYTES = bytes(b for b in range(128) if _KEY_BODY.fullmatch(bytes([b])) and b not in b":,.-")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{24,}={0,2}")
_BASE64_DEPTH = 3
_PRIVATE = re.compile(rb"PRIVATE KEY")
_NAMES = (
    rb"client-key-data|client_key_data|token|id-token|access-token|refresh-token|access_token|refresh_token|"
    rb"bearer-token|password|passwd|auth|identitytoken|registrytoken|\.dockerconfigjson|\.dockercfg|"
    rb"pull-?secret|aws_secret_access_key|secret-?access-?key|client-?secret|kubeadmin-password"
)
# name: value, "name": "value", name=value, --name=value; also with quotes escaped by nested JSON.
_NAMED = re.compile(
    rb"""(?i)(?<![A-Za-z0-9_-])((?:--)?\\{0,8}["']?(?:"""
    + _NAMES
    + rb""")\\{0,8}["']?[ \t]{0,20}[:=][ \t]{0,20})"""
    rb"""(\\{0,8}"[^"\n]{0,65536}"|'[^'\n]{0,65536}'|[^\s"',;}\]\\]{1,65536})"""
)
_BEARER = re.compile(rb"(?i)(\b(?:bearer|basic)[ \t]+)[A-Za-z0-9._~+/=-]{8,}")
_JWT = re.compile(rb"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*")
_OPENSHIFT_TOKEN = re.compile(rb"\bsha256~[A-Za-z0-9_-]{20,}")
# kubeadm prints it as a flag and in sentences.
_CERTIFICATE_KEY = re.compile(rb"""(?i)(certificate-key[ \t=:"']{1,20})[0-9a-f]{16,}""")
_BOOTSTRAP_TOKEN = re.compile(rb"(?<![A-Za-z0-9.])[a-z0-9]{6}\.[a-z0-9]{16}(?![A-Za-z0-9.])")
_SECRET = re.compile(
    rb"""\\{0,8}["']?\bkind\\{0,8}["']?[ \t]{0,20}:[ \t]{0,20}\\{0,8}["']?Secret(?:List)?\b"""
)
_SECRET_LINE = re.compile(rb"""(?m)^[ \t-]*["']?kind["']?[ \t]*:[ \t]*["']?Secret(?:List)?["']?[ \t,\r]*$""")
# A larger text is not a manifest, and would take long to parse.
_YAML_BYTES_MAX = 1 << 20
_HELD_TWICE = "kubectl.kubernetes.io/last-applied-configuration"
_KEY_LINE_MIN = 16


def is_secret_file(path: str) -> bool:
    """Returns whether a file must not be opened, by its name."""
    name = path.rpartition("/")[2].lower()
    return name.endswith((".key", ".p12", ".pfx", ".jks")) or name.startswith(
        ("id_rsa", "id_ecdsa", "id_ed25519")
    )


class Redactor:
    """Removes secrets from bytes; `known` are keys in PEM that are also removed in parts or encoded."""

    def __init__(self, known: Iterable[bytes] = ()) -> None:
        self._known: set[bytes] = set()
        for secret in known:
            self.learn(secret)

    def __repr__(self) -> str:
        return f"<Redactor {len(self._known)} known>"

    def learn(self, secret: bytes) -> None:
        """Adds a key in PEM, or a token; each of its lines is removed from now on."""
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
    data = _without_keys(data)
    data = _BASE64.sub(_unless_key, data)
    data = _JWT.sub(_GONE, data)
    data = _OPENSHIFT_TOKEN.sub(_GONE, data)
    data = _BEARER.sub(rb"\1" + _GONE, data)
    data = _NAMED.sub(_named, data)
    data = _CERTIFICATE_KEY.sub(rb"\1" + _GONE, data)
    return _BOOTSTRAP_TOKEN.sub(_GONE, data)


def _without_keys(data: bytes) -> bytes:
    """Removes keys in PEM, also without their end or their beginning."""
    if b"PRIVATE" not in data:
        return data
    pieces, at = [], 0
    while begin := _BEGIN.search(data, at):
        end = _END.search(data, begin.end())
        body = _KEY_BODY.match(data, begin.end())
        stop = end.end() if end else body.end() if body else begin.end()
        pieces += [data[at : begin.start()], _GONE]
        at = stop
    rest = b"".join([*pieces, data[at:]])
    headless = _END.split(rest)
    return _GONE.join([*(piece.rstrip(_KEY_BYTES) for piece in headless[:-1]), headless[-1]])


def _named(found: re.Match[bytes]) -> bytes:
    """Replaces a value but not its quotes, so that JSON stays valid."""
    value = found[2]
    quote = re.match(rb"""\\*["']""", value)
    mark = quote[0] if quote else b""
    return found[1] + mark + _GONE + mark


def _unless_key(found: re.Match[bytes]) -> bytes:
    return _GONE if any(_PRIVATE.search(each) for each in _readings(found[0])) else found[0]


def _readings(text: bytes, depth: int = _BASE64_DEPTH) -> list[bytes]:
    """Returns the decoded text for each of the four alignments of a base64 run, and of base64 inside it."""
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
    if not _SECRET.search(data):
        return data
    try:
        return _json_cleaned(data)
    except ValueError:
        pass
    if not _SECRET_LINE.search(data):
        # A text that quotes an object: remove the lines that contain it.
        return b"".join(_GONE + b"\n" if _SECRET.search(line) else line for line in data.splitlines(True))
    return _yaml_cleaned(data)


def _yaml_cleaned(data: bytes) -> bytes:
    if len(data) > _YAML_BYTES_MAX:
        return WITHHELD
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
    """Returns the document with the value of every Secret replaced by its size and hash."""
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
        # kubectl stores the whole object here, with a copy of the data.
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != _HELD_TWICE}
    fields = {key: _hashes(secret[key]) for key in ("data", "stringData") if secret.get(key)}
    return {**secret, "metadata": metadata, **fields}


def _hashes(values: Any) -> Any:
    if not isinstance(values, dict):
        return GONE
    return {key: _hash(value) for key, value in values.items()}


def _hash(value: Any) -> str:
    if str(value).startswith(GONE):
        return str(value)
    text = str(value).encode()
    try:
        text = base64.b64decode(text, validate=True)
    except binascii.Error:
        pass
    return f"{GONE} {len(text)} bytes, sha256 {hashlib.sha256(text).hexdigest()[:16]}…"
