"""Sequences of TPM commands on an open connection; every loaded handle is flushed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec

from bootbridge.trust.tpm import commands
from bootbridge.trust.tpm.codec import MalformedTpmData
from bootbridge.trust.tpm.commands import RH_ENDORSEMENT, TpmCommand, TpmResponse
from bootbridge.trust.tpm.return_codes import HANDLE, NV_UNINITIALISED, OUT_OF_MEMORY, TRANSIENT, TpmError
from bootbridge.trust.tpm.structures import ALG_SHA256, PcrSelection, PublicArea, read_selections
from bootbridge.trust.tpm.templates import (
    AK,
    EK_ECC,
    EK_ECC_CERTIFICATE,
    EK_ECC_PERSISTENT,
    EK_RSA,
    EK_RSA_CERTIFICATE,
    EK_RSA_PERSISTENT,
)

# TPM2_PCR_Read returns at most eight values.
_PCRS_AT_ONCE = 8
_NV_BYTES_AT_ONCE = 512
_NONCE_BYTES = 16
_ATTEMPTS = 50
_RETRY_SECONDS = 0.1
_PT_MANUFACTURER, _PT_FIRMWARE = 0x105, 0x10B


@dataclass(frozen=True)
class LoadedKey:
    """A loaded or persistent key."""

    handle: int
    public: PublicArea


@dataclass(frozen=True)
class SavedKey:
    """A primary key outside the TPM: encrypted, and only this TPM loads it, until it is reset."""

    context: bytes
    public: PublicArea


@dataclass(frozen=True)
class TpmInfo:
    """Manufacturer, firmware version and active PCR banks, for display."""

    manufacturer: str
    firmware: str
    banks: tuple[PcrSelection, ...]


class TpmConnection:
    """Blocking; `TpmDevice.use` passes one to a function that runs in a thread.

    `shared`: behind a resource manager, where leftover handles may belong to other programs. `saved`: primary
    keys of earlier connections, by template; loading one takes a fraction of the time of creating it.
    """

    def __init__(
        self,
        exchange: Callable[[bytes], bytes],
        *,
        shared: bool,
        saved: dict[PublicArea, SavedKey] | None = None,
    ) -> None:
        self._exchange = exchange
        self._shared = shared
        self._saved = {} if saved is None else saved

    def run(self, command: TpmCommand) -> TpmResponse:
        try:
            return self._run(command)
        except TpmError as error:
            if error.code not in OUT_OF_MEMORY or self._shared:
                raise
        # A killed process leaves its key loaded, and a TPM has room for three.
        self._flush_leftovers()
        return self._run(command)

    def _run(self, command: TpmCommand) -> TpmResponse:
        encoded = command.encode()
        for _ in range(_ATTEMPTS):
            try:
                return commands.parse_response(command, self._exchange(encoded))
            except TpmError as error:
                if error.code not in TRANSIENT:
                    raise
            time.sleep(_RETRY_SECONDS)
        return commands.parse_response(command, self._exchange(encoded))

    def _flush_leftovers(self) -> None:
        for first in (commands.TRANSIENT_FIRST, commands.LOADED_SESSION_FIRST):
            for handle in commands.parse_handles(self._run(commands.get_handles(first))):
                self._run(commands.flush(handle))

    def read_pcrs(self, indices: Sequence[int], algorithm: int = ALG_SHA256) -> dict[int, bytes]:
        """Returns the values by index, without PCRs that the bank does not have."""
        values: dict[int, bytes] = {}
        for start in range(0, len(indices), _PCRS_AT_ONCE):
            reader = self.run(commands.pcr_read(algorithm, indices[start : start + _PCRS_AT_ONCE])).parameters
            reader.u32()  # pcrUpdateCounter
            selected = [index for selection in read_selections(reader) for index in selection.indices]
            digests = commands.read_digests(reader)
            if len(selected) != len(digests):
                raise MalformedTpmData(
                    f"malformed response to TPM2_PCR_Read: {len(selected)} PCRs, {len(digests)} values"
                )
            values.update(zip(selected, digests, strict=True))
        return values

    def measure(self, index: int, data: bytes) -> None:
        """Extends the data's hash into this PCR, in every bank."""
        self.run(commands.pcr_event(index, data))

    def quote(self, key: LoadedKey, data: bytes, indices: Sequence[int]) -> tuple[bytes, bytes]:
        """Returns (TPMS_ATTEST, TPMT_SIGNATURE), both encoded."""
        return commands.parse_quote_response(self.run(commands.quote(key.handle, data, indices)))

    @contextmanager
    def attestation_key(self) -> Iterator[LoadedKey]:
        with self._primary(AK) as key:
            yield key

    @contextmanager
    def endorsement_key(self, *, elliptic: bool) -> Iterator[LoadedKey]:
        """Uses the persistent EK if there is one: creating an RSA primary takes seconds."""
        template = EK_ECC if elliptic else EK_RSA
        handle = EK_ECC_PERSISTENT if elliptic else EK_RSA_PERSISTENT
        persistent = self._read_persistent(handle)
        # Other tools may have stored another key at this handle.
        if persistent is not None and _matches_template(persistent, template):
            yield LoadedKey(handle, persistent)
            return
        with self._primary(template) as key:
            yield key

    def endorsement_certificate(self) -> bytes:
        """Returns the manufacturer's certificate, DER, or b"". RSA first, as every TPM has it."""
        return self.read_nv(EK_RSA_CERTIFICATE) or self.read_nv(EK_ECC_CERTIFICATE)

    def read_nv(self, index: int) -> bytes:
        """Returns an NV index's data; empty if it is not defined or was never written."""
        try:
            size = commands.parse_nv_size(self.run(commands.nv_read_public(index)))
            data = bytearray()
            while len(data) < size:
                wanted = min(_NV_BYTES_AT_ONCE, size - len(data))
                part = self.run(commands.nv_read(index, wanted, len(data))).parameters.sized()
                if len(part) != wanted:
                    raise MalformedTpmData(
                        f"malformed response to TPM2_NV_Read: {len(part)} bytes (expected {wanted})"
                    )
                data += part
            return bytes(data)
        except TpmError as error:
            if error.code in (HANDLE, NV_UNINITIALISED):
                return b""
            raise

    def activate(self, key: LoadedKey, endorsement_key: LoadedKey, blob: bytes, secret: bytes) -> bytes:
        """Decrypts a credential; only the TPM that holds both keys can."""
        with self._policy_session() as session:
            self.run(commands.policy_secret(RH_ENDORSEMENT, session))
            command = commands.activate_credential(key.handle, endorsement_key.handle, session, blob, secret)
            return self.run(command).parameters.sized()

    def describe(self) -> TpmInfo:
        found = commands.parse_properties(self.run(commands.get_properties(_PT_MANUFACTURER, 8)))
        name = found.get(_PT_MANUFACTURER, 0).to_bytes(4, "big").decode("ascii", "replace").strip("\0 ")
        firmware = found.get(_PT_FIRMWARE, 0)
        reader = self.run(commands.get_pcr_banks()).parameters
        reader.u8(), reader.u32()
        banks = tuple(bank for bank in read_selections(reader) if bank.indices)
        return TpmInfo(name, f"{firmware >> 16}.{firmware & 0xFFFF}", banks)

    @contextmanager
    def _primary(self, template: PublicArea) -> Iterator[LoadedKey]:
        key = self._load_saved(template) or self._create(template)
        with self._flushed(key.handle):
            yield key

    def _load_saved(self, template: PublicArea) -> LoadedKey | None:
        if (saved := self._saved.get(template)) is None:
            return None
        try:
            return LoadedKey(self.run(commands.context_load(saved.context)).handle, saved.public)
        except TpmError:
            del self._saved[template]  # the TPM was reset
            return None

    def _create(self, template: PublicArea) -> LoadedKey:
        response = self.run(commands.create_primary(RH_ENDORSEMENT, template))
        key = LoadedKey(response.handle, commands.parse_public(response))
        with suppress(TpmError):  # then it is created each time
            context = self.run(commands.context_save(key.handle)).parameters.rest()
            self._saved[template] = SavedKey(context, key.public)
        return key

    @contextmanager
    def _policy_session(self) -> Iterator[int]:
        response = self.run(commands.start_policy_session(secrets.token_bytes(_NONCE_BYTES)))
        with self._flushed(response.handle):
            yield response.handle

    @contextmanager
    def _flushed(self, handle: int) -> Iterator[None]:
        try:
            yield
        finally:
            try:
                self.run(commands.flush(handle))
            except TpmError as error:
                # A policy session is flushed by the command that used it.
                if error.code != HANDLE:
                    raise

    def _read_persistent(self, handle: int) -> PublicArea | None:
        try:
            return commands.parse_public(self.run(commands.read_public(handle)))
        except (TpmError, MalformedTpmData):
            return None


def _matches_template(key: PublicArea, template: PublicArea) -> bool:
    elliptic = isinstance(key.key(), ec.EllipticCurvePublicKey)
    parts = [(each.attributes, each.policy, each.aes_bits) for each in (key, template)]
    return parts[0] == parts[1] and elliptic == (template is EK_ECC)
