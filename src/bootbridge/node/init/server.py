"""The instance's side of `node init`: checks who asks and what for, starts the init, lets it be watched.

The init is a task of its own: it goes on when its watcher leaves, and a watcher may come back. Whoever does
not know the init secret learns nothing but that.
"""

from __future__ import annotations

import asyncio
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
from bootbridge.node.join.flow import log_stage
from bootbridge.node.lock.bootstrap_record import REBOOT, BootstrapRecord, Flow, Phase
from bootbridge.node.lock.flow_inputs import InitInputs, InitResult
from bootbridge.node.lock.node_lock import NodeLock
from bootbridge.node.ports import (
    METADATA_SECONDS_MAX,
    Admitted,
    CheckPolicy,
    InitListener,
    OpenInitListener,
    SecretMatches,
)
from bootbridge.runtime import logs, tasks
from bootbridge.runtime.concurrency import cancel_and_wait, run_unless, with_timeout
from bootbridge.runtime.grpc import Handler, RpcError, Send
from bootbridge.trust.key_hierarchy import KEY_BYTES, KeyRefused, cluster_id
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.proto import MessageError

# For an end that nobody has fetched, since it was last told: what was sent may be lost on its way.
LINGER_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 1.0
ID_CHARACTERS_MAX: Final = 100


@dataclass(frozen=True)
class InitSources:
    """What the server is put together from."""

    metadata: Metadata
    matches: SecretMatches
    check_policy: CheckPolicy
    door: OpenInitListener
    log_buffer: LogBuffer


@dataclass
class InitRun:
    """One init, from before the lock to its end."""

    init_id: str
    events: InitEvents = field(default_factory=InitEvents)
    # Why it never began: somebody else had the lock.
    refusal: str = ""
    failure: Exception | None = None
    success: InitSuccess | None = None
    # Whether a watcher has said that it has the end, and when one was last here.
    acknowledged: asyncio.Event = field(default_factory=asyncio.Event)
    visited: float = 0.0
    task: asyncio.Task[Any] | None = None

    @property
    def over(self) -> bool:
        return self.success is not None or self.failure is not None


@dataclass
class _Visit:
    """One connection, and what whoever showed the secret there came for."""

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
        self._door: InitListener | None = None
        self._hurried = asyncio.Event()

    # --- the server's life

    async def serve(self) -> InitSuccess | None:
        """The cluster that this instance became; None if it was not to be ours. Fatal past the lock only."""
        opening = tasks.spawn(self._open(), "init: opening")
        try:
            await self._lock.wait_until_decided()
            return await self._finished() if self._lock.holder is Flow.INIT else None
        finally:
            await self._over(opening)

    async def resume(self, record: BootstrapRecord) -> InitSuccess:
        """Take an init up again after a crash, and be there for whoever was watching it."""
        if record.phase is Phase.DONE:
            self._run = self._finished_before(record)
        else:
            self._run = InitRun(InitInputs.decode(record.inputs).init_id, InitEvents(record.resumed))
            self._run.task = tasks.spawn(self._resumed(self._run, record), "init: resumed")
        opening = tasks.spawn(self._open(), "init: opening")
        try:
            return await self._finished()
        finally:
            await self._over(opening)

    def hurry(self) -> None:
        """Whoever has not fetched the result by now will not get it: this process is wanted gone."""
        self._hurried.set()

    async def _open(self) -> None:
        """Tried until it works; meanwhile the instance may join."""
        waits = Backoff(self._random)
        while True:
            try:
                asked = self._sources.metadata.init_secret_hash()
                self._secret_hash = await with_timeout(METADATA_SECONDS_MAX, asked, "the metadata")
                if not self._secret_hash:
                    logs.event("node", logs.INFO, "init is disabled: the metadata has no init secret")
                    return
                self._door = await self._sources.door(self.handlers)
                return
            except (BootbridgeError, OSError) as error:
                pause = waits.seconds()
                logs.event("node", logs.WARNING, "init is not possible yet", why=str(error), again_in=pause)
            await asyncio.sleep(pause)

    async def _finished(self) -> InitSuccess:
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
        """Hold the end until a watcher says that it has it; for one who lost the connection, not for ever."""
        run.visited = _now()
        await run_unless(self._hurried.wait(), self._wait_for_acknowledgement(run))

    async def _wait_for_acknowledgement(self, run: InitRun) -> None:
        while (left := run.visited + self._linger_seconds - _now()) > 0:
            if await _set_within(left, run.acknowledged):
                return
        # Whoever is at the door right now may have come for it, and is let finish; within a bound, for
        # strangers could come one after the other.
        gives_up_at = _now() + self._linger_seconds
        while self._door is not None and self._door.connections and _now() < gives_up_at:
            if await _set_within(LOOK_SECONDS, run.acknowledged):
                return

    async def _over(self, opening: asyncio.Task[None]) -> None:
        """Close the door first: an init that lost the lock this very moment still has to tell its caller."""
        run = self._run
        await cancel_and_wait(opening)
        if self._door is not None:
            await self._door.stop()
        if run is not None and run.task is not None:
            await cancel_and_wait(run.task)

    # --- a call

    def handlers(self, source: str, admitted: Admitted) -> dict[str, Handler]:
        """For one connection."""
        visit = _Visit(admitted)
        return {INIT: partial(self._init, source, visit), ACKNOWLEDGE: partial(self._acknowledge, visit)}

    async def _init(self, source: str, visit: _Visit, body: bytes, send: Send) -> None:
        try:
            request = InitRequest.decode(body)
        except MessageError as error:
            raise RpcError(grpc.INVALID_ARGUMENT, f"not an init request: {error}") from None
        await self._admit(source, request)
        visit.admitted()
        visit.run = run = self._known(request) or await self._begun(request, send)
        await self._watched(run, request.seen, send)

    async def _acknowledge(self, visit: _Visit, body: bytes, send: Send) -> None:
        """The caller has the end where nothing can take it any more: nobody need be waited for."""
        if visit.run is None or not visit.run.over:
            raise RpcError(grpc.FAILED_PRECONDITION, "nothing was fetched on this connection")
        visit.run.acknowledged.set()
        await send(b"")

    async def _admit(self, source: str, request: InitRequest) -> None:
        """Before anything else is looked at, and with nothing to be learnt from a refusal."""
        try:
            good = await self._attempts.attempt(
                source, lambda: self._sources.matches(request.init_secret, self._secret_hash)
            )
        except TooManyAttempts:
            raise RpcError(grpc.RESOURCE_EXHAUSTED, "too many attempts, try again later") from None
        if not good:
            logs.event("node", logs.WARNING, "an init with a wrong secret was refused")
            raise RpcError(grpc.PERMISSION_DENIED, "the init secret is wrong")
        self._sources.log_buffer.hide(request.init_secret, request.measurement_secret)

    def _known(self, request: InitRequest) -> InitRun | None:
        """The init that is asked about, if it has begun; any other is refused at once, never queued."""
        if self._run is not None:
            if self._run.init_id == request.init_id:
                return self._run
            done = self._run.success is not None
            text = (
                "this instance has been initialised" if done else "another init is running on this instance"
            )
            raise _refused(text)
        if not self._lock.is_available:
            raise _refused(self._taken())
        return None

    def _taken(self) -> str:
        return "this instance is joining a cluster" if self._lock.holder else "this instance is stopping"

    async def _begun(self, request: InitRequest, send: Send) -> InitRun:
        try:
            inputs = await self._checked(request)
        except Transient as error:
            advice = "try again"
            await send(_retriable(str(error), advice))
            raise RpcError(grpc.UNAVAILABLE, f"{error} ({advice})") from error
        except (OperatorError, KeyRefused) as error:
            await send(_retriable(str(error), "correct it and init again"))
            raise RpcError(grpc.INVALID_ARGUMENT, str(error)) from error
        # Somebody may have been quicker meanwhile.
        return self._known(request) or self._started(inputs)

    async def _checked(self, request: InitRequest) -> InitInputs:
        if not 0 < len(request.init_id) <= ID_CHARACTERS_MAX or not request.init_id.isprintable():
            raise OperatorError("the init has no usable ID", subject="init_id")
        if len(request.measurement_secret) != KEY_BYTES:
            raise OperatorError(f"is not {KEY_BYTES} bytes long", subject="measurement_secret")
        cluster_id(request.measurement_secret, request.measurement_salt)
        self._sources.check_policy(request.join_policy)
        instance = await with_timeout(METADATA_SECONDS_MAX, self._sources.metadata.myself(), "the metadata")
        if instance.role is not Role.CONTROL_PLANE:
            hint = "init an instance that the metadata calls a control plane"
            raise OperatorError(f"this instance is a {instance.role}", hint=hint)
        node_name(instance.name)
        inputs = InitInputs.of(request, instance)
        try:
            _ = inputs.spec
        except ValueError as error:
            raise OperatorError(f"is not JSON: {error}", subject="cluster spec") from None
        return inputs

    def _started(self, inputs: InitInputs) -> InitRun:
        run = self._run = InitRun(inputs.init_id)
        run.task = tasks.spawn(self._performed(run, inputs), "init")
        return run

    async def _watched(self, run: InitRun, seen: int, send: Send) -> None:
        """Everything that the caller has not seen; after a failure the logs."""
        number = seen
        async for event in run.events.after(seen):
            number, run.visited = event.number, _now()
            await send(event.encode())
        if run.refusal:
            raise _refused(run.refusal)
        if run.failure is not None:
            async for piece in self._sources.log_buffer.read():
                await send(InitEvent(number, log=piece).encode())
        run.visited = _now()

    # --- the work

    async def _performed(self, run: InitRun, inputs: InitInputs) -> None:
        cluster = cluster_id(inputs.measurement_secret, inputs.measurement_salt)
        try:
            if not await self._lock.try_lock(Flow.INIT, cluster, inputs.encode()):
                run.refusal, self._run = self._taken(), None
                run.events.close()
                return
            logs.event("node", logs.INFO, "initialising", cluster=cluster.hex(), init=run.init_id)
            _succeeded(run, await self._flow.run(inputs, partial(_said, run)))
        except Exception as error:
            _failed(run, error)

    async def _resumed(self, run: InitRun, record: BootstrapRecord) -> None:
        try:
            _succeeded(run, await self._flow.resume(record, partial(_said, run)))
        except Exception as error:
            _failed(run, error)

    def _finished_before(self, record: BootstrapRecord) -> InitRun:
        result = InitResult.decode(record.result)
        run = InitRun(result.init_id, InitEvents(record.resumed + 1))
        _succeeded(run, InitSuccess(result.kubeconfig, record.cluster_id))
        return run


def _said(run: InitRun, event: StageEvent) -> None:
    """To whoever watches, and to the log, which is what remains if nobody does."""
    run.events.stage(event)
    log_stage(event)


def _succeeded(run: InitRun, success: InitSuccess) -> None:
    run.success = success
    run.events.end(success)


def _failed(run: InitRun, error: Exception) -> None:
    """Kept for whoever runs this server; a bug is told to the user as such, and as itself to the log."""
    run.failure = error
    if isinstance(error, Fatal):
        run.events.end(InitFailure(str(error.args[0]), error.advice))
    else:
        run.events.end(InitFailure(f"a defect in this program: {error!r}", REBOOT))


def _refused(why: str) -> RpcError:
    """Told to both sides."""
    logs.event("node", logs.WARNING, "an init was refused", why=why)
    return RpcError(grpc.FAILED_PRECONDITION, why)


def _retriable(reason: str, advice: str) -> bytes:
    return InitEvent(failure=InitFailure(reason, advice, may_retry=True)).encode()


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _set_within(seconds: float, event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
