"""Metadata from an HTTP service of the infrastructure, for example of a hypervisor.

    GET /self            one instance as a JSON object (`join_api/instance_documents.py`)
    GET /peers           a JSON list of them
    GET /endpoint        the load balancer as a JSON string; 404 or "" if there is none
    GET /initsecrethash  text; 404 or empty if this instance must not be initialised

The service identifies the calling instance by its address.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import suppress
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import h11

from bootbridge.common.failures import MetadataUnavailable
from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import Instance
from bootbridge.join_api.instance_documents import host_from, instance_from, instances_from, secret_hash_from

ANSWER_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
READ_BYTES: Final = 65536
OK, NOT_FOUND = 200, 404


class HttpMetadata:
    """Opens a connection for each request, as requests are rare."""

    def __init__(
        self, url: str, *, answer_seconds: float = ANSWER_SECONDS, tls: ssl.SSLContext | None = None
    ) -> None:
        parts = _parts(url)
        self._url = url.rstrip("/")
        self._host, self._authority = str(parts.hostname), parts.netloc
        try:
            self._port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise OperatorError(f"invalid port in URL {url!r}") from None
        self._path = parts.path.rstrip("/")
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._answer_seconds = answer_seconds

    async def myself(self) -> Instance:
        return instance_from(await self._json("/self"), f"{self._url}/self")

    async def peers(self) -> tuple[Instance, ...]:
        return instances_from(await self._json("/peers"), f"{self._url}/peers")

    async def load_balancer(self) -> str:
        return host_from(await self._json("/endpoint", absent=""), f"{self._url}/endpoint")

    async def init_secret_hash(self) -> str:
        body = await self._get("/initsecrethash", absent=b"")
        try:
            text = body.decode("ascii").strip()
        except UnicodeDecodeError:
            raise MetadataUnavailable(f"{self._url}/initsecrethash: invalid ASCII text") from None
        return secret_hash_from(text, f"{self._url}/initsecrethash")

    async def _json(self, path: str, absent: str | None = None) -> Any:
        body = await self._get(path, None if absent is None else json.dumps(absent).encode())
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise MetadataUnavailable(f"{self._url}{path}: invalid JSON") from None

    async def _get(self, path: str, absent: bytes | None = None) -> bytes:
        """Returns the body; `absent`, if given, for a 404."""
        try:
            async with asyncio.timeout(self._answer_seconds):
                status, body = await self._exchange(path)
        except TimeoutError:
            raise MetadataUnavailable(
                f"{self._url}{path}: timed out after {self._answer_seconds:g}s"
            ) from None
        except (OSError, UnicodeError, h11.RemoteProtocolError) as error:
            raise MetadataUnavailable(f"{self._url}{path}: {error}") from error
        if status == NOT_FOUND and absent is not None:
            return absent
        if status != OK:
            raise MetadataUnavailable(f"{self._url}{path}: HTTP status {status}")
        return body

    async def _exchange(self, path: str) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            http = h11.Connection(h11.CLIENT)
            headers = [("Host", self._authority), ("Connection", "close"), ("User-Agent", "bootbridge")]
            head = h11.Request(method="GET", target=self._path + path, headers=headers)
            writer.write((http.send(head) or b"") + (http.send(h11.EndOfMessage()) or b""))
            await writer.drain()
            return await self._answer(http, reader, path)
        finally:
            writer.transport.abort()

    async def _answer(
        self, http: h11.Connection, reader: asyncio.StreamReader, path: str
    ) -> tuple[int, bytes]:
        status, body = 0, bytearray()
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(READ_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > ANSWER_BYTES_MAX:
                    raise MetadataUnavailable(f"{self._url}{path}: larger than {ANSWER_BYTES_MAX} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return status, bytes(body)


def _parts(url: str) -> SplitResult:
    if "@" in url:
        # They are not sent, and would appear in every error.
        raise OperatorError(
            "user and password in a URL are not supported", hint="remove the part before the @"
        )
    with suppress(ValueError):
        parts = urlsplit(url)
        whole = (
            parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment
        )
        if whole and url.isascii() and url.isprintable() and " " not in url:
            return parts
    raise OperatorError(f"invalid URL {url!r}", hint="for example http://10.42.0.1:8080")
