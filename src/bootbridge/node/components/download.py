"""Brings a component's bytes into a file: from an HTTP server, from this machine, or out of the URL itself.

Which failures may pass by themselves is decided here: no connection, a connection that broke, and the few
statuses that mean "later". Any other status is final, however often one asks.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import h11

from bootbridge.common import data_url
from bootbridge.common.failures import Transient
from bootbridge.errors import BootbridgeError

COMPONENT_BYTES_MAX: Final = 2 << 30
# A server that sends nothing for so long is gone; one that is slow may take its time.
SILENCE_SECONDS: Final = 30.0
READ_BYTES: Final = 1 << 18
REDIRECTS_MAX: Final = 5
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_LATER: Final = frozenset((408, 425, 429))
_PORTS: Final = {"http": 80, "https": 443}


class DownloadInterrupted(Transient):
    """Another attempt may succeed."""


class DownloadImpossible(BootbridgeError):
    """No attempt will."""


async def download(url: str, into: BinaryIO, *, tls: ssl.SSLContext | None = None) -> None:
    """One attempt, written to `into` from where it stands; a caller that tries again begins at its start."""
    try:
        scheme = urlsplit(url).scheme.lower()
    except ValueError:
        # Its own text may quote a password.
        raise DownloadImpossible("its URL cannot be read") from None
    if scheme == "data":
        _decode(url, into)
    elif scheme == "file":
        await asyncio.to_thread(_copy, unquote(urlsplit(url).path), into)
    elif scheme in _PORTS:
        await _follow(url, into, tls)
    else:
        raise DownloadImpossible(f"{shown(url)}: a URL begins with https:, http:, file: or data:")


def shown(url: str) -> str:
    """A URL as it may be told: without the data, a password or a signature that it carries."""
    parts = urlsplit(url)
    if parts.scheme.lower() == "data":
        return "data:…"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _decode(url: str, into: BinaryIO) -> None:
    try:
        into.write(data_url.decode(url))
    except ValueError as error:
        raise DownloadImpossible(str(error)) from None


def _copy(path: str, into: BinaryIO) -> None:
    try:
        with Path(path).open("rb") as file:
            while data := file.read(READ_BYTES):
                into.write(data)
    except OSError as error:
        raise DownloadImpossible(f"{path}: {error.strerror or error}") from error


async def _follow(url: str, into: BinaryIO, tls: ssl.SSLContext | None) -> None:
    for _ in range(REDIRECTS_MAX + 1):
        try:
            place = await _get(url, into, tls)
        except ssl.SSLCertVerificationError as error:
            raise DownloadImpossible(f"{shown(url)}: {error.verify_message}") from error
        except TimeoutError:
            raise DownloadInterrupted(f"{shown(url)}: silent for {SILENCE_SECONDS:g} s") from None
        except (OSError, h11.RemoteProtocolError) as error:
            raise DownloadInterrupted(f"{shown(url)}: {error}") from error
        except (h11.LocalProtocolError, ValueError) as error:
            # A blank in the path, a host that no name can be, a redirection to such.
            raise DownloadImpossible(f"{shown(url)}: not a URL that can be asked for: {error}") from error
        if not place:
            return
        if urlsplit(url).scheme == "https" and urlsplit(place).scheme != "https":
            raise DownloadImpossible(f"{shown(url)}: leads to {shown(place)}, which is not protected")
        url = place
    raise DownloadImpossible(f"{shown(url)}: more than {REDIRECTS_MAX} redirections")


async def _get(url: str, into: BinaryIO, tls: ssl.SSLContext | None) -> str:
    """Empty when the file has come, else where it is to be got instead."""
    parts = _parts(url)
    secured = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
    async with asyncio.timeout(SILENCE_SECONDS):
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port or _PORTS[parts.scheme], ssl=secured
        )
    try:
        return await _Exchange(url, reader, writer).run(_target(parts), parts.netloc, into)
    finally:
        writer.transport.abort()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


class _Exchange:
    """One request on one connection."""

    def __init__(self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._url = url
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)

    async def run(self, target: str, authority: str, into: BinaryIO) -> str:
        headers = [("Host", authority), ("Connection", "close"), ("User-Agent", "bootbridge")]
        head = h11.Request(method="GET", target=target, headers=headers)
        self._writer.write((self._http.send(head) or b"") + (self._http.send(h11.EndOfMessage()) or b""))
        response = await self._event()
        assert isinstance(response, h11.Response)
        if response.status_code in _REDIRECTS:
            return self._elsewhere(response)
        self._judge(response.status_code)
        await self._body(into)
        return ""

    def _elsewhere(self, response: h11.Response) -> str:
        place = dict(response.headers).get(b"location", b"").decode("ascii", "replace")
        url = urljoin(self._url, place)
        if not place or urlsplit(url).scheme not in _PORTS:
            raise DownloadImpossible(f"{shown(self._url)}: leads nowhere")
        return url

    def _judge(self, status: int) -> None:
        said = f"{shown(self._url)}: the server answers {status}"
        if status in _LATER or status >= 500:
            raise DownloadInterrupted(said)
        if status != 200:
            raise DownloadImpossible(said)

    async def _body(self, into: BinaryIO) -> None:
        size = 0
        while isinstance(event := await self._event(), h11.Data):
            size += len(event.data)
            if size > COMPONENT_BYTES_MAX:
                raise DownloadImpossible(f"{shown(self._url)}: exceeds {COMPONENT_BYTES_MAX} bytes")
            into.write(event.data)

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA or isinstance(
            event, h11.InformationalResponse
        ):
            if event is h11.NEED_DATA:
                async with asyncio.timeout(SILENCE_SECONDS):
                    self._http.receive_data(await self._reader.read(READ_BYTES))
        return event  # type: ignore[return-value]


def _parts(url: str) -> SplitResult:
    parts = urlsplit(url)
    try:
        _ = parts.port
    except ValueError:
        raise DownloadImpossible(f"{shown(url)}: has no valid port") from None
    if not parts.hostname:
        raise DownloadImpossible(f"{shown(url)}: names no host")
    return parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.rpartition("@")[2])


def _target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
