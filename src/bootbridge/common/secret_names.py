"""Decides by its name whether a value is a secret: `DB_PASSWORD`, `clientSecret`, `X-Auth-Token`, `tls.key`.

Names of secrets, paths of key files, sizes and times are not secrets: `secretName`, `tls-private-key-file`,
`tokenExpirationSeconds`, `topologyKey` are kept, because a diagnosis needs them.
"""

from __future__ import annotations

import re
from typing import Final


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD: Final = re.compile(r"[Bb](?:ase|ASE)?64|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# Anywhere in a name.
_SECRET_PARTS: Final = ("password", "passwd", "passphrase", "passcode", "passwort", "secret", "credential")
# As the last word.
_SECRET_ENDS: Final = ("token", "tokens", "apikey")
_SECRET_WORDS: Final = frozenset(
    ("auth", "authorization", "cookie", "cookies", "signature", "sig", "pwd", "psk", "community")
)
_SECRET_LAST_WORDS: Final = frozenset(("pass", "pat", "sas", "pw"))  # not alone
# Words that end with "pass"; others, such as DBPASS, name a password.
_NOT_A_PASS: Final = frozenset(
    ("bypass", "compass", "encompass", "overpass", "surpass", "trespass", "underpass")
)
_KEYS_WITHOUT_SECRET: Final = _words_of(
    """
    public pub topology label annotation sort primary foreign cache index resource object map configmap
    config field row group lookup toleration taint selector node idempotency translation dictionary
    monkey hockey donkey turkey jockey whiskey
    """
)
# A name that ends like this describes a secret and is not one.
_DESCRIPTION_WORDS: Final = _words_of(
    """
    name names namespace file files path paths dir directory folder ref refs type types kind id ids
    count total size length bytes bits second seconds ttl expiry expiration expires mode modes version
    usage usages issuer audience audiences subject status review reviews algorithm rotation policy
    provider providers enabled disabled class url uri endpoint host port digest fingerprint checksum
    format template mount mounts volume projection source sources lister controller request requests
    error errors cache age time timestamp valid verified required exists list lists plugin plugins
    resource resources
    """
)
_DESCRIPTION_ENDS: Final = ("file", "name", "path", "dir")
_NOT_A_SECRET: Final = frozenset(
    ("", "true", "false", "null", "none", "nil", "~", "<none>", "<nil>", "<unset>")
)
_REFERENCE: Final = re.compile(
    r"\$\{[A-Za-z_]\w{0,200}\}|\$\([A-Za-z_]\w{0,200}\)|<set to the key [^>]{0,300}>.{0,40}"
)
_PATH: Final = re.compile(
    r"(?:file://)?/(?:etc|var|opt|run|root|home|usr|tmp|srv|mnt|secrets?|certs?|keys?|pki|data|lib)"
    r"(?:/[A-Za-z0-9_@%.-]{1,128}){1,20}"
)
_OBJECT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}/[a-z0-9][a-z0-9.-]{0,252}")
# A community of BGP, unlike one of SNMP, is two or three numbers or has a well-known name.
_BGP_COMMUNITY: Final = re.compile(
    r"[0-9]{1,10}(?::[0-9]{1,10}){1,2}|(?:no|local|accept|graceful)-[a-z-]{2,20}|blackhole|internet"
)
_DNS_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
_CONTENTS: Final = frozenset(
    ("data", "value", "pem", "raw", "base64", "b64", "hex", "material", "text", "content")
)
_BARE_KEYS: Final = (["key"], ["keys"])
_KEY_MATERIAL: Final = re.compile(r"[A-Za-z0-9+/_=-]{32,}")


def may_be_secret(name: str) -> bool:
    """Returns whether a value under this name may have to be removed."""
    words = _words(name)
    return bool(words) and (words in _BARE_KEYS or _is_secret_name(words))


def is_secret(name: str, value: str) -> bool:
    """Returns whether this value has to be removed."""
    words = _words(name)
    if not words or value.lower() in _NOT_A_SECRET or _REFERENCE.fullmatch(value):
        return False
    if words in _BARE_KEYS:
        # The key of a label, a queue or a mapping, unless it looks like one that opens something.
        return bool(_KEY_MATERIAL.fullmatch(value)) and _is_mixed(value)
    return _is_secret_name(words) and not _is_description(words, value)


def _words(name: str) -> list[str]:
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and (words[-1] in _CONTENTS or words[-1].isdigit()):  # client-key-data, TOKEN2
        words.pop()
    return words


def _is_secret_name(words: list[str]) -> bool:
    last, joined = words[-1], "".join(words)
    if _is_described(words):
        return False
    if any(part in joined for part in _SECRET_PARTS) or last.endswith(_SECRET_ENDS) or last in _SECRET_WORDS:
        return True
    if last in _SECRET_LAST_WORDS:
        return len(words) > 1
    if last.endswith("pass") and last not in _NOT_A_PASS:
        return True
    return last.endswith(("key", "keys")) and not _KEYS_WITHOUT_SECRET.intersection(words)


def _is_described(words: list[str]) -> bool:
    last = words[-1]
    if last == "hash":  # of a token it is public; of a password it can be guessed
        return not any("pass" in word or word == "pwd" for word in words)
    return last in _DESCRIPTION_WORDS or last.endswith(_DESCRIPTION_ENDS)


def _is_description(words: list[str], value: str) -> bool:
    """Whether the value only describes a secret: the path of a key file, the name of a Secret, a count."""
    last = words[-1]
    if last.endswith(("key", "keys", "token", "secret")) and _PATH.fullmatch(value):
        return True
    if last == "credentials" and _PATH.fullmatch(value.partition(",")[0]):  # an option of a mount
        return True
    if last == "community":
        return bool(_BGP_COMMUNITY.fullmatch(value)) or "://" in value or " " in value
    if words == ["secret"]:
        return bool(_OBJECT_NAME.fullmatch(value))
    if last == "secrets":
        return value.isdigit() or bool(_DNS_NAME.fullmatch(value))
    return last in ("keys", "tokens") and value.isdigit()


def _is_mixed(value: str) -> bool:
    return any(map(str.isdigit, value)) and any(map(str.isupper, value)) and any(map(str.islower, value))
