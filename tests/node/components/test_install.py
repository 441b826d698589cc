"""Components are downloaded from a real server, verified and installed atomically."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import ssl
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from bootbridge.common import data_url
from bootbridge.common.failures import Fatal, Transient
from bootbridge.common.host import Host
from bootbridge.join_api.components import Component
from bootbridge.node.components import download
from bootbridge.node.components import install as component_install
from bootbridge.node.components.install import ComponentUnavailable, Installer
from bootbridge.node.init.messages import StageEvent
from bootbridge.trust.authority import Authority
from tests.support.fake_clock import pass_time
from tests.support.process_program import free_port

BODY = b"#!/bin/sh\necho kubelet\n"
HASH = "sha256:" + hashlib.sha256(BODY).hexdigest()
OTHER_HASH = "sha256:" + hashlib.sha256(b"other").hexdigest()
PLACE = "/usr/bin/kubelet"

Answer = bytes | Callable[[asyncio.StreamWriter], None]


def answer(status: int = 200, body: bytes = BODY, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Server:
    """Sends its answers in order, then repeats the last one; records the requests."""

    def __init__(self, *answers: Answer, tls: ssl.SSLContext | None = None) -> None:
        self._answers = list(answers)
        self._tls = tls
        self.asked: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b"\r\n")[0].decode())
        given = self._answers[min(len(self.asked), len(self._answers)) - 1]
        if callable(given):
            given(writer)
        else:
            writer.write(given)
        writer.close()


@asynccontextmanager
async def serving(*answers: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    made = Server(*answers, tls=tls)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    scheme = "https" if tls else "http"
    made.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/kubelet"
    async with server:
        yield made


@pytest.fixture
def host(tmp_path: Path) -> Host:
    root = tmp_path / "root"
    root.mkdir()
    return Host(root)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records the waits between attempts without waiting."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(component_install.asyncio, "sleep", sleep)
    return waited


async def install(host: Host, *components: Component, seconds: float = 20.0) -> list[StageEvent]:
    events: list[StageEvent] = []
    await Installer(host, Random(1), seconds).install(components, events.append)
    return events


async def install_once(host: Host, component: Component, seconds: float = 20.0) -> None:
    """Installs with a time limit that passes after the first attempt."""

    def progress(event: StageEvent) -> None:
        if event.text.endswith("retrying"):
            pass_time(seconds)

    await Installer(host, Random(1), seconds).install((component,), progress)


def in_folder(host: Host, path: str = PLACE) -> list[str]:
    """Lists all files beside the component, including temporary ones."""
    return sorted(each.name for each in host.path(path).parent.iterdir())


async def test_a_component_is_downloaded_and_made_executable(host: Host) -> None:
    async with serving(answer()) as server:
        events = await install(host, Component(server.url, HASH, PLACE))
    assert host.read(PLACE) == BODY
    assert host.mode(PLACE) == 0o755
    assert in_folder(host) == ["kubelet"]
    assert server.asked == ["GET /kubelet HTTP/1.1"]
    assert [event.state for event in events] == ["started", "output", "done"]


async def test_a_hash_mismatch_installs_nothing_and_is_not_retried(host: Host) -> None:
    async with serving(answer()) as server:
        with pytest.raises(Fatal, match=rf"hash mismatch: got {HASH}, want {OTHER_HASH}"):
            await install(host, Component(server.url, OTHER_HASH, PLACE))
    assert in_folder(host) == []
    assert len(server.asked) == 1


async def test_a_hash_mismatch_keeps_the_existing_file(host: Host) -> None:
    host.make_directory("/usr/bin")
    host.path(PLACE).write_bytes(b"old")
    async with serving(answer()) as server:
        with pytest.raises(Fatal):
            await install(host, Component(server.url, OTHER_HASH, PLACE))
    assert host.read(PLACE) == b"old"


async def test_an_empty_hash_is_accepted_for_local_sources_only(host: Host) -> None:
    """Also in a ticket of an older join service, which did not require it."""
    await install(host, Component(data_url.encode(BODY), "", PLACE))
    assert host.read(PLACE) == BODY
    async with serving(answer()) as server:
        for url in (server.url, f" {server.url}", server.url.replace("http", "https")):
            with pytest.raises(Fatal, match=r"hash required for an https? URL|blank or control character"):
                await install(host, Component(url, "", PLACE))
        assert server.asked == []


async def test_an_installed_component_with_the_right_hash_is_not_downloaded(host: Host) -> None:
    async with serving(answer()) as server:
        component = Component(server.url, HASH.upper().replace("SHA256", "sha256"), PLACE)
        await install(host, component, component)
        assert len(server.asked) == 1


async def test_a_data_url_contains_the_component(host: Host) -> None:
    await install(host, Component(data_url.encode(BODY), HASH, PLACE))
    assert host.read(PLACE) == BODY


async def test_a_file_url_is_copied(host: Host, tmp_path: Path) -> None:
    source = tmp_path / "a kubelet"
    source.write_bytes(BODY)
    await install(host, Component(source.as_uri(), HASH, PLACE))
    assert host.read(PLACE) == BODY


def mirror(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Returns the TLS settings of an https server on loopback, and of a client that trusts it."""
    authority = Authority.create("mirror")
    cert, key = authority.issue_server(["127.0.0.1"]).write(folder, "mirror")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, ssl.create_default_context(cadata=authority.cert_pem.decode())


async def test_https_certificates_are_verified(host: Host, tmp_path: Path) -> None:
    context, trusting = mirror(tmp_path)
    async with serving(answer(), tls=context) as server:
        component = Component(server.url, HASH, PLACE)
        with pytest.raises(Fatal, match=r"self-signed|unable to get"):
            await install(host, component)
        await Installer(host, Random(1), 20.0, trusting).install([component], lambda event: None)
    assert host.read(PLACE) == BODY


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_a_retryable_http_status_is_retried(host: Host, waits: list[float], status: int) -> None:
    async with serving(answer(status), answer(status), answer()) as server:
        events = await install(host, Component(server.url, HASH, PLACE))
    assert host.read(PLACE) == BODY
    assert len(waits) == 2
    assert [event.text for event in events if "retrying" in event.text] == [
        f"{server.url}: HTTP status {status}; retrying"
    ] * 2


@pytest.mark.parametrize("status", [204, 400, 401, 403, 404, 410])
async def test_any_other_status_is_final(host: Host, waits: list[float], status: int) -> None:
    async with serving(answer(status)) as server:
        with pytest.raises(Fatal, match=f"HTTP status {status}"):
            await install(host, Component(server.url, HASH, PLACE))
    assert (len(server.asked), waits) == (1, [])


async def test_a_truncated_body_is_downloaded_again_from_its_start(host: Host, waits: list[float]) -> None:
    async with serving(answer()[:-5], answer()) as server:
        await install(host, Component(server.url, HASH, PLACE))
    assert host.read(PLACE) == BODY
    assert (len(server.asked), len(waits)) == (2, 1)


async def test_a_refused_or_reset_connection_is_retried(host: Host, waits: list[float]) -> None:
    async with serving(lambda writer: writer.transport.abort(), answer()) as server:
        await install(host, Component(server.url, HASH, PLACE))
    assert len(waits) == 1


async def test_a_timeout_reports_the_last_error(host: Host) -> None:
    async with serving(answer(503)) as server:
        with pytest.raises(ComponentUnavailable, match=r"timed out after 20 s: .*HTTP status 503"):
            await install_once(host, Component(server.url, HASH, PLACE))
    assert issubclass(ComponentUnavailable, Transient)
    assert in_folder(host) == []


async def test_a_silent_server_times_out(host: Host) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        pass_time(download.SILENCE_SECONDS)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server:
        with pytest.raises(ComponentUnavailable, match=r"no data for 30 s"):
            await install_once(host, Component(url, HASH, PLACE), seconds=100.0)


async def test_a_cancelled_install_leaves_no_file(host: Host) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer()[:-5])
        asked.set()
        await go_on.wait()
        writer.close()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server:
        running = asyncio.create_task(install(host, Component(url, HASH, PLACE)))
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        go_on.set()
    assert in_folder(host) == []


async def test_redirects_are_followed_up_to_a_limit(host: Host) -> None:
    async with serving(answer(302, b"", Location="/elsewhere?a=b"), answer()) as server:
        await install(host, Component(server.url, HASH, PLACE))
        assert server.asked[1] == "GET /elsewhere?a=b HTTP/1.1"
    async with serving(answer(307, b"", Location="/round")) as server:
        with pytest.raises(Fatal, match="more than 5 redirects"):
            await install(host, Component(server.url, HASH, "/usr/bin/other"))


@pytest.mark.parametrize("location", ["file:///etc/shadow", "data:,x", "http://[::1/x", "ftp://h/x"])
async def test_a_redirect_to_another_scheme_is_rejected(host: Host, location: str) -> None:
    async with serving(answer(302, b"", Location=location)) as server:
        with pytest.raises(Fatal, match="without a valid location"):
            await install(host, Component(server.url, HASH, PLACE))


@pytest.mark.parametrize("scheme", ["http", "HTTP"])
async def test_a_redirect_from_https_to_http_is_rejected(host: Host, tmp_path: Path, scheme: str) -> None:
    serving_tls, trusting = mirror(tmp_path)
    async with serving(answer()) as plain:
        moved = answer(302, b"", Location=plain.url.replace("http", scheme))
        async with serving(moved, tls=serving_tls) as server:
            with pytest.raises(Fatal, match="redirect to an unencrypted URL"):
                await Installer(host, Random(1), 20.0, trusting).install(
                    [Component(server.url, HASH, PLACE)], lambda event: None
                )
        assert plain.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example/x",
        "kubelet",
        "http://",
        "http://host:port/",
        "http://[::1/x",
        "http://a..b/x",
        "data:;base64,%",
        "file:///tmp/%00",
    ],
)
async def test_an_unsupported_url_is_final(host: Host, url: str) -> None:
    with pytest.raises(Fatal):
        await install(host, Component(url, HASH, PLACE))


async def test_an_invalid_url_is_final(host: Host) -> None:
    async with serving(answer()) as server:
        with pytest.raises(Fatal, match="invalid URL"):
            await install(host, Component(f"{server.url} latest", HASH, PLACE))


async def test_secrets_in_a_url_are_not_reported(host: Host) -> None:
    async with serving(answer(404)) as server:
        signed = server.url.replace("//", "//user:password@") + "?signature=secret"
        with pytest.raises(Fatal) as failure:
            await install(host, Component(signed, HASH, PLACE))
    assert server.asked == ["GET /kubelet?signature=secret HTTP/1.1"]
    assert "password" not in str(failure.value)
    assert "secret" not in str(failure.value)


# --- without a URL


async def test_a_component_without_a_url_must_be_installed_already(host: Host) -> None:
    component = Component("", HASH, PLACE)
    with pytest.raises(Fatal, match=r"/usr/bin/kubelet: file not found .*image that contains it"):
        await install(host, component)
    host.make_directory("/usr/bin")
    host.path(PLACE).write_bytes(b"other")
    with pytest.raises(Fatal, match="hash mismatch"):
        await install(host, component)
    host.path(PLACE).write_bytes(BODY)
    await install(host, component)


async def test_a_component_without_url_and_hash_must_only_exist(host: Host) -> None:
    component = Component(install_path=PLACE)
    with pytest.raises(Fatal, match="file not found"):
        await install(host, component)
    host.make_directory("/usr/bin")
    host.path(PLACE).write_bytes(b"anything")
    await install(host, component)


@pytest.mark.parametrize("path", ["", "/", "usr/bin/x", "/usr/../../etc/x"])
async def test_an_unsafe_path_is_rejected_before_the_download(host: Host, path: str) -> None:
    async with serving(answer()) as server:
        with pytest.raises(Fatal, match="must be absolute"):
            await install(host, Component(server.url, HASH, path))
    assert server.asked == []


# --- archives


def packed(**files: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


async def test_an_archive_is_unpacked_below_its_path(host: Host) -> None:
    body = packed(bridge=b"one", loopback=b"two")
    async with serving(answer(body=body)) as server:
        digest = "sha256:" + hashlib.sha256(body).hexdigest()
        await install(host, Component(server.url, digest, "/opt/cni/bin", extract=True))
    assert host.read("/opt/cni/bin/bridge") == b"one"
    assert host.mode("/opt/cni/bin/loopback") == 0o755
    assert in_folder(host, "/opt/cni/bin") == ["bin"]


@pytest.mark.parametrize(
    "body",
    [b"no archive", gzip.compress(b"no archive"), packed(a=b"x" * 5000)[:-40]],
    # An archive has the time of its making in it, and a test has one name.
    ids=["text", "compressed text", "half of one"],
)
async def test_an_invalid_archive_is_final_and_leaves_nothing(host: Host, body: bytes) -> None:
    async with serving(answer(body=body)) as server:
        digest = "sha256:" + hashlib.sha256(body).hexdigest()
        with pytest.raises(Fatal, match=r"/opt/cni/bin: (invalid tar.gz|unpacking to)"):
            await install(host, Component(server.url, digest, "/opt/cni/bin", extract=True))
    assert in_folder(host, "/opt/cni/bin/x") == []


async def test_downloads_are_retried_with_growing_random_waits(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All new nodes may download from one server at once."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 40:
            raise ComponentUnavailable("enough")

    monkeypatch.setattr(component_install.asyncio, "sleep", sleep)
    component = Component(f"http://127.0.0.1:{free_port()}/x", f"sha256:{0:064}", "/x")
    with pytest.raises(ComponentUnavailable, match="enough"):
        await Installer(host, Random(7)).install([component], lambda event: None)
    assert min(waits) >= 0.5
    assert max(waits[:2]) <= 4.0
    assert 15.0 < max(waits) <= 30.0
    assert len(set(waits)) == len(waits)
