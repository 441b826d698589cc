"""Restores an injected ignition file from a record inside the file.

The record has each edit's position in the original and the replaced text. It cannot contain the length of the
edit that adds the record itself; that length follows from the file's total length. The original's hash
verifies the result, so a file that was changed after the injection is rejected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from bootbridge.bootstrap.ignition.document import Ignition, Splice, apply_splices
from bootbridge.errors import OperatorError

VERSION = 1


def dump(original: Ignition, edits: Sequence[Splice], with_record: Splice) -> bytes:
    """Returns the record of all edits. `with_record` is the edit that adds it."""
    entries = [_entry(original, edit, len(edit.text)) for edit in edits]
    document = {
        "version": VERSION,
        "originalSHA256": hashlib.sha256(original.data).hexdigest(),
        "originalLength": len(original.text),
        "edits": [*entries, _entry(original, with_record, None)],
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def _entry(original: Ignition, edit: Splice, length: int | None) -> dict[str, Any]:
    replaced = original.text[edit.start : edit.start + edit.length]
    return {"start": edit.start, "length": length, "original": replaced}


def restore(injected: Ignition, record: bytes, name: str) -> Ignition:
    """Returns the document before the edits. `name` is the file in errors."""
    try:
        document = json.loads(record)
        if document["version"] != VERSION:
            hint = "use the bootbridge version that injected it"
            raise OperatorError("unsupported version of the injection record", subject=name, hint=hint)
        text = apply_splices(injected.text, _reverse(document, len(injected.text)))
        is_same = hashlib.sha256(text.encode()).hexdigest() == document["originalSHA256"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OperatorError("invalid injection record", subject=name, hint=_HINT) from error
    if not is_same:
        text = "cannot restore the original: changed or reformatted after the injection"
        raise OperatorError(text, subject=name, hint=_HINT)
    return Ignition.parse(text.encode(), name)


_HINT = "create the ignition files again, or inject another copy"


def _reverse(document: dict[str, Any], length_now: int) -> list[Splice]:
    """Returns splices of the injected text that restore the original."""
    entries = sorted(document["edits"], key=lambda entry: entry["start"])
    kept = document["originalLength"] - sum(len(entry["original"]) for entry in entries)
    rest = length_now - kept - sum(entry["length"] or 0 for entry in entries)
    splices, shift = [], 0
    for entry in entries:
        length = rest if entry["length"] is None else entry["length"]
        if min(length, entry["start"] + shift) < 0:
            raise ValueError("edit outside the text")
        splices.append(Splice(entry["start"] + shift, length, entry["original"]))
        shift += length - len(entry["original"])
    return splices
