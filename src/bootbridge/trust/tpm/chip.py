"""An open connection to a TPM: what is done in which order, with every handle given back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec

from bootbridge.trust.tpm import commands
from bootbridge.trust.tpm.codec import MalformedTpmData
from bootbridge.trust.tpm.commands import ENDORSEMENT, Command, Response
from bootbridge.trust.tpm.return_codes import FULL, HANDLE, NV_UNINITIALISED, TRY_AGAIN, TpmError
from bootbridge.trust.tpm.structures import ALG_SHA256, PcrSelection, Public, read_selections
from bootbridge.trust.tpm.templates import (
    AK,
    EK_ECC,
    EK_ECC_CERTIFICATE,
    EK_ECC_PERSISTENT,
    EK_RSA,
    EK_RSA_CERTIFICATE,
    EK_RSA_PERSISTENT,
)

# TPM2_PCR_Read gives at most eight values at a time.
_PCRS_AT_ONCE = 8
_NV_BYTES_AT_ONCE = 512
_NONCE_BYTES = 16
_TRIES = 50
_TRY_AGAIN_SECONDS = 0.1
_PT_MANUFACTURER, _PT_FIRMWARE = 0x105, 0x10B


@dataclass(frozen=True)
class Key:
    """A key that is loaded now."""

    handle: int
    public: Public


@dataclass(frozen=True)
class Described:
    """What a TPM says about itself, for people."""

    manufacturer: str
    firmware: str
    banks: tuple[PcrSelection, ...]


class Chip:
    """Blocking; `Device.use` lends one to a function that runs in a thread.

    `shared`: a resource manager stands between, so what is loaded may be others' and is not ours to flush.
    """

    def __init__(self, exchange: Callable[[bytes], bytes], *, shared: bool) -> None:
        self._exchange = exchange
        self._shared = shared

    def run(self, command: Command) -> Response:
        try:
            return self._run(command)
        except TpmError as error:
            if error.code not in FULL or self._shared:
                raise
        # A process that was killed in the middle leaves its key behind, and there is room for three.
        self._flush_leftovers()
        return self._run(command)

    def _run(self, command: Command) -> Response:
        encoded = command.encode()
        for _ in range(_TRIES):
            try:
                return commands.parse_response(command, self._exchange(encoded))
            except TpmError as error:
                if error.code not in TRY_AGAIN:
                    raise
            time.sleep(_TRY_AGAIN_SECONDS)
        return commands.parse_response(command, self._exchange(encoded))

    def _flush_leftovers(self) -> None:
        for first in (commands.TRANSIENT_FIRST, commands.LOADED_SESSION_FIRST):
            for handle in commands.handles_of(self._run(commands.list_handles(first))):
                self._run(commands.flush(handle))

    def read_pcrs(self, indices: Sequence[int], algorithm: int = ALG_SHA256) -> dict[int, bytes]:
        """The values; registers that this bank does not have are left out."""
        values: dict[int, bytes] = {}
        for start in range(0, len(indices), _PCRS_AT_ONCE):
            reader = self.run(commands.pcr_read(algorithm, indices[start : start + _PCRS_AT_ONCE])).parameters
            reader.u32()  # how often PCRs changed
            shown = [index for selection in read_selections(reader) for index in selection.indices]
            digests = commands.read_digests(reader)
            if len(shown) != len(digests):
                raise MalformedTpmData(f"the TPM names {len(shown)} PCRs and gives {len(digests)} values")
            values.update(zip(shown, digests, strict=True))
        return values

    def measure(self, index: int, data: bytes) -> None:
        """Extend the data's hash into this register, in every bank."""
        self.run(commands.pcr_event(index, data))

    def quote(self, key: Key, data: bytes, indices: Sequence[int]) -> tuple[bytes, bytes]:
        """(what was attested, signature)."""
        return commands.quoted_of(self.run(commands.quote(key.handle, data, indices)))

    @contextmanager
    def attestation_key(self) -> Iterator[Key]:
        with self._primary(AK) as key:
            yield key

    @contextmanager
    def endorsement_key(self, *, elliptic: bool) -> Iterator[Key]:
        """The chip's own key; one that is kept in the chip is used, for making an RSA key takes seconds."""
        template = EK_ECC if elliptic else EK_RSA
        handle = EK_ECC_PERSISTENT if elliptic else EK_RSA_PERSISTENT
        kept = self._kept(handle)
        # Other tools may keep another key there.
        if kept is not None and _same_form(kept, template):
            yield Key(handle, kept)
            return
        with self._primary(template) as key:
            yield key

    def endorsement_certificate(self) -> bytes:
        """As the manufacturer left it, DER; empty when there is none. RSA first, as every chip has that."""
        return self.read_nv(EK_RSA_CERTIFICATE) or self.read_nv(EK_ECC_CERTIFICATE)

    def read_nv(self, index: int) -> bytes:
        """What is in an NV index; empty when there is none or nothing was written."""
        try:
            size = commands.nv_size_of(self.run(commands.nv_read_public(index)))
            data = bytearray()
            while len(data) < size:
                wanted = min(_NV_BYTES_AT_ONCE, size - len(data))
                part = self.run(commands.nv_read(index, wanted, len(data))).parameters.sized()
                if len(part) != wanted:
                    raise MalformedTpmData(f"the TPM gives {len(part)} bytes of NV in place of {wanted}")
                data += part
            return bytes(data)
        except TpmError as error:
            if error.code in (HANDLE, NV_UNINITIALISED):
                return b""
            raise

    def activate(self, key: Key, endorsement_key: Key, blob: bytes, secret: bytes) -> bytes:
        """Decrypt a credential, which only the chip that holds both keys can."""
        with self._policy_session() as session:
            self.run(commands.policy_secret(ENDORSEMENT, session))
            command = commands.activate_credential(key.handle, endorsement_key.handle, session, blob, secret)
            return self.run(command).parameters.sized()

    def describe(self) -> Described:
        found = commands.properties_of(self.run(commands.get_properties(_PT_MANUFACTURER, 8)))
        name = found.get(_PT_MANUFACTURER, 0).to_bytes(4, "big").decode("ascii", "replace").strip("\0 ")
        firmware = found.get(_PT_FIRMWARE, 0)
        reader = self.run(commands.list_banks()).parameters
        reader.u8(), reader.u32()
        banks = tuple(bank for bank in read_selections(reader) if bank.indices)
        return Described(name, f"{firmware >> 16}.{firmware & 0xFFFF}", banks)

    @contextmanager
    def _primary(self, template: Public) -> Iterator[Key]:
        response = self.run(commands.create_primary(ENDORSEMENT, template))
        with self._flushed(response.handle):
            yield Key(response.handle, commands.public_of(response))

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
                # A session is gone by itself after the command that it authorised.
                if error.code != HANDLE:
                    raise

    def _kept(self, handle: int) -> Public | None:
        try:
            return commands.public_of(self.run(commands.read_public(handle)))
        except (TpmError, MalformedTpmData):
            return None


def _same_form(key: Public, template: Public) -> bool:
    elliptic = isinstance(key.key(), ec.EllipticCurvePublicKey)
    forms = [(each.attributes, each.policy, each.aes_bits) for each in (key, template)]
    return forms[0] == forms[1] and elliptic == (template is EK_ECC)
