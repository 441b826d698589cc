"""The one-way lock between init and join: taken once, never given back before a reboot.

Taking it is decided without awaiting anything, so among tasks of this loop there is one winner. The winner
then *measures*: the cluster's ID is extended into the register, and from there on the instance can prove
only that it belongs to that cluster. What it is about to do is written down before, so that a crash at
any point in between can be told apart from a finished bootstrap.
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

# Leads back to a blank machine; never fails.
Undo = Callable[[], Awaitable[None]]


async def nothing_to_undo() -> None:
    """To undo, as far as anyone knows."""


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
        """Whether it can still be taken."""
        return not self._decided.is_set()

    async def wait_until_decided(self) -> None:
        """Wait until somebody has it, or nobody shall any more."""
        await self._decided.wait()

    def close(self) -> None:
        """Nobody shall take it any more in this process; whoever has it keeps it."""
        self._decided.set()

    async def try_lock(self, flow: Flow, cluster_id: bytes, inputs: bytes) -> bool:
        """Takes the lock and measures the instance; False if it is taken already. Fatal if that fails."""
        if self._decided.is_set():
            return False
        self._holder = flow
        self._decided.set()
        await self._mark(BootstrapRecord(Phase.LOCKING, flow, cluster_id, inputs), write=True)
        return True

    async def restore(self, remembered: bytes = b"") -> BootstrapRecord | None:
        """What this boot has begun before, with the lock taken if so; None on a fresh boot.

        `remembered` is the cluster that the instance belonged to before it was rebooted.
        """
        record = self._records.load()
        if record is None:
            value = await self._read()
            if value != ZERO and not (remembered and value == lock_value(remembered)):
                raise Fatal("this instance was measured, and nothing says by whom", advice=REBOOT)
            return None
        self._holder = record.flow
        self._decided.set()
        if record.phase is Phase.FAILED:
            raise Fatal(record.reason, advice=record.advice)
        if record.phase is Phase.LOCKING:
            await self._mark(record, write=False)
        elif await self._read() != lock_value(record.cluster_id):
            raise Fatal("the register does not say what this boot has measured", advice=REBOOT)
        else:
            self._record = record
        if record.phase is not Phase.DONE:
            self._save(resumed=record.resumed + 1)
        return self._record

    def advance(self, phase: Phase, result: bytes = b"") -> None:
        """The holder has come further. Nothing is left to resume once it is done: the work's secrets go."""
        if phase is Phase.DONE:
            self._save(phase=phase, result=result, inputs=b"")
        else:
            self._save(phase=phase, result=result)

    def discard_result(self) -> None:
        """The result has been fetched, or nobody came for it: it is not kept."""
        try:
            self._save(result=b"")
        except (BootbridgeError, OSError) as error:
            # The cluster is there all the same; the next boot forgets what was kept.
            logs.event("node", logs.WARNING, "the result could not be dropped", why=str(error))

    def mark_completed(self) -> None:
        """The work is done: if only this cannot be written down, nothing of it is undone."""
        self._completed = True

    @asynccontextmanager
    async def recording_failure(self, undo: Undo) -> AsyncIterator[None]:
        """Around the holder's work: what fails here has failed until the reboot, and is remembered as such.

        So a restart repeats the advice and not the failure. A crash leaves no such mark, and is resumed. What
        kubeadm was given or has made is undone before: nobody comes back for the keys that lie there.
        """
        try:
            yield
        except (BootbridgeError, OSError) as error:
            failure = error if isinstance(error, Fatal) else Fatal(str(error), advice=REBOOT)
            if self._record is not None and self._record.phase is Phase.KUBEADM and not self._completed:
                await undo()
            self._fail(failure)
            raise failure from error

    def _fail(self, failure: Fatal) -> None:
        reason, advice = str(failure.args[0]), failure.advice
        try:
            self._save(phase=Phase.FAILED, inputs=b"", result=b"", reason=reason, advice=advice)
        except (BootbridgeError, OSError) as error:
            # Then a restart tries once more; the failure itself is what the operator must hear of.
            logs.event("node", logs.ERROR, "the failure could not be written down", why=str(error))

    async def _mark(self, record: BootstrapRecord, *, write: bool) -> None:
        """Write, measure, write: every crash in between is one that `restore` understands."""
        try:
            value = await self._register.read()
            if value not in (ZERO, lock_value(record.cluster_id)):
                raise Fatal("this instance was measured for another cluster", advice=REBOOT)
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
            failure = Fatal(f"cannot lock this instance: {error}", advice=REBOOT)
            if self._record is not None:
                self._fail(failure)
            raise failure from error

    async def _read(self) -> bytes:
        try:
            return await self._register.read()
        except (BootbridgeError, OSError) as error:
            raise Fatal(
                f"cannot read the register: {error}",
                advice="see that the TPM, or the register's directory, can be used, and start again",
            ) from error

    def _save(self, **changes: object) -> None:
        assert self._record is not None, "only the holder advances"
        self._record = replace(self._record, **changes)  # type: ignore[arg-type]
        self._records.save(self._record)
