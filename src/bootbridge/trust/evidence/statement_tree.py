"""A Merkle tree over statements, so that one quote serves all peers that wait for one.

The root is the qualifying data of the quote. Every statement contains its verifier's nonce and is in the tree
before the TPM signs the root, so the quote is as fresh for each verifier as one of its own. A verifier
computes the root from its own statement and the siblings on the path; those of others are hashes of values
that it cannot guess.

Leaves, inner nodes and padding have different prefixes, so that none can be presented as another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HASH_BYTES: Final = hashlib.sha256().digest_size
# 64 statements: as many as a listener has connections in attestation (AdmissionLimits.handshakes).
PATH_MAX: Final = 6
STATEMENTS_MAX: Final = 2**PATH_MAX

_CONTEXT: Final = b"bootbridge evidence tpm 2\0"
_LEAF, _NODE, _PADDING = (_CONTEXT + kind for kind in (b"leaf\0", b"node\0", b"padding\0"))


class PathInvalid(ValueError):
    """The path is too long, has hashes of a wrong size, or does not belong to its position."""


@dataclass(frozen=True)
class Inclusion:
    """Where a statement is: its position among the leaves, and the siblings from the leaf to the root."""

    position: int
    path: tuple[bytes, ...]


def build(statements: Sequence[bytes]) -> tuple[bytes, tuple[Inclusion, ...]]:
    """Returns the root and each statement's inclusion; takes 1 to STATEMENTS_MAX statements."""
    if not 1 <= len(statements) <= STATEMENTS_MAX:
        raise ValueError(f"{len(statements)} statements (1 to {STATEMENTS_MAX} are accepted)")
    height = (len(statements) - 1).bit_length()
    padding = [hashlib.sha256(_PADDING).digest()] * (2**height - len(statements))
    rows = [[_leaf(each) for each in statements] + padding]
    while len(rows[-1]) > 1:
        below = rows[-1]
        rows.append([_node(below[at], below[at + 1]) for at in range(0, len(below), 2)])
    included = (
        Inclusion(position, tuple(row[(position >> level) ^ 1] for level, row in enumerate(rows[:-1])))
        for position in range(len(statements))
    )
    return rows[-1][0], tuple(included)


def root_of(statement: bytes, inclusion: Inclusion) -> bytes:
    """Returns the root of the tree in which the statement is included so; raises PathInvalid."""
    path = inclusion.path
    if len(path) > PATH_MAX:
        raise PathInvalid(f"path of {len(path)} hashes (at most {PATH_MAX})")
    if any(len(each) != HASH_BYTES for each in path):
        raise PathInvalid(f"path with a hash that has not {HASH_BYTES} bytes")
    if inclusion.position >= 2 ** len(path):
        raise PathInvalid(f"position {inclusion.position} in a tree of {2 ** len(path)} leaves")
    found, position = _leaf(statement), inclusion.position
    for sibling in path:
        found = _node(sibling, found) if position & 1 else _node(found, sibling)
        position >>= 1
    return found


def _leaf(statement: bytes) -> bytes:
    return hashlib.sha256(_LEAF + statement).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()
