"""The server of `bootbridge node init` on the instance: authenticates clients, starts and streams the init.

The init runs in a separate task: it continues when the client disconnects, and the client may reconnect.
A client without the init secret gets no information beyond the rejection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import Fatal, Transient
from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.join_api.instance import Metadata, Role, node_name
from bootbridge.node.init.attempt_limit import AttemptLimit, TooManyAttempts
from bootbridge.node.init.events import InitEvents
from bootbridge.node.init.flow import InitFlow
from bootbridge.node.init.listener import Admitted, InitListener, OpenInitListener
from bootbridge.node.init.log_buffer import LogBuffer
from bootbridge.node.init.messages import (
    ACKNOWLEDGE,
    INIT,
    InitEvent,
    InitFailure,
    InitRequest,
    InitSuccess,
    StageEvent,
)
from bootbridge.node.join.sources import METADATA_SECONDS_MAX
from bootbridge.node.lock.bootstrap_record import REBOOT, BootstrapRecord, Flow, Phase
from bootbridge.node.lock.flow_inputs import InitInputs, InitResult
from bootbridge.node.lock.node_lock import NodeLock
from bootbridge.node.stages import log_stage
from bootbridge.runtime import logs, tasks
from bootbridge.runtime.concurrency import cancel_and_wait, run_unless, with_timeout
from bootbridge.runtime.grpc import Handler, RpcError, Send
from bootbridge.trust.key_hierarchy import KEY_BYTES, KeyRefused, cluster_id
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.proto import MessageError

# How long a result is kept without acknowledgement after it was last sent: it may have been lost.
LINGER_SECONDS: Final = 120.0
POLL_SECONDS: Final = 1.0
ID_CHARACTERS_MAX: Final = 100


@dataclass(frozen=True)
class InitSources:
    """The dependencies of InitServer."""

    metadata: Metadata
    # (secret, hash), compared in constant time.
    secret_matches: Callable[[bytes, str], bool]
    # Raises OperatorError for an invalid join policy.
    check_policy: Callable[[bytes], object]
    open_listener: OpenInitListener
    log_buffer: LogBuffer


@dataclass
class InitRun:
    """The state of one init, from before the lock to its outcome."""

    init_id: str
    events: InitEvents = field(default_factory=InitEvents)
    # Why it never started: another flow holds the lock.
    refusal: str = ""
    failure: Exception | None = None
    success: InitSuccess | None = None
    # Whether a client has acknowledged the outcome, and when one was last connected.
    acknowledged: asyncio.Event = field(default_factory=asyncio.Event)
    last_seen: float = 0.0
    task: asyncio.Task[Any] | None = None

    @property
    def over(self) -> bool:
        return self.success is not None or self.failure is not None


@dataclass
class _Connection:
    """One connection, and the init that its client watches after sending the secret."""

    admitted: Admitted
    run: InitRun | None = None


class InitServer:
    def __init__(
        self,
        lock: NodeLock,
        sources: InitSources,
        flow: InitFlow,
        random: Random,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        self._lock = lock
        self._sources = sources
        self._flow = flow
        self._random = random
        self._linger_seconds = linger_seconds
        self._secret_hash = ""
        self._attempts = AttemptLimit()
        self._run: InitRun | None = None
        self._listener: InitListener | None = None
        self._lingering_stopped = asyncio.Event()

    # --- lifecycle

    async def serve(self) -> InitSuccess | None:
        """Returns the result of an init; None if another flow took the lock. Raises Fatal after the lock."""
        opening = tasks.spawn(self._open_listener(), "init: open listener")
        try:
            await self._lock.wait_until_decided()
            return await self._wait_for_result() if self._lock.holder is Flow.INIT else None
        finally:
            await self._shut_down(opening)

    async def resume(self, record: BootstrapRecord) -> InitSuccess:
        """Resumes an init after a crash and serves the client that was watching it."""
        if record.phase is Phase.DONE:
            self._run = self._finished_run(record)
        else:
            self._run = InitRun(InitInputs.decode(record.inputs).init_id, InitEvents(record.resumed))
            self._run.task = tasks.spawn(self._resume_flow(self._run, record), "init: resumed")
        opening = tasks.spawn(self._open_listener(), "init: open listener")
        try:
            return await self._wait_for_result()
        finally:
            await self._shut_down(opening)

    def stop_lingering(self) -> None:
        """Stops waiting for a client to fetch the result: the process was asked to stop."""
        self._lingering_stopped.set()

    async def _open_listener(self) -> None:
        """Retries until it succeeds; the instance may join in the meantime."""
        waits = Backoff(self._random)
        while True:
            try:
                request = self._sources.metadata.init_secret_hash()
                self._secret_hash = await with_timeout(METADATA_SECONDS_MAX, request, "metadata")
                if not self._secret_hash:
                    logs.event("node", logs.INFO, "init disabled: no init secret hash in the metadata")
                    return
                self._listener = await self._sources.open_listener(self.handlers)
                return
            except (BootbridgeError, OSError) as error:
                pause = waits.seconds()
                logs.event("node", logs.WARNING, "init listener failed", error=str(error), retry_in=pause)
            await asyncio.sleep(pause)

    async def _wait_for_result(self) -> InitSuccess:
        run = self._run
        assert run is not None
        if run.task is not None:
            await asyncio.wait({run.task})
        await self._linger(run)
        if run.failure is not None:
            raise run.failure
        assert run.success is not None
        self._lock.discard_result()
        return run.success

    async def _linger(self, run: InitRun) -> None:
        """Keeps the result until a client acknowledges it or `lingerSeconds` have passed."""
        run.last_seen = _now()
        await run_unless(self._lingering_stopped.wait(), self._wait_for_acknowledgement(run))

    async def _wait_for_acknowledgement(self, run: InitRun) -> None:
        while (left := run.last_seen + self._linger_seconds - _now()) > 0:
            if await _set_within(left, run.acknowledged):
                return
        # A client that is connected now may be fetching the result. Bounded, since unauthenticated clients
        # could connect one after the other.
        gives_up_at = _now() + self._linger_seconds
        while self._listener is not None and self._listener.connections and _now() < gives_up_at:
            if await _set_within(POLL_SECONDS, run.acknowledged):
                return

    async def _shut_down(self, opening: asyncio.Task[None]) -> None:
        """Stops the listener first: an init that has just lost the lock still has to inform its client."""
        run = self._run
        await cancel_and_wait(opening)
        if self._listener is not None:
            await self._listener.stop()
        if run is not None and run.task is not None:
            await cancel_and_wait(run.task)

    # --- calls

    def handlers(self, source: str, admitted: Admitted) -> dict[str, Handler]:
        """Returns the handlers of one connection."""
        connection = _Connection(admitted)
        return {
            INIT: partial(self._init, source, connection),
            ACKNOWLEDGE: partial(self._acknowledge, connection),
        }

    async def _init(self, source: str, connection: _Connection, body: bytes, send: Send) -> None:
        try:
            request = InitRequest.decode(body)
        except MessageError as error:
            raise RpcError(grpc.INVALID_ARGUMENT, f"invalid init request: {error}") from None
        await self._authenticate(source, request)
        connection.admitted()
        connection.run = run = self._find_run(request) or await self._start(request, send)
        await self._stream_events(run, request.seen, send)

    async def _acknowledge(self, connection: _Connection, body: bytes, send: Send) -> None:
        """The client has stored the outcome: the server need not linger."""
        if connection.run is None or not connection.run.over:
            raise RpcError(grpc.FAILED_PRECONDITION, "no outcome was sent on this connection")
        connection.run.acknowledged.set()
        await send(b"")

    async def _authenticate(self, source: str, request: InitRequest) -> None:
        """Checks the init secret before any other field; the rejection contains no further information."""
        try:
            matches = await self._attempts.attempt(
                source, lambda: self._sources.secret_matches(request.init_secret, self._secret_hash)
            )
        except TooManyAttempts:
            raise RpcError(grpc.RESOURCE_EXHAUSTED, "too many attempts, try again later") from None
        if not matches:
            logs.event("node", logs.WARNING, "init rejected: wrong init secret", source=source)
            raise RpcError(grpc.PERMISSION_DENIED, "wrong init secret")
        self._sources.log_buffer.redact(request.init_secret, request.measurement_secret)

    def _find_run(self, request: InitRequest) -> InitRun | None:
        """Returns the running init if the request has its ID; rejects the request if another flow runs."""
        if self._run is not None:
            if self._run.init_id == request.init_id:
                return self._run
            done = self._run.success is not None
            raise _rejection("instance is already initialised" if done else "another init is running")
        if not self._lock.is_available:
            raise _rejection(self._why_unavailable())
        return None

    def _why_unavailable(self) -> str:
        return "instance is joining a cluster" if self._lock.holder else "instance is stopping"

    async def _start(self, request: InitRequest, send: Send) -> InitRun:
        try:
            inputs = await self._validate(request)
        except Transient as error:
            advice = "retry"
            await send(_retriable(str(error), advice))
            raise RpcError(grpc.UNAVAILABLE, f"{error} ({advice})") from error
        except (OperatorError, KeyRefused) as error:
            await send(_retriable(str(error), "correct the request and run init again"))
            raise RpcError(grpc.INVALID_ARGUMENT, str(error)) from error
        # Another request may have started an init during validation.
        return self._find_run(request) or self._spawn_flow(inputs)

    async def _validate(self, request: InitRequest) -> InitInputs:
        if not 0 < len(request.init_id) <= ID_CHARACTERS_MAX or not request.init_id.isprintable():
            raise OperatorError(f"must be 1 to {ID_CHARACTERS_MAX} printable characters", subject="init_id")
        if len(request.measurement_secret) != KEY_BYTES:
            raise OperatorError(f"must be {KEY_BYTES} bytes long", subject="measurement_secret")
        cluster_id(request.measurement_secret, request.measurement_salt)
        self._sources.check_policy(request.join_policy)
        instance = await with_timeout(METADATA_SECONDS_MAX, self._sources.metadata.myself(), "metadata")
        if instance.role is not Role.CONTROL_PLANE:
            hint = "run init on an instance whose role in the metadata is control-plane"
            raise OperatorError(f"role is {instance.role}", subject=instance.name, hint=hint)
        node_name(instance.name)
        inputs = InitInputs.of(request, instance)
        _ = inputs.spec  # raises OperatorError
        return inputs

    def _spawn_flow(self, inputs: InitInputs) -> InitRun:
        run = self._run = InitRun(inputs.init_id)
        run.task = tasks.spawn(self._run_flow(run, inputs), "init")
        return run

    async def _stream_events(self, run: InitRun, seen: int, send: Send) -> None:
        """Sends the events that the client has not received; after a failure, also the log."""
        number = seen
        async for event in run.events.after(seen):
            number, run.last_seen = event.number, _now()
            await send(event.encode())
        if run.refusal:
            raise _rejection(run.refusal)
        if run.failure is not None:
            async for piece in self._sources.log_buffer.read():
                await send(InitEvent(number, log=piece).encode())
        run.last_seen = _now()

    # --- the flow

    async def _run_flow(self, run: InitRun, inputs: InitInputs) -> None:
        cluster = cluster_id(inputs.measurement_secret, inputs.measurement_salt)
        try:
            if not await self._lock.try_lock(Flow.INIT, cluster, inputs.encode()):
                run.refusal, self._run = self._why_unavailable(), None
                run.events.close()
                return
            logs.event("node", logs.INFO, "init started", cluster=cluster.hex(), init=run.init_id)
            _set_success(run, await self._flow.run(inputs, partial(_report_stage, run)))
        except Exception as error:
            _set_failure(run, error)

    async def _resume_flow(self, run: InitRun, record: BootstrapRecord) -> None:
        try:
            _set_success(run, await self._flow.resume(record, partial(_report_stage, run)))
        except Exception as error:
            _set_failure(run, error)

    def _finished_run(self, record: BootstrapRecord) -> InitRun:
        result = InitResult.decode(record.result)
        run = InitRun(result.init_id, InitEvents(record.resumed + 1))
        _set_success(run, InitSuccess(result.kubeconfig, record.cluster_id))
        return run


def _report_stage(run: InitRun, event: StageEvent) -> None:
    run.events.stage(event)
    log_stage(event)


def _set_success(run: InitRun, success: InitSuccess) -> None:
    run.success = success
    run.events.end(success)


def _set_failure(run: InitRun, error: Exception) -> None:
    """Stores the error for `_wait_for_result` and sends it to clients; a bug is reported as such."""
    run.failure = error
    if isinstance(error, Fatal):
        run.events.end(InitFailure(str(error.args[0]), error.advice))
    else:
        run.events.end(InitFailure(f"internal error: {error!r}", REBOOT))


def _rejection(reason: str) -> RpcError:
    logs.event("node", logs.WARNING, "init rejected", reason=reason)
    return RpcError(grpc.FAILED_PRECONDITION, reason)


def _retriable(reason: str, advice: str) -> bytes:
    return InitEvent(failure=InitFailure(reason, advice, may_retry=True)).encode()


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _set_within(seconds: float, event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
