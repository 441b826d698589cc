"""How to give an ignition file back as it was: carried inside the file itself, among what was injected.

The record notes each edit by its place in the original and the text that stood there. It cannot
note the length of the edit that it is part of; that one is what remains of the whole length. The
original's hash proves the result: a file that somebody changed since is refused, never guessed at.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from bootbridge.bootstrap.ignition.document import Ignition, Splice, spliced
from bootbridge.errors import OperatorError

VERSION = 1


def dump(original: Ignition, edits: Sequence[Splice], with_record: Splice) -> bytes:
    """The record of all edits; `with_record` is the one that will carry it."""
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
    """The document before the edits; `name` is what errors call the file."""
    try:
        document = json.loads(record)
        if document["version"] != VERSION:
            hint = "use the bootbridge that injected it"
            raise OperatorError("was injected by another version", subject=name, hint=hint)
        text = spliced(injected.text, _reverse(document, len(injected.text)))
        is_same = hashlib.sha256(text.encode()).hexdigest() == document["originalSHA256"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OperatorError("carries a broken record of its injection", subject=name, hint=_HINT) from error
    if not is_same:
        text = "was changed or reformatted after the injection, so the original cannot be given back"
        raise OperatorError(text, subject=name, hint=_HINT)
    return Ignition.parse(text.encode(), name)


_HINT = "create the ignition files anew, or inject a fresh copy"


def _reverse(document: dict[str, Any], length_now: int) -> list[Splice]:
    """The same edits as places in the injected text, each putting the original back."""
    entries = sorted(document["edits"], key=lambda entry: entry["start"])
    kept = document["originalLength"] - sum(len(entry["original"]) for entry in entries)
    rest = length_now - kept - sum(entry["length"] or 0 for entry in entries)
    splices, shift = [], 0
    for entry in entries:
        length = rest if entry["length"] is None else entry["length"]
        if min(length, entry["start"] + shift) < 0:
            raise ValueError("an edit lies outside the text")
        splices.append(Splice(entry["start"] + shift, length, entry["original"]))
        shift += length - len(entry["original"])
    return splices
