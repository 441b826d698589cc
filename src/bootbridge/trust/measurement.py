"""Measurement registers, and the values that a verifier expects in them.

A register (a TPM's PCR, or without a TPM a file that lasts until the next boot) starts at zero and can only
be extended: `new = H(old ‖ H(data))`. Its value therefore proves the whole sequence of measurements.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Protocol

from bootbridge.common.documents import CONFIG, FieldError, checked, quoted
from bootbridge.errors import BootbridgeError

# The register that the node lock is measured into.
LOCK_REGISTER = 15
REGISTERS = range(24)
REGISTER_BYTES = hashlib.sha256().digest_size
ZERO: Final = bytes(REGISTER_BYTES)

# By digest length.
_HASHES = {32: hashlib.sha256, 48: hashlib.sha384}
_INDEX = re.compile(r"0|[1-9][0-9]?")
_HEX = re.compile(r"[0-9a-fA-F]{64}|[0-9a-fA-F]{96}")


class RegisterFailed(BootbridgeError):
    """The register could not be read or extended."""


class Register(Protocol):
    """One register of this machine. Both calls may raise RegisterFailed."""

    async def extend(self, data: bytes) -> None: ...

    async def read(self) -> bytes:
        """Returns 32 bytes, all zero if nothing was extended since boot."""
        ...


def extended(old: bytes, digest: bytes) -> bytes:
    """Returns the value after `digest` was extended into it; both are SHA-256 or both SHA-384."""
    if len(old) != len(digest) or len(old) not in _HASHES:
        raise ValueError(f"register of {len(old)} bytes and digest of {len(digest)} bytes do not match")
    return _HASHES[len(old)](old + digest).digest()


def after_event(old: bytes, data: bytes) -> bytes:
    """Returns the value after `data` was measured into it, as by TPM2_PCR_Event."""
    return extended(old, _HASHES[len(old)](data).digest())


def lock_value(cluster_id: bytes) -> bytes:
    """Returns the lock register's value on a node that belongs to this cluster."""
    return after_event(ZERO, cluster_id)


class FileRegister:
    """A register for machines without a TPM: a file on tmpfs, so that a reboot clears it.

    It preserves the lock of an honest node; unlike a TPM it proves nothing to others.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"<FileRegister {self.path}>"

    async def extend(self, data: bytes) -> None:
        with self._exclusively():
            self._write(after_event(self._value(), data))

    async def read(self) -> bytes:
        try:
            return self._value()
        except OSError as error:
            raise self._failed(error) from error

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Locks against other processes, as an extend reads and writes."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX)
                yield
            finally:
                os.close(directory)
        except OSError as error:
            raise self._failed(error) from error

    def _value(self) -> bytes:
        try:
            value = self.path.read_bytes()
        except FileNotFoundError:
            return bytes(REGISTER_BYTES)
        if len(value) != REGISTER_BYTES:
            hint = "another program wrote it: reboot the machine"
            raise RegisterFailed(f"{self.path}: {len(value)} bytes, expected {REGISTER_BYTES} ({hint})")
        return value

    def _write(self, value: bytes) -> None:
        # mkstemp makes the file 0600.
        descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(value)
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise

    def _failed(self, error: OSError) -> RegisterFailed:
        hint = "use a writable directory on tmpfs"
        return RegisterFailed(f"register {self.path}: {error.strerror or error} ({hint})")


def _register_index(text: str) -> str:
    if not _INDEX.fullmatch(text) or int(text) not in REGISTERS:
        hint = f"registers are {REGISTERS.start} to {REGISTERS.stop - 1}"
        raise FieldError(f"invalid register {quoted(text)}", hint=hint)
    return text


def _register_value(text: str) -> str:
    if not _HEX.fullmatch(text):
        hint = "64 hexadecimal digits for SHA-256, 96 for SHA-384; in YAML between quotes"
        raise FieldError(f"invalid register value {quoted(text)}", hint=hint)
    return text


RegisterIndex = Annotated[str, checked(_register_index)]
RegisterValue = Annotated[str, checked(_register_value)]


@dataclass(frozen=True)
class Expectation:
    __pydantic_config__ = CONFIG

    expected: RegisterValue
    """The register's value, as 64 (SHA-256) or 96 (SHA-384) hexadecimal digits."""
    warn_only: bool = False
    """Whether another value is logged instead of rejected."""


# A plain value is enforced.
Measurements = dict[RegisterIndex, RegisterValue | Expectation]


@dataclass(frozen=True)
class Comparison:
    """The differences, by their effect."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class MeasurementPolicy:
    """Expected values by register; unlisted registers may have any value."""

    expected: Mapping[int, Expectation]

    @classmethod
    def of(cls, measurements: Measurements) -> MeasurementPolicy:
        return cls(
            {
                int(index): Expectation(given) if isinstance(given, str) else given
                for index, given in measurements.items()
            }
        )

    def compare(self, values: Mapping[int, bytes]) -> Comparison:
        refusals: list[str] = []
        warnings: list[str] = []
        for index, expectation in sorted(self.expected.items()):
            if difference := _difference(index, values.get(index), bytes.fromhex(expectation.expected)):
                (warnings if expectation.warn_only else refusals).append(difference)
        return Comparison(tuple(refusals), tuple(warnings))


def _difference(index: int, value: bytes | None, expected: bytes) -> str:
    if value is None:
        return f"PCR {index} missing, expected {expected.hex()}"
    if not hmac.compare_digest(value, expected):
        return f"PCR {index} is {value.hex()}, expected {expected.hex()}"
    return ""
