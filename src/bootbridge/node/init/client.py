"""The client of an init: connects to the instance, verifies it, sends the request and watches the init.

An init continues without its client. After a lost connection the client reconnects with the same init ID and
receives the events it missed. Only an answer of the instance is final; a lost connection never is.
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

# Covers an instance that still boots, and a load balancer without a healthy backend.
REACH_SECONDS: Final = 15 * 60.0
# Short: the acknowledgement only saves the instance from lingering.
ACKNOWLEDGE_SECONDS: Final = 5.0
LOG_BYTES_MAX: Final = 64 * 1024 * 1024

Dial = Callable[[], Awaitable[AttestedChannel]]


class InitRefused(BootbridgeError):
    """The instance rejected the request; an init that runs there is not affected."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice


class InitFailed(BootbridgeError):
    """The init has failed; `advice` is the fix, `log` the log of the instance."""

    def __init__(self, reason: str, advice: str = "", *, may_retry: bool = False, log: bytes = b"") -> None:
        super().__init__(reason)
        self.advice = advice
        self.may_retry = may_retry
        self.log = log


class InstanceUnreachable(BootbridgeError):
    """The time limit passed without an answer; `request_sent`: the init may be running there."""

    def __init__(self, reason: str, *, request_sent: bool) -> None:
        super().__init__(reason)
        self.request_sent = request_sent


class InitProgress(Protocol):
    def waiting(self, reason: str) -> None:
        """The connection failed or was lost; called after every attempt."""
        ...

    def connected(self, peer: AttestedPeer | None) -> None: ...
    def stage(self, event: StageEvent) -> None: ...


@dataclass
class InitClient:
    dial: Dial
    request: InitRequest
    report: InitProgress
    backoff: Backoff
    reach_seconds: float = REACH_SECONDS
    # Stores the result; called before it is acknowledged to the instance.
    store: Callable[[InitSuccess], None] = lambda success: None
    # From then on the init may be running.
    request_sent: bool = False

    async def run(self) -> InitSuccess:
        """Returns when the init has succeeded.

        Raises InitFailed, InitRefused, EvidenceRefused or InstanceUnreachable.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.reach_seconds
        while True:
            seen = self.request.seen
            try:
                return await self._connect_and_watch()
            except (ChannelFailed, _ConnectionLost) as error:
                reason = str(error)
            if self.request.seen > seen:
                # The instance sent events on this connection: the time limit starts again.
                deadline = loop.time() + self.reach_seconds
                self.backoff.reset()
            if loop.time() >= deadline:
                raise InstanceUnreachable(reason, request_sent=self.request_sent)
            self.report.waiting(reason)
            await asyncio.sleep(self.backoff.seconds())

    async def _connect_and_watch(self) -> InitSuccess:
        channel = await self.dial()
        try:
            self._require_unlocked(channel.peer)
            self.report.connected(channel.peer)
            async with GrpcClient(channel.reader, channel.writer) as caller:
                return await self._fetch_result(caller)
        finally:
            await channel.close()

    async def _fetch_result(self, caller: GrpcClient) -> InitSuccess:
        """Stores the result before acknowledging it."""
        try:
            success = await self._watch(caller)
        except InitFailed as failure:
            if not failure.may_retry:
                await self._acknowledge(caller)
            raise
        self.store(success)
        await self._acknowledge(caller)
        return success

    async def _acknowledge(self, caller: GrpcClient) -> None:
        with suppress(RpcError):
            await caller.unary(ACKNOWLEDGE, b"", ACKNOWLEDGE_SECONDS)

    def _require_unlocked(self, peer: AttestedPeer | None) -> None:
        """An instance that was measured for another cluster must not receive this cluster's secret."""
        register = peer.facts.get(LOCK_FACT) if peer else None
        if peer and peer.kind == TPM and register is None:
            raise EvidenceRefused("evidence lacks PCR 15, which contains the node lock")
        ours = lock_value(cluster_id(self.request.measurement_secret, self.request.measurement_salt))
        if register is not None and register not in (ZERO.hex(), ours.hex()):
            raise EvidenceRefused(f"instance is locked for another cluster: PCR 15 is {register} (reboot it)")

    async def _watch(self, caller: GrpcClient) -> InitSuccess:
        self.request_sent = True
        failure: InitFailure | None = None
        log = bytearray()
        try:
            async with aclosing(caller.stream(INIT, self.request.encode())) as events:
                async for body in events:
                    event = InitEvent.decode(body)
                    if failure is not None:
                        # Only the log follows a failure; other fields are ignored.
                        log += event.log[: LOG_BYTES_MAX - len(log)]
                    elif event.success is not None:
                        return event.success
                    elif event.failure is not None:
                        failure = event.failure
                    elif event.stage is not None:
                        self.report.stage(event.stage)
                    else:
                        raise PeerError("instance sent an empty event")
                    self._mark_seen(event)
        except RpcError as error:
            if failure is None or (failure.may_retry and error.code in _RETRYABLE):
                raise _error_from(error) from error
        if failure is None:
            raise _ConnectionLost("instance ended the call without a result")
        raise InitFailed(failure.reason, failure.advice, may_retry=failure.may_retry, log=bytes(log))

    def _mark_seen(self, event: InitEvent) -> None:
        if event.number > self.request.seen:
            self.request = replace(self.request, seen=event.number)


class _ConnectionLost(BootbridgeError):
    """No final answer was received; the request may be repeated."""


def _error_from(error: RpcError) -> BootbridgeError:
    if error.code in _RETRYABLE:
        return _ConnectionLost(error.message)
    return InitRefused(error.message, _ADVICE.get(error.code, ""))


# RESOURCE_EXHAUSTED: the attempt limit may be reached because of other clients.
_RETRYABLE: Final = (grpc.UNAVAILABLE, grpc.CANCELLED, grpc.DEADLINE_EXCEEDED, grpc.RESOURCE_EXHAUSTED)
_ADVICE: Final = {
    grpc.PERMISSION_DENIED: "check that the file given by --init-secret-file contains the secret whose hash "
    "is in the metadata of the instance",
    grpc.FAILED_PRECONDITION: "watch the running init with --resume and its ID, or choose another instance",
    grpc.UNIMPLEMENTED: "check that the instance runs the same version of bootbridge",
}
