"""A PCR as the register that the node lock is measured into."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bootbridge.trust.measurement import LOCK_REGISTER, REGISTER_BYTES, RegisterFailed
from bootbridge.trust.tpm.chip import Chip
from bootbridge.trust.tpm.codec import MalformedTpmData
from bootbridge.trust.tpm.device import Device, TpmUnreachable
from bootbridge.trust.tpm.return_codes import TpmError

T = TypeVar("T")


class TpmRegister:
    """Extends every bank, reads the SHA-256 one; `trust.measurement.Register` says the rest."""

    def __init__(self, device: Device, index: int = LOCK_REGISTER) -> None:
        self._device = device
        self._index = index

    def __repr__(self) -> str:
        return f"<TpmRegister {self._index} of {self._device.address}>"

    async def extend(self, data: bytes) -> None:
        await self._use(lambda chip: chip.measure(self._index, data))

    async def read(self) -> bytes:
        values = await self._use(lambda chip: chip.read_pcrs([self._index]))
        value = values.get(self._index, b"")
        if len(value) != REGISTER_BYTES:
            hint = "switch the SHA-256 bank on in the firmware's TPM settings"
            raise RegisterFailed(f"the TPM at {self._device.address} has no SHA-256 bank ({hint})")
        return value

    async def _use(self, work: Callable[[Chip], T]) -> T:
        try:
            return await self._device.use(work)
        except (TpmError, TpmUnreachable, MalformedTpmData) as error:
            raise RegisterFailed(f"PCR {self._index}: {error}") from error
