"""The user's side of an init: reach the instance, see what it proves, send the request, and watch to the end.

An init that has begun goes on without us. So a lost connection is made anew with the same init ID, and the
instance tells what has happened since; only what an instance *says* is final, never that it is silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from bootbridge.common.backoff import Backoff
from bootbridge.errors import BootbridgeError, PeerError
from bootbridge.node.init.messages import (
    ACKNOWLEDGE,
    INIT,
    InitEvent,
    InitFailure,
    InitRequest,
    InitSuccess,
    StageEvent,
)
from bootbridge.runtime.grpc import GrpcClient, RpcError
from bootbridge.trust.attested.channel import AttestedChannel, ChannelFailed
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused
from bootbridge.trust.evidence.tpm import KIND as TPM
from bootbridge.trust.evidence.tpm import LOCK_FACT
from bootbridge.trust.key_hierarchy import cluster_id
from bootbridge.trust.measurement import ZERO, lock_value
from bootbridge.wire import grpc_messages as grpc

# For an instance that still boots, and a load balancer without a healthy one behind it.
REACH_SECONDS: Final = 15 * 60.0
# To be told that it need not wait for us is a kindness to the instance, which does not need it.
ACKNOWLEDGE_SECONDS: Final = 5.0
LOG_BYTES_MAX: Final = 64 * 1024 * 1024

Dial = Callable[[], Awaitable[AttestedChannel]]


class InitRefused(BootbridgeError):
    """The instance would not have this call; what it may be doing otherwise is not touched by that."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice


class InitFailed(BootbridgeError):
    """The init has ended, badly; `advice` is what to do, `log` what the instance sent along."""

    def __init__(self, reason: str, advice: str = "", *, may_retry: bool = False, log: bytes = b"") -> None:
        super().__init__(reason)
        self.advice = advice
        self.may_retry = may_retry
        self.log = log


class InstanceUnreachable(BootbridgeError):
    """Time ran out without a word from the instance; `begun` if the init may have begun there."""

    def __init__(self, reason: str, *, begun: bool) -> None:
        super().__init__(reason)
        self.begun = begun


class Report(Protocol):
    """Who is told what happens."""

    def waiting(self, reason: str) -> None:
        """The instance cannot be reached, yet or any more; told at every attempt."""
        ...

    def connected(self, peer: AttestedPeer | None) -> None: ...
    def stage(self, event: StageEvent) -> None: ...


@dataclass
class InitClient:
    dial: Dial
    request: InitRequest
    report: Report
    backoff: Backoff
    reach_seconds: float = REACH_SECONDS
    # Puts the result where it is safe: before that, the instance goes on holding it for us.
    keep: Callable[[InitSuccess], None] = lambda success: None
    # Whether the request was sent: from then on the init may be going on.
    begun: bool = False

    async def run(self) -> InitSuccess:
        """Until the init has ended; raises InitFailed, InitRefused, EvidenceRefused, Unreachable."""
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + self.reach_seconds
        while True:
            seen = self.request.seen
            try:
                return await self._connection()
            except (ChannelFailed, _Lost) as error:
                reason = str(error)
            if self.request.seen > seen:
                # It was there and spoke: the patience for a lost connection begins anew.
                gives_up_at = loop.time() + self.reach_seconds
                self.backoff.reset()
            if loop.time() >= gives_up_at:
                raise InstanceUnreachable(reason, begun=self.begun)
            self.report.waiting(reason)
            await asyncio.sleep(self.backoff.seconds())

    async def _connection(self) -> InitSuccess:
        channel = await self.dial()
        try:
            self._refuse_if_locked(channel.peer)
            self.report.connected(channel.peer)
            async with GrpcClient(channel.reader, channel.writer) as caller:
                return await self._fetch(caller)
        finally:
            await channel.close()

    async def _fetch(self, caller: GrpcClient) -> InitSuccess:
        """The end, which is ours before the instance hears that we have it."""
        try:
            success = await self._watch(caller)
        except InitFailed as failure:
            if not failure.may_retry:
                await self._acknowledge(caller)
            raise
        self.keep(success)
        await self._acknowledge(caller)
        return success

    async def _acknowledge(self, caller: GrpcClient) -> None:
        with suppress(RpcError):
            await caller.unary(ACKNOWLEDGE, b"", ACKNOWLEDGE_SECONDS)

    def _refuse_if_locked(self, peer: AttestedPeer | None) -> None:
        """An instance that was measured for another cluster must not be told this one's secret."""
        shown = peer.facts.get(LOCK_FACT) if peer else None
        if peer and peer.kind == TPM and shown is None:
            raise EvidenceRefused("the instance does not show PCR 15, which says whether it is locked")
        ours = lock_value(cluster_id(self.request.measurement_secret, self.request.measurement_salt))
        if shown is not None and shown not in (ZERO.hex(), ours.hex()):
            raise EvidenceRefused(
                f"the instance is locked for another cluster: PCR 15 is {shown} (reboot it)"
            )

    async def _watch(self, caller: GrpcClient) -> InitSuccess:
        self.begun = True
        failure: InitFailure | None = None
        log = bytearray()
        try:
            async with aclosing(caller.stream(INIT, self.request.encode())) as events:
                async for body in events:
                    event = InitEvent.decode(body)
                    if failure is not None:
                        # Only logs follow a failure; whatever else came could not undo it.
                        log += event.log[: LOG_BYTES_MAX - len(log)]
                    elif event.success is not None:
                        return event.success
                    elif event.failure is not None:
                        failure = event.failure
                    elif event.stage is not None:
                        self.report.stage(event.stage)
                    else:
                        raise PeerError("the instance sent an event that says nothing")
                    self._note(event)
        except RpcError as error:
            if failure is None or (failure.may_retry and error.code in _SILENCE):
                raise _meaning(error) from error
        if failure is None:
            raise _Lost("the instance ended the call without a result")
        raise InitFailed(failure.reason, failure.advice, may_retry=failure.may_retry, log=bytes(log))

    def _note(self, event: InitEvent) -> None:
        if event.number > self.request.seen:
            self.request = replace(self.request, seen=event.number)


class _Lost(BootbridgeError):
    """Nothing was said; the instance may be asked again."""


def _meaning(error: RpcError) -> BootbridgeError:
    """Silence is asked again, an answer is final."""
    if error.code in _SILENCE:
        return _Lost(error.message)
    return InitRefused(error.message, _ADVICE.get(error.code, ""))


# Too many attempts, too: others may have made them.
_SILENCE: Final = (grpc.UNAVAILABLE, grpc.CANCELLED, grpc.DEADLINE_EXCEEDED, grpc.RESOURCE_EXHAUSTED)
_ADVICE: Final = {
    grpc.PERMISSION_DENIED: "see that the file given by --init-secret-file holds the secret whose hash is in "
    "the instance's metadata",
    grpc.FAILED_PRECONDITION: "watch the init that is running with --resume and its ID, or choose another "
    "instance",
    grpc.UNIMPLEMENTED: "see that the instance runs this version of bootbridge",
}
