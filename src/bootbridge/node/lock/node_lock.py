"""The one-way lock between init and join: taken once, released only by a reboot.

`try_lock` decides without awaiting, so exactly one task of this event loop wins. The winner then *measures*:
it extends the register (PCR 15) with the cluster ID, after which the instance can prove membership in that
cluster only. A bootstrap record is written before and after, so that `restore` can tell every crash in
between from a finished bootstrap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from bootbridge.common.failures import Fatal
from bootbridge.errors import BootbridgeError
from bootbridge.node.lock.bootstrap_record import REBOOT, BootstrapRecord, Flow, Phase, RecordStore
from bootbridge.runtime import logs
from bootbridge.trust.measurement import ZERO, Register, lock_value

# Removes what kubeadm created; must not raise.
Undo = Callable[[], Awaitable[None]]


async def nothing_to_undo() -> None:
    """The Undo for a step that has not changed the machine."""


class NodeLock:
    def __init__(self, records: RecordStore, register: Register) -> None:
        self._records = records
        self._register = register
        self._record: BootstrapRecord | None = None
        self._holder: Flow | None = None
        self._completed = False
        self._decided = asyncio.Event()

    @property
    def holder(self) -> Flow | None:
        return self._holder

    @property
    def is_available(self) -> bool:
        return not self._decided.is_set()

    async def wait_until_decided(self) -> None:
        """Waits until a flow has taken the lock or `close` was called."""
        await self._decided.wait()

    def close(self) -> None:
        """Prevents any further flow of this process from taking the lock; the holder keeps it."""
        self._decided.set()

    async def try_lock(self, flow: Flow, cluster_id: bytes, inputs: bytes) -> bool:
        """Takes the lock and measures the instance; False if the lock is taken, Fatal if measuring fails."""
        if self._decided.is_set():
            return False
        self._holder = flow
        self._decided.set()
        await self._record_and_measure(BootstrapRecord(Phase.LOCKING, flow, cluster_id, inputs), write=True)
        return True

    async def restore(self, remembered: bytes = b"") -> BootstrapRecord | None:
        """Returns the record of this boot and takes the lock for its flow; None on a fresh boot.

        `remembered` is the cluster ID of the node state, if the instance was a node before the reboot. Raises
        Fatal if record and register contradict each other, or if the recorded flow has failed.
        """
        record = self._records.load()
        if record is None:
            value = await self._read_register()
            if value != ZERO and not (remembered and value == lock_value(remembered)):
                raise Fatal("register: measured, but there is no bootstrap record", advice=REBOOT)
            return None
        self._holder = record.flow
        self._decided.set()
        if record.phase is Phase.FAILED:
            raise Fatal(record.reason, advice=record.advice)
        if record.phase is Phase.LOCKING:
            await self._record_and_measure(record, write=False)
        elif await self._read_register() != lock_value(record.cluster_id):
            raise Fatal("register: does not match the bootstrap record of this boot", advice=REBOOT)
        else:
            self._record = record
        if record.phase is not Phase.DONE:
            self._save(resumed=record.resumed + 1)
        return self._record

    def advance(self, phase: Phase, result: bytes = b"") -> None:
        """Records the next phase of the holder; DONE discards the flow inputs and their secrets."""
        if phase is Phase.DONE:
            self._save(phase=phase, result=result, inputs=b"")
        else:
            self._save(phase=phase, result=result)

    def discard_result(self) -> None:
        """Removes the result from the record, after it was acknowledged or `lingerSeconds` have passed."""
        try:
            self._save(result=b"")
        except (BootbridgeError, OSError) as error:
            # The cluster works all the same, and the record does not survive the next boot.
            logs.event("node", logs.WARNING, "result not removed from the record", error=str(error))

    def mark_completed(self) -> None:
        """Disables undo: the node works, even if recording so fails."""
        self._completed = True

    @asynccontextmanager
    async def recording_failure(self, undo: Undo) -> AsyncIterator[None]:
        """Converts an error of the holder's flow to Fatal and records it as final until the next reboot.

        A restart then repeats the advice instead of the attempt; a crash leaves no such record and is
        resumed. In phase KUBEADM `undo` runs first, because no later attempt removes the keys on disk.
        """
        try:
            yield
        except (BootbridgeError, OSError) as error:
            failure = error if isinstance(error, Fatal) else Fatal(str(error), advice=REBOOT)
            if self._record is not None and self._record.phase is Phase.KUBEADM and not self._completed:
                await undo()
            self._record_failure(failure)
            raise failure from error

    def _record_failure(self, failure: Fatal) -> None:
        reason, advice = str(failure.args[0]), failure.advice
        try:
            self._save(phase=Phase.FAILED, inputs=b"", result=b"", reason=reason, advice=advice)
        except (BootbridgeError, OSError) as error:
            # A restart then tries once more. The original failure is the one to report.
            logs.event("node", logs.ERROR, "failure not recorded", error=str(error))

    async def _record_and_measure(self, record: BootstrapRecord, *, write: bool) -> None:
        """Writes LOCKING, extends the register, writes LOCKED; `restore` handles a crash after each."""
        try:
            value = await self._register.read()
            if value not in (ZERO, lock_value(record.cluster_id)):
                raise Fatal("register: measured for another cluster", advice=REBOOT)
            if write:
                self._records.save(record)
                self._record = record
            if value == ZERO:
                await self._register.extend(record.cluster_id)
            self._record = record
            self._save(phase=Phase.LOCKED)
        except Fatal:
            raise
        except (BootbridgeError, OSError) as error:
            failure = Fatal(f"node lock: measuring failed: {error}", advice=REBOOT)
            if self._record is not None:
                self._record_failure(failure)
            raise failure from error

    async def _read_register(self) -> bytes:
        try:
            return await self._register.read()
        except (BootbridgeError, OSError) as error:
            raise Fatal(
                f"register: read failed: {error}",
                advice="check that the TPM or the register file is accessible, then restart",
            ) from error

    def _save(self, **changes: object) -> None:
        assert self._record is not None, "only the holder advances"
        self._record = replace(self._record, **changes)  # type: ignore[arg-type]
        self._records.save(self._record)
