"""Downloads a component into a file from an http, https, file or data URL.

Failures are classified here: a connection error, and the few HTTP statuses that mean "retry later", may be
retried (DownloadInterrupted); any other status is final (DownloadImpossible).
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
from bootbridge.join_api.components import url_fault

COMPONENT_BYTES_MAX: Final = 2 << 30
# The limit for a server that sends nothing; a slow download has no limit here.
SILENCE_SECONDS: Final = 30.0
READ_BYTES: Final = 1 << 18
REDIRECTS_MAX: Final = 5
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_RETRY_STATUSES: Final = frozenset((408, 425, 429))
_PORTS: Final = {"http": 80, "https": 443}


class DownloadInterrupted(Transient):
    """A retry may succeed."""


class DownloadImpossible(BootbridgeError):
    """No retry will succeed."""


async def download(url: str, into: BinaryIO, *, tls: ssl.SSLContext | None = None) -> None:
    """Makes one attempt and writes to the current position; a caller that retries truncates the file."""
    if fault := url_fault(url):
        raise DownloadImpossible(fault)
    scheme = urlsplit(url).scheme
    if scheme == "data":
        _decode(url, into)
    elif scheme == "file":
        await asyncio.to_thread(_copy, unquote(urlsplit(url).path), into)
    else:
        await _follow(url, into, tls)


def shown(url: str) -> str:
    """Returns the URL without user info, query (signatures) and inline data."""
    parts = urlsplit(url)
    if parts.scheme == "data":
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
    except ValueError as error:  # a null byte in the path
        raise DownloadImpossible(f"{path!r}: invalid path: {error}") from None


async def _follow(url: str, into: BinaryIO, tls: ssl.SSLContext | None) -> None:
    for _ in range(REDIRECTS_MAX + 1):
        try:
            redirect = await _get(url, into, tls)
        except ssl.SSLCertVerificationError as error:
            raise DownloadImpossible(f"{shown(url)}: {error.verify_message}") from error
        except TimeoutError:
            raise DownloadInterrupted(f"{shown(url)}: no data for {SILENCE_SECONDS:g} s") from None
        except (OSError, h11.RemoteProtocolError) as error:
            raise DownloadInterrupted(f"{shown(url)}: {error}") from error
        except (h11.LocalProtocolError, ValueError) as error:
            # For example a space in the path or an invalid host name.
            raise DownloadImpossible(f"{shown(url)}: invalid URL: {error}") from error
        if not redirect:
            return
        if urlsplit(url).scheme == "https" and urlsplit(redirect).scheme != "https":
            raise DownloadImpossible(f"{shown(url)}: redirect to an unencrypted URL: {shown(redirect)}")
        url = redirect
    raise DownloadImpossible(f"{shown(url)}: more than {REDIRECTS_MAX} redirects")


async def _get(url: str, into: BinaryIO, tls: ssl.SSLContext | None) -> str:
    """Returns the target of a redirect; empty if the file was downloaded."""
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
            return self._redirect_target(response)
        self._check_status(response.status_code)
        await self._write_body(into)
        return ""

    def _redirect_target(self, response: h11.Response) -> str:
        location = dict(response.headers).get(b"location", b"").decode("ascii", "replace")
        try:
            url = urljoin(self._url, location)
        except ValueError:
            url = ""
        if not location or url_fault(url) or urlsplit(url).scheme not in _PORTS:
            raise DownloadImpossible(f"{shown(self._url)}: redirect without a valid location")
        return url

    def _check_status(self, status: int) -> None:
        problem = f"{shown(self._url)}: HTTP status {status}"
        if status in _RETRY_STATUSES or status >= 500:
            raise DownloadInterrupted(problem)
        if status != 200:
            raise DownloadImpossible(problem)

    async def _write_body(self, into: BinaryIO) -> None:
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
    return parts._replace(netloc=parts.netloc.rpartition("@")[2])


def _target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
