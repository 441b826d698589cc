"""Sends requests to the API server: kept-alive connections, a rate limit, and a time limit on everything."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

import h11

from bootbridge.errors import OperatorError
from bootbridge.kube.access import ClusterAccess
from bootbridge.kube.errors import KubeError, KubeThrottled, KubeUnreachable
from bootbridge.kube.http_connection import ClosedUnanswered, Head, HttpConnection
from bootbridge.kube.rate_limit import RateLimit
from bootbridge.kube.requests import ApiRequest, Json

REQUEST_SECONDS_MAX = 10.0
# Above any watch we ask for: the API server ends a watch itself, this only catches one that forgot to.
WATCH_SILENCE_SECONDS_MAX = 600.0
# A list of thousands of leases is about 1 MiB. Past this the answer is refused rather than held in memory.
BODY_BYTES_MAX = 32 << 20
EVENT_BYTES_MAX = 4 << 20
# API servers and load balancers drop idle connections; ours go first, so that fewer requests meet a dead one.
IDLE_SECONDS_MAX = 60.0
IDLE_CONNECTIONS_MAX = 4

# Told after each call: verb, HTTP status (0 when none came), reason, seconds.
CallObserver = Callable[[str, int, str, float], None]


@dataclass(frozen=True, slots=True)
class ApiResponse:
    status: int
    body: Json = field(repr=False)


class KubeClient:
    """One API server; safe to share between tasks."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        qps: float = 0.0,
        burst: int = 0,
        user_agent: str = "bootbridge",
        clock: Callable[[], float] = time.monotonic,
        idle_connections_max: int = IDLE_CONNECTIONS_MAX,
    ) -> None:
        self._access = access
        self._limit = RateLimit(qps, burst)
        self._user_agent = user_agent
        self._clock = clock
        self._idle_connections_max = idle_connections_max
        self._idle: list[HttpConnection] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"<KubeClient {self._access.authority} {len(self._idle)} idle>"

    async def send(self, request: ApiRequest, *, timeout: float = REQUEST_SECONDS_MAX) -> ApiResponse:  # noqa: ASYNC109
        """The answer; raises KubeError for a refusal and KubeUnreachable for none within ``timeout``."""
        with self._faults_named(request, timeout):
            async with asyncio.timeout(timeout):
                await self._take_turn(timeout)
                head, body = await self._exchange(request)
        return _judged(head, body)

    async def text(self, request: ApiRequest, *, timeout: float = REQUEST_SECONDS_MAX) -> bytes:  # noqa: ASYNC109
        """The answer as it came, for what is no object, such as a pod's log; raises as `send` does."""
        with self._faults_named(request, timeout):
            async with asyncio.timeout(timeout):
                await self._take_turn(timeout)
                head, body = await self._exchange(request)
        if head.status >= 300:
            raise _refusal(head, body)
        return body

    async def watch(
        self,
        request: ApiRequest,
        *,
        opening: float = REQUEST_SECONDS_MAX,
        silence: float = WATCH_SILENCE_SECONDS_MAX,
        opened: Callable[[int], None] = lambda status: None,
    ) -> AsyncGenerator[Json, None]:
        """The events until the API server ends the watch; ``opened`` is told the status when it begins."""
        connection: HttpConnection | None = None
        try:
            with self._faults_named(request, opening):
                async with asyncio.timeout(opening):
                    await self._take_turn(opening)
                    connection = await HttpConnection.open(self._access)
                    head = await connection.ask(request, self._access, self._user_agent)
                    if head.status >= 300:
                        raise _refusal(head, await _whole(connection))
            opened(head.status)
            async with aclosing(self._events(request, connection, silence)) as events:
                async for event in events:
                    yield event
        finally:
            if connection:
                connection.abort()

    async def aclose(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().abort()
        await asyncio.sleep(0)  # lets the loop finish the aborted transports

    async def _events(
        self, request: ApiRequest, connection: HttpConnection, silence: float
    ) -> AsyncGenerator[Json, None]:
        pending = b""
        while True:
            with self._faults_named(request, silence):
                async with asyncio.timeout(silence):
                    chunk = await connection.chunk()
            if not chunk:
                return
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                if whole := (pending + line).strip():
                    yield _object(whole)
                pending = b""
            pending += rest
            if len(pending) > EVENT_BYTES_MAX:
                raise KubeUnreachable(f"a watch event exceeds {EVENT_BYTES_MAX} bytes")

    async def _take_turn(self, patience: float) -> None:
        wait = self._limit.reserve(self._clock(), patience)
        if wait is None:
            raise KubeThrottled(
                f"own limit of {self._limit.qps:g} requests per second would delay this one by more than "
                f"{patience:g} s; raise --kubeconfig-qps and --kubeconfig-burst"
            )
        if wait:
            await asyncio.sleep(wait)

    async def _exchange(self, request: ApiRequest) -> tuple[Head, bytes]:
        # A kept connection may have died unnoticed, so an unanswered request goes out once more on a new one.
        # That is safe for all we send: reviews change nothing, lease writes carry a name or a version.
        kept = self._pop_idle()
        if kept:
            try:
                return await self._roundtrip(kept, request)
            except ClosedUnanswered:
                pass
        return await self._roundtrip(await HttpConnection.open(self._access), request)

    async def _roundtrip(self, connection: HttpConnection, request: ApiRequest) -> tuple[Head, bytes]:
        try:
            head = await connection.ask(request, self._access, self._user_agent)
            body = await _whole(connection)
        except BaseException:
            connection.abort()
            raise
        self._keep(connection)
        return head, body

    def _keep(self, connection: HttpConnection) -> None:
        if connection.reusable and not self._closed and len(self._idle) < self._idle_connections_max:
            connection.idle_since = self._clock()
            self._idle.append(connection)
        else:
            connection.abort()

    def _pop_idle(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and self._clock() - connection.idle_since < IDLE_SECONDS_MAX:
                return connection
            connection.abort()
        return None

    @contextmanager
    def _faults_named(self, request: ApiRequest, seconds: float) -> Iterator[None]:
        """Everything that keeps an answer away becomes KubeUnreachable, naming the server and the call."""
        call = f"{self._access.authority}: {request.method} {request.path}"
        try:
            yield
        except TimeoutError:
            raise KubeUnreachable(f"{call}: no answer within {seconds:g} s") from None
        except (OSError, UnicodeError) as error:
            raise KubeUnreachable(f"{call}: {_plain(error)}") from error
        except h11.RemoteProtocolError as error:
            raise KubeUnreachable(f"{call}: the answer is not HTTP: {error}") from error
        except h11.LocalProtocolError as error:
            raise KubeUnreachable(f"{call}: it cannot be said in HTTP: {error}") from error
        except RuntimeError as error:  # no thread is left to look the name up
            raise KubeUnreachable(f"{call}: {error}") from error
        except OperatorError as error:
            raise KubeUnreachable(str(error)) from error


@contextmanager
def observed(observe: CallObserver, verb: str, clock: Callable[[], float]) -> Iterator[Callable[[int], None]]:
    """Tell ``observe`` once how a call was answered; success is reported through the yielded function."""
    started = clock()
    told = False

    def report(status: int, reason: str = "") -> None:
        nonlocal told
        if not told:
            told = True
            observe(verb, status, reason, clock() - started)

    try:
        yield report
    except KubeError as error:
        report(error.status, error.reason)
        raise
    except KubeUnreachable:
        report(0, "Unreachable")
        raise


async def _whole(connection: HttpConnection) -> bytes:
    body = bytearray()
    while chunk := await connection.chunk():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise KubeUnreachable(f"the answer exceeds {BODY_BYTES_MAX} bytes")
    return bytes(body)


def _judged(head: Head, body: bytes) -> ApiResponse:
    if head.status >= 300:
        raise _refusal(head, body)
    return ApiResponse(head.status, _object(body))


def _refusal(head: Head, body: bytes) -> KubeError:
    try:
        status = _object(body)
    except KubeUnreachable:
        status = {"message": body[:200].decode("utf-8", "replace").strip()}
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "no message")
    return KubeError(head.status, reason, message, _retry_after(head))


def _retry_after(head: Head) -> float:
    for name, value in head.headers:
        if name == b"retry-after" and value.isdigit() and len(value) < 6:
            return float(value)
    return 0.0


def _object(data: bytes) -> Json:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise KubeUnreachable("the answer is not JSON") from None
    if not isinstance(value, dict):
        raise KubeUnreachable("the answer is not a JSON object")
    return value


def _plain(error: Exception) -> str:
    verify_message = getattr(error, "verify_message", "")
    if verify_message:
        return f"certificate not trusted: {verify_message}"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
