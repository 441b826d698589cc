"""The one check that every kind of evidence makes on both sides before anything else."""

from __future__ import annotations

from bootbridge.trust.evidence import STATEMENT_BYTES, EvidenceRefused


def checked(statement: bytes) -> bytes:
    """Evidence about an empty or cut statement would be good for any session."""
    if len(statement) != STATEMENT_BYTES:
        raise EvidenceRefused(f"a statement has {STATEMENT_BYTES} bytes, this one has {len(statement)}")
    return statement
