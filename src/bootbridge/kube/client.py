"""Sends requests to the API server over kept-alive connections, with a rate limit and timeouts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager

import h11

from bootbridge.errors import OperatorError
from bootbridge.kube.access import ClusterAccess
from bootbridge.kube.errors import KubeError, KubeThrottled, KubeUnreachable
from bootbridge.kube.http_connection import ClosedUnanswered, Head, HttpConnection
from bootbridge.kube.objects import ObjectClient
from bootbridge.kube.rate_limit import RateLimit
from bootbridge.kube.requests import ApiRequest, ApiResponse, Json

REQUEST_SECONDS_MAX = 10.0
# Longer than the timeout of any watch: the API server ends a watch itself, this catches one that does not.
WATCH_SILENCE_SECONDS_MAX = 600.0
# A list of thousands of leases is about 1 MiB. A larger response than this is an error.
BODY_BYTES_MAX = 32 << 20
EVENT_BYTES_MAX = 4 << 20
# Shorter than the idle timeouts of API servers and load balancers: few requests meet a dead connection.
IDLE_SECONDS_MAX = 60.0
IDLE_CONNECTIONS_MAX = 4

# Called after each call with the verb, HTTP status (0 without a response), reason and seconds.
CallObserver = Callable[[str, int, str, float], None]


class KubeClient(ObjectClient):
    """A client of one API server; tasks may share it."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        qps: float = 0.0,
        burst: int = 0,
        user_agent: str = "bootbridge",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        idle_connections_max: int = IDLE_CONNECTIONS_MAX,
        request_seconds: float = REQUEST_SECONDS_MAX,
    ) -> None:
        self._access = access
        self._limit = RateLimit(qps, burst)
        self._user_agent = user_agent
        self._clock = clock
        self._sleep = sleep
        self._idle_connections_max = idle_connections_max
        self._request_seconds = request_seconds
        self._idle: list[HttpConnection] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"<KubeClient {self._access.authority} {len(self._idle)} idle>"

    @property
    def qps(self) -> float:
        """Requests per second that the rate limit permits; negative: any number."""
        return self._limit.qps

    def take_permit(self) -> float:
        """Takes the rate limit's permit for one request and returns 0, or the seconds until one is free.

        For callers that choose their request when a permit is free: `send(permitted=True)`.
        """
        return self._limit.take(self._clock())

    async def send(
        self,
        request: ApiRequest,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        permitted: bool = False,
    ) -> ApiResponse:
        """Returns the response; raises KubeError for an error status, KubeUnreachable after ``timeout``."""
        head, body = await self._send(request, timeout, permitted)
        return ApiResponse(head.status, _object(body))

    async def text(self, request: ApiRequest, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Returns a response that is not JSON, such as a pod's log; raises as `send` does."""
        return (await self._send(request, timeout))[1]

    async def _send(
        self,
        request: ApiRequest,
        timeout: float | None,  # noqa: ASYNC109
        permitted: bool = False,
    ) -> tuple[Head, bytes]:
        seconds = self._request_seconds if timeout is None else timeout
        with self._errors_as_unreachable(request, seconds):
            async with asyncio.timeout(seconds):
                if not permitted:
                    await self._wait_for_rate_limit(seconds)
                head, body = await self._exchange(request)
        if head.status >= 300:
            raise _kube_error(head, body)
        return head, body

    async def watch(
        self,
        request: ApiRequest,
        *,
        opening: float = REQUEST_SECONDS_MAX,
        silence: float = WATCH_SILENCE_SECONDS_MAX,
        opened: Callable[[int], None] = lambda status: None,
    ) -> AsyncGenerator[Json, None]:
        """Yields events until the API server ends the watch; ``opened`` gets the status at its start."""
        connection: HttpConnection | None = None
        try:
            with self._errors_as_unreachable(request, opening):
                async with asyncio.timeout(opening):
                    await self._wait_for_rate_limit(opening)
                    connection = await HttpConnection.open(self._access)
                    head = await connection.send(request, self._access, self._user_agent)
                    if head.status >= 300:
                        raise _kube_error(head, await _whole(connection))
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
            with self._errors_as_unreachable(request, silence):
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
                raise KubeUnreachable(f"watch event too large: more than {EVENT_BYTES_MAX} bytes")

    async def _wait_for_rate_limit(self, seconds_max: float) -> None:
        wait = self._limit.reserve(self._clock(), seconds_max)
        if wait is None:
            raise KubeThrottled(
                f"rate limit exceeded: at {self._limit.qps:g} requests per second this one would wait "
                f"more than {seconds_max:g}s; raise --kubeconfig-qps and --kubeconfig-burst"
            )
        if wait:
            await self._sleep(wait)

    async def _exchange(self, request: ApiRequest) -> tuple[Head, bytes]:
        # An idle connection may be dead, so a request without a response is sent once more on a new one.
        # That is safe for our requests: reviews change nothing, writes contain a name or a resourceVersion.
        kept = self._pop_idle()
        if kept:
            try:
                return await self._roundtrip(kept, request)
            except ClosedUnanswered:
                pass
        return await self._roundtrip(await HttpConnection.open(self._access), request)

    async def _roundtrip(self, connection: HttpConnection, request: ApiRequest) -> tuple[Head, bytes]:
        try:
            head = await connection.send(request, self._access, self._user_agent)
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
    def _errors_as_unreachable(self, request: ApiRequest, seconds: float) -> Iterator[None]:
        """Turns every error without a response into KubeUnreachable, with the server and the call."""
        call = f"{self._access.authority}: {request.method} {request.path}"
        try:
            yield
        except TimeoutError:
            raise KubeUnreachable(f"{call}: timed out after {seconds:g}s") from None
        except (OSError, UnicodeError) as error:
            raise KubeUnreachable(f"{call}: {_plain(error)}") from error
        except h11.RemoteProtocolError as error:
            raise KubeUnreachable(f"{call}: invalid HTTP response: {error}") from error
        except h11.LocalProtocolError as error:
            raise KubeUnreachable(f"{call}: invalid HTTP request: {error}") from error
        except RuntimeError as error:  # no thread available for the DNS lookup
            raise KubeUnreachable(f"{call}: {error}") from error
        except OperatorError as error:
            raise KubeUnreachable(str(error)) from error


@contextmanager
def observe_call(
    observe: CallObserver, verb: str, clock: Callable[[], float]
) -> Iterator[Callable[[int], None]]:
    """Calls ``observe`` once with the call's result; the caller reports success by the yielded function."""
    started = clock()
    reported = False

    def report(status: int, reason: str = "") -> None:
        nonlocal reported
        if not reported:
            reported = True
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
            raise KubeUnreachable(f"response too large: more than {BODY_BYTES_MAX} bytes")
    return bytes(body)


def _kube_error(head: Head, body: bytes) -> KubeError:
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
        raise KubeUnreachable("invalid response: not JSON") from None
    if not isinstance(value, dict):
        raise KubeUnreachable("invalid response: not a JSON object")
    return value


def _plain(error: Exception) -> str:
    verify_message = getattr(error, "verify_message", "")
    if verify_message:
        return f"certificate not trusted: {verify_message}"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
