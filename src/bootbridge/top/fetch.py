"""Gets one sample over HTTP: `/status`, else `/metrics`."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import SplitResult, urlencode, urlsplit

from bootbridge.errors import OperatorError
from bootbridge.top.metrics_page import parse_metrics
from bootbridge.top.snapshot import Snapshot
from bootbridge.top.status_document import parse_status
from bootbridge.top.text import printable

TIMEOUT_SECONDS = 5.0
BODY_BYTES_MAX = 32 << 20  # 1,000 agents and 1,000 connections are below 2 MiB
ROWS_MAX = 1000  # of each list; the programs' own maximum
_PAGES = ("/status", "/metrics", "/")
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_PATH = re.compile(r"[A-Za-z0-9._~:%/+-]*")


class NoAnswerError(OperatorError):
    """No HTTP response: refused, timed out, name not found. The next attempt may succeed."""


class NotTheProgramError(OperatorError):
    """Something answers that is neither a proxy-server nor a proxy-agent."""


@dataclass(frozen=True)
class ProgramUrl:
    host: str
    port: int
    scheme: str = "http"
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> ProgramUrl:
        """Accepts `http://host:port`, `host:port`, `:port` and `port`; a page at the end is ignored."""
        shown = printable(text, 100)
        whole = (
            f"127.0.0.1:{text}" if text.isdecimal() else f"127.0.0.1{text}" if text.startswith(":") else text
        )
        try:
            parts = urlsplit(whole if "://" in whole else f"http://{whole}")
            port = parts.port
        except ValueError:
            raise _invalid(shown) from None
        if parts.scheme not in ("http", "https") or port == 0 or not _is_plain(parts):
            raise _invalid(shown)
        path = parts.path
        for page in _PAGES:
            path = path.removesuffix(page)
        return cls(parts.hostname or "", port or (443 if parts.scheme == "https" else 80), parts.scheme, path)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def _invalid(shown: str) -> OperatorError:
    hint = "give the admin port, for example http://127.0.0.1:8095"
    return OperatorError(f"invalid URL {shown!r}", hint=hint)


def _is_plain(parts: SplitResult) -> bool:
    safe = _HOST.fullmatch(parts.hostname or "") and _PATH.fullmatch(parts.path)
    return bool(safe) and not (parts.query or parts.fragment or parts.username or parts.password)


@dataclass(frozen=True)
class RowQuery:
    """Which rows of the lists are wanted; the totals are always complete."""

    agents: int = ROWS_MAX
    connections: int = ROWS_MAX
    filter: str = ""
    sort: str = ""  # of connections: age, bytes or queued

    def __str__(self) -> str:
        values = {"agents_limit": self.agents, "connections_limit": self.connections}
        more = {key: value for key, value in (("filter", self.filter), ("sort", self.sort)) if value}
        return urlencode({**values, **more})


class SampleSource(Protocol):
    def sample(self, query: RowQuery | None = None) -> Snapshot: ...


@dataclass
class StatusClient:
    """Gets samples of one program, each over a new connection."""

    url: ProgramUrl
    # Ports of the program that are reachable under another number on this machine (port forwarding).
    forwarded: Mapping[int, int] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _without_status: bool = False

    def sample(self, query: RowQuery | None = None) -> Snapshot:
        """Raises NoAnswerError or NotTheProgramError."""
        answers = []
        try:
            if not self._without_status:
                status, body = self._get(f"/status?{query or RowQuery()}")
                if status == 200 and (found := parse_status(_json(body), taken=self.clock())):
                    return found
                answers.append(f"/status: {_named(status)}")
            status, body = self._metrics()
            if status == 200 and (found := parse_metrics(body.decode(errors="replace"), taken=self.clock())):
                self._without_status = True
                return found
        except NoAnswerError:
            self._without_status = False  # another program may answer next
            raise
        answers.append(f"/metrics: {_named(status)}")
        self._without_status = False
        hint = "give the admin port: 8095 of a server, 8094 of an agent, by default"
        text = f"not a proxy-server or proxy-agent ({'; '.join(answers)})"
        raise NotTheProgramError(text, subject=str(self.url), hint=hint)

    def _metrics(self) -> tuple[int, bytes]:
        """An agent's admin port redirects to its health port, on the same host."""
        status, body = self._get("/metrics")
        if status in (301, 302, 307, 308):
            try:
                target = urlsplit(self._location)
                port = target.port if target.path == "/metrics" else None
            except ValueError:
                port = None
            if port:
                return self._get("/metrics", self.forwarded.get(port, port))
        return status, body

    def _get(self, page: str, port: int = 0) -> tuple[int, bytes]:
        url = self.url
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.host, port or url.port, timeout=TIMEOUT_SECONDS)
        self._location = ""
        try:
            connection.request("GET", url.path + page, headers={"Accept": "application/json, text/plain"})
            response = connection.getresponse()
            self._location = response.getheader("Location") or ""
            body = response.read(BODY_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._no_answer(error) from error
        finally:
            connection.close()
        if len(body) > BODY_BYTES_MAX:
            raise NotTheProgramError(f"response above {BODY_BYTES_MAX >> 20} MiB", subject=str(url))
        return response.status, body

    def _no_answer(self, error: Exception) -> OperatorError:
        where = str(self.url)
        if isinstance(error, ConnectionRefusedError):
            hint = "is the program running, and is this its admin port?"
            return NoAnswerError("connection refused", subject=where, hint=hint)
        if isinstance(error, TimeoutError):
            return NoAnswerError(f"timed out after {TIMEOUT_SECONDS:.0f}s", subject=where)
        if isinstance(error, socket.gaierror):
            return NoAnswerError("host name not found", subject=where, hint=printable(error.strerror))
        if isinstance(error, http.client.RemoteDisconnected):
            return NoAnswerError("connection closed without a response", subject=where)
        if isinstance(error, OSError):
            return NoAnswerError(printable(error.strerror or error, 200), subject=where)
        hint = "is it another program, or a TLS port?"
        return NotTheProgramError("invalid HTTP response", subject=where, hint=hint)


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _named(status: int) -> str:
    if status == 200:
        return "200, but not its content"
    phrase = http.client.responses.get(status, "")
    return f"{status} {phrase}".rstrip()
