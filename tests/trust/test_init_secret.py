"""The init secret: only its hash is in the metadata, and only the secret itself opens it."""

from __future__ import annotations

import hashlib

import pytest

from bootbridge.errors import OperatorError
from bootbridge.trust import init_secret


def test_a_secret_matches_its_own_hash_and_no_other() -> None:
    secret, hashed = init_secret.make()
    another, _ = init_secret.make()
    assert init_secret.matches(secret, hashed)
    assert not init_secret.matches(another, hashed)
    assert not init_secret.matches(secret[:-1], hashed)
    assert not init_secret.matches(b"", hashed)


def test_the_same_secret_hashes_differently_each_time() -> None:
    """So that metadata does not reveal that two instances share a secret."""
    assert init_secret.hash_of(b"secret") != init_secret.hash_of(b"secret")


def test_a_secret_is_printable_and_not_in_its_hash() -> None:
    secret, hashed = init_secret.make()
    assert secret.decode().replace("-", "").replace("_", "").isalnum()
    assert len(secret) >= 43
    assert secret.decode() not in hashed


def test_the_hash_is_plain_scrypt() -> None:
    """Other tools may make it too: infrastructure code often does."""
    digest = hashlib.scrypt(b"other", salt=b"saltsalt", n=1024, r=8, p=1, dklen=32)
    assert init_secret.matches(b"other", f"scrypt$1024$8$1${b'saltsalt'.hex()}${digest.hex()}")


def test_an_empty_hash_matches_nothing() -> None:
    assert not init_secret.matches(b"", "")


_SALT, _DIGEST = "00" * 16, "00" * 32


@pytest.mark.parametrize(
    "hashed",
    [
        "plain",
        "bcrypt$10$8$1$00$00",
        f"scrypt$16384$8$1${_SALT}",
        f"scrypt$x$8$1${_SALT}${_DIGEST}",
        f"scrypt$-16384$8$1${_SALT}${_DIGEST}",
        f"scrypt$16383$8$1${_SALT}${_DIGEST}",
        f"scrypt${2**30}$8$1${_SALT}${_DIGEST}",
        f"scrypt$16384$4096$1${_SALT}${_DIGEST}",
        f"scrypt$16384$8$99${_SALT}${_DIGEST}",
        f"scrypt$16384$8$1$00${_DIGEST}",
        f"scrypt$16384$8$1${_SALT}$00",
        f"scrypt$16384$8$1$zz${_DIGEST}",
        f"scrypt${'9' * 5000}$8$1${_SALT}${_DIGEST}",
    ],
)
def test_invalid_and_too_expensive_hashes_are_refused(hashed: str) -> None:
    with pytest.raises(OperatorError):
        init_secret.matches(b"secret", hashed)
