"""Secrets in files of the user: read only if no other user can read them, never overwritten."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from bootbridge.common.files import write_error
from bootbridge.errors import OperatorError

FILE_BYTES_MAX = 64 * 1024


def read_secret(path: Path, subject: str) -> bytes:
    """Returns the content; `subject` is the flag that named the file."""
    try:
        with path.open("rb") as file:
            open_to_others = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error.strerror or error}", subject=subject) from error
    if open_to_others:
        raise OperatorError(f"{path} is readable by others", subject=subject, hint=f"chmod 600 {path}")
    if len(data) > FILE_BYTES_MAX:
        raise OperatorError(f"{path} is too large for a secret", subject=subject)
    return data


def write_new_secret(path: Path, data: bytes, subject: str) -> None:
    """Writes atomically with mode 0600; refuses to overwrite: the file may be the only copy of a secret."""
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        hint = "give another file name, or move the existing file"
        raise OperatorError(f"file exists: {path}", subject=subject, hint=hint) from None
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        if temporary:
            os.unlink(temporary)
