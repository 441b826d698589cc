"""Metadata of an instance and its peers from a file, an HTTP service or DNS."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from bootbridge.common.documents import convert
from bootbridge.common.failures import MetadataUnavailable
from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.instance_documents import instance_from, instances_from
from bootbridge.join_api.metadata_settings import MetadataSettings
from bootbridge.metadata import http as http_metadata
from bootbridge.metadata.configuration import metadata_from
from bootbridge.metadata.dns import DnsMetadata
from bootbridge.metadata.http import HttpMetadata
from bootbridge.metadata.static import StaticMetadata
from bootbridge.trust import init_secret
from tests.support.process_program import free_port

CP0 = {
    "name": "cp-0",
    "role": "control-plane",
    "addresses": ["10.0.0.5", "fd00::5"],
    "providerID": "cloud://0",
}
HASH = init_secret.hash_of(b"secret")


# --- documents


def test_an_instance_is_converted() -> None:
    identity = "tpm:sha256:" + "ab" * 32
    assert instance_from({**CP0, "identity": identity}, "self") == Instance(
        "cp-0", Role.CONTROL_PLANE, (ip_address("10.0.0.5"), ip_address("fd00::5")), "cloud://0", identity
    )


def test_names_of_constellations_api_are_accepted() -> None:
    document = {"Name": "Worker_1", "Role": "Worker", "VPCIP": "10.42.1.3", "ProviderID": "qemu:///x"}
    assert instance_from(document, "self") == Instance(
        "worker-1", Role.WORKER, (ip_address("10.42.1.3"),), "qemu:///x"
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": ""}, "self: name: required field missing"),
        ({"name": None}, "self: name: required field missing"),
        ({"name": 5}, "self: name: invalid type: number"),
        ({"name": "-x-"}, "self: name: invalid node name '-x-'"),
        ({"role": None}, "self: role: required field missing"),
        ({"role": "unknown"}, "self: role: invalid value 'unknown' .one of: control-plane, worker"),
        ({"addresses": ["10.0.0"]}, r"self: addresses\[0\]: invalid IP address '10.0.0'"),
        ({"addresses": {}}, "self: addresses: invalid type: mapping .must be a list"),
        ({"identity": "sha256:12"}, "self: identity: invalid identity 'sha256:12'"),
    ],
)
def test_an_invalid_instance_is_reported_with_its_field(change: dict[str, Any], text: str) -> None:
    with pytest.raises(MetadataUnavailable, match=text):
        instance_from({**CP0, **change}, "self")


def test_an_invalid_peer_is_skipped_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = instances_from([{"name": "half"}, CP0], "peers")
    assert [each.name for each in found] == ["cp-0"]
    assert caplog.records[0].fields == {"reason": "peers[0]: role: required field missing"}  # type: ignore[attr-defined]


# --- a file


async def test_every_field_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "instance.yaml"
    path.write_text(
        f"""\
self: {json.dumps(CP0)}
peers: [{json.dumps({**CP0, "name": "cp-1"})}]
loadBalancer: lb.example:6443
initSecretHash: {HASH}
"""
    )
    metadata = StaticMetadata(path)
    assert (await metadata.myself()).name == "cp-0"
    assert [peer.name for peer in await metadata.peers()] == ["cp-1"]
    assert await metadata.load_balancer() == "lb.example:6443"
    assert await metadata.init_secret_hash() == HASH


async def test_all_fields_but_self_are_optional(tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps({"self": CP0}))
    metadata = StaticMetadata(path)
    assert (await metadata.peers(), await metadata.load_balancer()) == ((), "")
    assert await metadata.init_secret_hash() == ""


async def test_a_file_may_be_created_and_changed_later(tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    metadata = StaticMetadata(path)
    with pytest.raises(MetadataUnavailable, match=r"cannot read .*No such file"):
        await metadata.myself()
    path.write_text(json.dumps({"self": {**CP0, "role": None}}))
    with pytest.raises(MetadataUnavailable, match="self: role: required field missing"):
        await metadata.myself()
    path.write_text(json.dumps({"self": CP0}))
    assert (await metadata.myself()).role is Role.CONTROL_PLANE


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "line 1, column 2: invalid YAML"),
        ("- 1", "invalid type: list .must be a mapping"),
        ("seldom: 1", "seldom: unknown field"),
        ("peers: []", "self: required field missing"),
    ],
)
async def test_an_invalid_file_is_unavailable(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "instance.yaml"
    path.write_text(text)
    with pytest.raises(MetadataUnavailable, match=error):
        await StaticMetadata(path).myself()


async def test_an_invalid_field_does_not_affect_the_others(tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps({"self": {}, "peers": 5, "loadBalancer": "lb", "initSecretHash": "wrong"}))
    metadata = StaticMetadata(path)
    for question in (metadata.myself, metadata.peers, metadata.init_secret_hash):
        with pytest.raises(MetadataUnavailable):
            await question()
    assert await metadata.load_balancer() == "lb"


# --- an HTTP service

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
Service = Callable[[dict[str, Answer]], Awaitable[str]]


def ok(body: str | bytes) -> bytes:
    data = body if isinstance(body, bytes) else body.encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """Runs a metadata service on loopback; the table maps paths to responses."""
    servers: list[asyncio.Server] = []

    async def start(answers: dict[str, Answer]) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                answer = answers.get(
                    head.split()[1].decode(), b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
                )
                if isinstance(answer, bytes):
                    writer.write(answer)
                else:
                    await answer(writer)
            finally:
                writer.close()

        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        return f"http://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()


async def test_every_response_of_a_service_is_read(service: Service) -> None:
    peers = json.dumps([{**CP0, "name": f"cp-{n}"} for n in range(500)])
    url = await service(
        {
            "/v1/self": ok(json.dumps(CP0)),
            "/v1/peers": ok(peers),
            "/v1/endpoint": ok('"10.0.0.1"'),
            "/v1/initsecrethash": ok(HASH + "\n"),
        }
    )
    metadata = HttpMetadata(f"{url}/v1/")
    assert (await metadata.myself()).addresses[0] == ip_address("10.0.0.5")
    assert len(await metadata.peers()) == 500
    assert await metadata.load_balancer() == "10.0.0.1"
    assert await metadata.init_secret_hash() == HASH


async def test_a_service_without_load_balancer_or_secret_has_none(service: Service) -> None:
    metadata = HttpMetadata(await service({}))
    assert await metadata.load_balancer() == ""
    assert await metadata.init_secret_hash() == ""
    with pytest.raises(MetadataUnavailable, match="/self: HTTP status 404"):
        await metadata.myself()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "/self: HTTP status 503"),
        (ok("{"), "/self: invalid JSON"),
        (ok("[1]"), "/self: invalid type: list"),
        (ok('{"name": "cp-0"}'), "/self: role: required field missing"),
        (b"SSH-2.0-hello\r\n\r\n", "/self: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "/self: "),
        (b"", "/self: "),
    ],
)
async def test_an_invalid_response_is_unavailable(service: Service, answer: bytes, error: str) -> None:
    with pytest.raises(MetadataUnavailable, match=error):
        await HttpMetadata(await service({"/self": answer})).myself()


async def test_an_unreachable_service_is_unavailable() -> None:
    with pytest.raises(MetadataUnavailable, match="/peers: "):
        await HttpMetadata(f"http://127.0.0.1:{free_port()}").peers()


async def test_a_silent_service_times_out(service: Service) -> None:
    asked = asyncio.Event()

    async def silence(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.sleep(1)

    url = await service({"/self": silence})
    with pytest.raises(MetadataUnavailable, match=r"/self: timed out after 0\.05s"):
        await HttpMetadata(url, answer_seconds=0.05).myself()
    assert asked.is_set()


async def test_a_response_has_a_size_limit(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_metadata, "ANSWER_BYTES_MAX", 100_000)
    url = await service({"/peers": ok(b" " * 200_000)})
    with pytest.raises(MetadataUnavailable, match="/peers: larger than 100000 bytes"):
        await HttpMetadata(url).peers()


# --- DNS


async def test_every_address_of_a_name_is_a_control_plane(tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    path.write_text(
        json.dumps({"self": {**CP0, "role": "worker"}, "loadBalancer": "lb", "initSecretHash": HASH})
    )
    metadata = DnsMetadata("localhost", StaticMetadata(path))
    peers = await metadata.peers()
    assert {peer.role for peer in peers} == {Role.CONTROL_PLANE}
    assert ip_address("127.0.0.1") in {peer.addresses[0] for peer in peers}
    assert len({peer.addresses for peer in peers}) == len(peers)
    assert (await metadata.myself()).role is Role.WORKER
    assert (await metadata.load_balancer(), await metadata.init_secret_hash()) == ("lb", HASH)


@pytest.mark.parametrize("name", ["does-not-exist.invalid", "a" * 70 + ".example"])
async def test_a_name_that_cannot_be_resolved_is_unavailable(tmp_path: Path, name: str) -> None:
    with pytest.raises(MetadataUnavailable, match=name):
        await DnsMetadata(name, StaticMetadata(tmp_path / "none")).peers()


# --- selection of a source


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"static": {"file": "/etc/bootbridge/instance.yaml"}}, StaticMetadata),
        ({"http": {"url": "http://10.42.0.1:8080"}}, HttpMetadata),
        ({"http": {"url": "https://metadata.example", "seconds": 3}}, HttpMetadata),
        ({"dns": {"controlPlanes": "cp.example", "file": "/etc/bootbridge/instance.yaml"}}, DnsMetadata),
    ],
)
def test_every_kind_of_source_is_built(document: Any, kind: type) -> None:
    assert isinstance(metadata_from(convert(MetadataSettings, document, "metadata"), "metadata"), kind)


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"http": {"url": "10.0.0.1"}}, "metadata.http.url: invalid URL '10.0.0.1'"),
        ({"http": {"url": "http://user:hush@h"}}, "^metadata.http.url: user and password in a URL"),
        ({"http": {"url": "http://[::1"}}, "metadata.http.url: invalid URL"),
        ({"http": {"url": "http://h/a b"}}, "metadata.http.url: invalid URL"),
        ({"http": {"url": "http://h:99999"}}, "metadata.http.url: invalid port in URL 'http://h:99999'"),
        ({"http": {"url": "https://h", "caFile": "/none"}}, "metadata.http.caFile: cannot use /none"),
    ],
)
def test_an_invalid_source_is_reported_with_its_field(document: Any, error: str) -> None:
    with pytest.raises(OperatorError, match=error):
        metadata_from(convert(MetadataSettings, document, "metadata"), "metadata")
