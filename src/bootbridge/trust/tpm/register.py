"""A PCR as `trust.measurement.Register`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bootbridge.trust.measurement import LOCK_REGISTER, REGISTER_BYTES, RegisterFailed
from bootbridge.trust.tpm.codec import MalformedTpmData
from bootbridge.trust.tpm.connection import TpmConnection
from bootbridge.trust.tpm.device import TpmDevice, TpmUnreachable
from bootbridge.trust.tpm.return_codes import TpmError

T = TypeVar("T")


class TpmRegister:
    """Extends every bank, reads the SHA-256 bank."""

    def __init__(self, device: TpmDevice, index: int = LOCK_REGISTER) -> None:
        self._device = device
        self._index = index

    def __repr__(self) -> str:
        return f"<TpmRegister {self._index} of {self._device.address}>"

    async def extend(self, data: bytes) -> None:
        await self._use(lambda tpm: tpm.measure(self._index, data))

    async def read(self) -> bytes:
        values = await self._use(lambda tpm: tpm.read_pcrs([self._index]))
        value = values.get(self._index, b"")
        if len(value) != REGISTER_BYTES:
            hint = "enable the SHA-256 bank in the firmware's TPM settings"
            raise RegisterFailed(f"TPM {self._device.address}: no SHA-256 PCR bank ({hint})")
        return value

    async def _use(self, work: Callable[[TpmConnection], T]) -> T:
        try:
            return await self._device.use(work)
        except (TpmError, TpmUnreachable, MalformedTpmData) as error:
            raise RegisterFailed(f"PCR {self._index}: {error}") from error
