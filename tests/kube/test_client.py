"""The client: reused connections, timeouts, the rate limit, and errors that name server and call."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace

import pytest

from bootbridge.kube.access import ClusterAccess
from bootbridge.kube.client import KubeClient, KubeError, KubeThrottled, KubeUnreachable, observe_call
from bootbridge.kube.kinds import LEASE
from bootbridge.kube.objects import Ref, get_object, list_objects, watch_objects
from bootbridge.kube.rate_limit import RateLimit
from bootbridge.kube.requests import ApiRequest
from tests.kube.conftest import access_to, running, until
from tests.support.fake_api_server import LEASES, FakeApiServer, drop, refuse

# A connection that the garbage collector closes is a leak.
pytestmark = [
    pytest.mark.filterwarnings("error::ResourceWarning"),
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
]

LIST = list_objects(LEASE, "kube-system")
WATCH = watch_objects(LEASE, "kube-system", resource_version="100", seconds_max=300)


async def test_sequential_requests_share_a_connection(api: FakeApiServer, client: KubeClient) -> None:
    for _ in range(5):
        await client.send(LIST)
    assert api.connections_seen == 1


async def test_concurrent_requests_do_not_wait_for_each_other(api: FakeApiServer, client: KubeClient) -> None:
    api.answering.clear()
    sends = [asyncio.create_task(client.send(LIST)) for _ in range(6)]
    await until(lambda: len(api.calls) == 6)
    api.answering.set()
    assert [response.status for response in await asyncio.gather(*sends)] == [200] * 6
    assert repr(client).endswith("4 idle>")


async def test_a_closed_idle_connection_is_replaced(api: FakeApiServer, client: KubeClient) -> None:
    await client.send(LIST)
    api.cut_idle_connections()
    assert (await client.send(LIST)).status == 200


async def test_an_idle_connection_that_closes_on_the_request_is_replaced(
    api: FakeApiServer, client: KubeClient
) -> None:
    await client.send(LIST)
    api.next_faults.append(drop)
    assert (await client.send(LIST)).status == 200
    assert api.connections_seen == 2


async def test_a_new_connection_that_closes_is_an_error(api: FakeApiServer, client: KubeClient) -> None:
    api.next_faults.append(drop)
    with pytest.raises(KubeUnreachable, match=r"GET .*/leases: connection closed without a response"):
        await client.send(LIST)
    assert len(api.calls) == 1


async def test_an_error_has_status_reason_and_message(api: FakeApiServer, client: KubeClient) -> None:
    with pytest.raises(KubeError) as error:
        await client.send(get_object(Ref(LEASE, "missing", "kube-system")))
    assert (error.value.status, error.value.reason) == (404, "NotFound")
    assert '"missing" not found' in error.value.message


async def test_an_error_has_the_retry_after_of_the_server(api: FakeApiServer, client: KubeClient) -> None:
    api.next_faults.append(refuse(429, "TooManyRequests", retry_after=7))
    with pytest.raises(KubeError) as error:
        await client.send(LIST)
    assert error.value.retry_after == 7


async def test_wrong_credentials_are_an_error(api: FakeApiServer) -> None:
    client = KubeClient(access_to(api, token="wrong"), qps=-1)
    with pytest.raises(KubeError, match="401 Unauthorized"):
        await client.send(LIST)
    await client.aclose()


async def test_a_request_times_out(api: FakeApiServer, client: KubeClient) -> None:
    api.answering.clear()
    with pytest.raises(KubeUnreachable, match=r"timed out after 0\.05s"):
        await client.send(LIST, timeout=0.05)
    api.answering.set()
    await until(lambda: not api._streams)


async def test_a_tls_handshake_times_out(api: FakeApiServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        access = access_to(api)
        client = KubeClient(
            type(access)("127.0.0.1", silent.getsockname()[1], tls=access.tls, server_name="x")
        )
        with pytest.raises(KubeUnreachable, match="timed out after"):
            await client.send(LIST, timeout=0.1)
        await client.aclose()


async def test_connection_refused_names_the_address(api: FakeApiServer, client: KubeClient) -> None:
    await api.stop()
    with pytest.raises(KubeUnreachable, match=rf"127\.0\.0\.1:{api.port}: GET .*: .*"):
        await client.send(LIST)


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def responds_with(response: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        writer.close()

    return talk


async def send_to_server_that(talk: Talk) -> None:
    """Sends one request to a server whose connections are handled by `talk`."""
    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        client = KubeClient(ClusterAccess("127.0.0.1", server.sockets[0].getsockname()[1]))
        try:
            await client.send(LIST)
        finally:
            await client.aclose()


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<html>...",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{",
    ],
    ids=["not HTTP", "not JSON", "not an object", "truncated"],
)
async def test_an_invalid_response_is_an_error(response: bytes) -> None:
    with pytest.raises(KubeUnreachable):
        await send_to_server_that(responds_with(response))


PLAIN = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}'


@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        ([PLAIN], True),
        ([PLAIN[:30], PLAIN[30:]], True),
        ([PLAIN[:-3], PLAIN[-3:]], True),
        ([PLAIN.replace(b"Content-Length: 7", b"content-LENGTH:7")], True),
        ([PLAIN.replace(b"Content-Length: 7", b"Content-Length: 7\r\nContent-Length: 7")], True),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n", b'{"a":1}\r\n0\r\n\r\n'], True),
        ([b"HTTP/1.1 103 Early Hints\r\n\r\n", PLAIN], True),
        ([PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")], False),
        ([PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0")], False),
        ([PLAIN + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"], False),
    ],
    ids=[
        *("plain", "split in its head", "split in its body", "other case", "length twice", "chunked"),
        *("after early hints", "connection close", "HTTP/1.0", "with bytes after its end"),
    ],
)
async def test_a_response_is_read_in_every_form(pieces: list[bytes], kept: bool) -> None:
    """The next request never reads bytes of the previous response."""
    connections: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        client = KubeClient(ClusterAccess("127.0.0.1", server.sockets[0].getsockname()[1]))
        for _ in range(3):
            assert (await client.send(LIST)).body == {"a": 1}
        assert len(connections) == (1 if kept else 3)
        await client.aclose()
        for writer in connections:
            writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "response",
    [
        PLAIN.replace(b"Content-Length: 7", b"Content-Length: 7\r\nContent-Length: 8"),
        PLAIN.replace(b"Content-Length: 7", b"Content-Length: 7\r\nbad header: x"),
        PLAIN.replace(b"Content-Length: 7", b"Content-Length: -7"),
    ],
    ids=["two lengths", "invalid header", "negative length"],
)
async def test_an_ambiguous_response_is_an_error(response: bytes) -> None:
    with pytest.raises(KubeUnreachable, match="invalid HTTP response"):
        await send_to_server_that(responds_with(response))


async def test_a_path_in_a_kubeconfig_cannot_inject_a_request(api: FakeApiServer) -> None:
    access = replace(access_to(api), base_path="/ HTTP/1.1\r\nHost: x\r\n\r\nDELETE /")
    client = KubeClient(access)
    with pytest.raises(KubeUnreachable, match="invalid HTTP request"):
        await client.send(LIST)
    assert api.calls == []
    await client.aclose()


async def test_a_response_has_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bootbridge.kube.client.BODY_BYTES_MAX", 1 << 20)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            writer.close()

    with pytest.raises(KubeUnreachable, match="more than 1048576 bytes"):
        await send_to_server_that(talk)


async def test_repr_of_a_request_does_not_show_its_body(api: FakeApiServer) -> None:
    assert "s3cr3t" not in repr(ApiRequest("POST", "/", body={"spec": {"token": "s3cr3t"}}))


async def test_watch_events_arrive_one_by_one(api: FakeApiServer, client: KubeClient) -> None:
    async with aclosing(client.watch(WATCH)) as events:
        waiting = asyncio.ensure_future(anext(events))
        await until(lambda: api.watches)
        api.put_lease("one", {})
        assert (await waiting)["object"]["metadata"]["name"] == "one"
        api.send_to_watches(b'{"type":"BOOK')
        api.send_to_watches(b'MARK"}\n\n{"type":"X"}\n{"ty')
        api.send_to_watches(b'pe":"Y"}\n')
        assert [(await anext(events))["type"] for _ in range(3)] == ["BOOKMARK", "X", "Y"]
        api.end_watches()
        assert await anext(events, None) is None
    await until(lambda: not api.watches)


async def test_a_cancelled_watch_is_closed(api: FakeApiServer, client: KubeClient) -> None:
    async def follow() -> None:
        async with aclosing(client.watch(WATCH)) as events:
            async for _ in events:
                pass

    async with running(follow()):
        await until(lambda: api.watches)
    await until(lambda: not api._streams)


async def test_a_truncated_watch_is_an_error(api: FakeApiServer, client: KubeClient) -> None:
    async with aclosing(client.watch(WATCH)) as events:
        waiting = asyncio.ensure_future(anext(events))
        await until(lambda: api.watches)
        api.cut_watches()
        with pytest.raises(KubeUnreachable):
            await waiting


async def test_a_silent_watch_times_out(api: FakeApiServer, client: KubeClient) -> None:
    async with aclosing(client.watch(WATCH, silence=0.05)) as events:
        with pytest.raises(KubeUnreachable, match=r"timed out after 0\.05s"):
            await anext(events)


async def test_a_forbidden_watch_is_an_error(api: FakeApiServer, client: KubeClient) -> None:
    api.next_faults.append(refuse(403, "Forbidden", "may not watch"))
    async with aclosing(client.watch(WATCH)) as events:
        with pytest.raises(KubeError, match="403 Forbidden: may not watch"):
            await anext(events)


async def test_a_watch_event_has_a_size_limit(
    api: FakeApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bootbridge.kube.client.EVENT_BYTES_MAX", 1000)
    async with aclosing(client.watch(WATCH)) as events:
        waiting = asyncio.ensure_future(anext(events))
        await until(lambda: api.watches)
        api.send_to_watches(b"x" * 2000)
        with pytest.raises(KubeUnreachable, match="watch event too large"):
            await waiting


def recording(waits: list[float]) -> Callable[[float], Awaitable[None]]:
    """Returns a sleep that records and does not wait."""

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    return sleep


class TestRateLimit:
    def test_zero_means_five_per_second_with_bursts_of_ten(self) -> None:
        limit = RateLimit(0, 0)
        waits = [limit.reserve(100.0, 60) for _ in range(15)]
        assert waits[:10] == pytest.approx([0.0] * 10)
        assert waits[10:] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])

    def test_the_bucket_refills_up_to_the_burst(self) -> None:
        limit = RateLimit(2, 3)
        for _ in range(3):
            limit.reserve(0.0, 60)
        waits = [limit.reserve(1000.0, 60) for _ in range(4)]
        assert waits == pytest.approx([0.0, 0.0, 0.0, 0.5])

    def test_a_reservation_beyond_the_time_limit_is_refused_and_uses_no_token(self) -> None:
        limit = RateLimit(1, 1)
        assert limit.reserve(0.0, 10) == 0.0
        assert limit.reserve(0.0, 0.5) is None
        assert limit.reserve(0.0, 10) == 1.0

    def test_negative_means_no_limit(self) -> None:
        limit = RateLimit(-1, 0)
        assert {limit.reserve(0.0, 0) for _ in range(1000)} == {0.0}

    async def test_a_request_that_would_wait_beyond_its_timeout_fails_at_once(
        self, api: FakeApiServer
    ) -> None:
        """In Konnectivity TokenReviews waited for up to 11 minutes."""
        waits: list[float] = []
        client = KubeClient(access_to(api), qps=0.01, burst=1, sleep=recording(waits))
        await client.send(LIST)
        with pytest.raises(KubeThrottled, match="--kubeconfig-qps"):
            await client.send(LIST, timeout=5)
        assert waits == []
        await client.aclose()

    async def test_requests_within_the_limit_are_only_delayed(self, api: FakeApiServer) -> None:
        waits: list[float] = []
        client = KubeClient(access_to(api), qps=20, burst=1, clock=lambda: 0.0, sleep=recording(waits))
        for _ in range(3):
            await client.send(LIST)
        assert waits == pytest.approx([0.05, 0.1])
        await client.aclose()


async def test_an_observer_gets_the_result_of_each_call(api: FakeApiServer, client: KubeClient) -> None:
    calls: list[tuple[str, int, str]] = []

    def observe(verb: str, status: int, reason: str, seconds: float) -> None:
        calls.append((verb, status, reason))

    for fault in (None, refuse(403, "Forbidden"), drop):
        if fault:
            api.cut_idle_connections()
            await until(lambda: not api._streams)
            api.next_faults.append(fault)
        try:
            with observe_call(observe, "list", time.monotonic) as report:
                report((await client.send(LIST)).status)
        except (KubeError, KubeUnreachable):
            pass
    assert calls == [("list", 200, ""), ("list", 403, "Forbidden"), ("list", 0, "Unreachable")]
    assert len(api.calls_to("GET", LEASES)) == 3
