"""Which protocol a dial uses when the mode of the server is not known."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bootbridge.frontend_client.call import DialError, FrontendMode
from bootbridge.frontend_client.frontend import UnixFrontend
from bootbridge.frontend_client.tunnel_stream import open_tunnel
from bootbridge.wire.frames import PREFACE, settings

CONNECT = b"CONNECT 10.0.0.1:80 "


class FakeServer:
    """A frontend that gives each connection the same answer, and notes how each starts."""

    def __init__(self, path: Path, answer: bytes) -> None:
        self.frontend = UnixFrontend(path)
        self.requests: list[bytes] = []
        self._answer = answer

    async def dial(self) -> str:
        """Returns the error; empty if the destination accepted."""
        server = await asyncio.start_unix_server(self._serve, self.frontend.path)
        try:
            tunnel = await open_tunnel(self.frontend, "10.0.0.1:80", 20)
        except DialError as error:
            return str(error)
        finally:
            server.close()
            self.frontend.path.unlink(missing_ok=True)
        await tunnel.close()
        return ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(await reader.readexactly(len(CONNECT)))
        writer.write(self._answer)
        writer.close()


async def test_an_http_connect_server_gets_no_http2_preface(tmp_path: Path) -> None:
    """Which it would refuse, and log."""
    server = FakeServer(tmp_path / "s", b"HTTP/1.1 200 OK\r\n\r\n")
    assert await server.dial() == ""
    assert server.requests == [CONNECT]


async def test_a_server_that_sends_settings_is_asked_again_in_grpc(tmp_path: Path) -> None:
    server = FakeServer(tmp_path / "s", settings({}))
    assert await server.dial() != ""  # this one has no more than SETTINGS
    assert server.requests == [CONNECT, PREFACE[: len(CONNECT)]]


@pytest.mark.parametrize("status", ["200 OK", "502 Bad Gateway"])
async def test_an_http_answer_is_remembered_as_the_mode(tmp_path: Path, status: str) -> None:
    """Whether the dial succeeded or failed."""
    server = FakeServer(tmp_path / "s", f"HTTP/1.1 {status}\r\n\r\n".encode())
    await server.dial()
    assert server.frontend.mode is FrontendMode.HTTP_CONNECT
