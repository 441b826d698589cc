"""Answers the requests for the page and its three files."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from urllib.parse import unquote_plus

from bootbridge.runtime.admin_http import AdminRequest, AdminResponse
from bootbridge.status_page import agent_page, server_page
from bootbridge.status_page.document import Document
from bootbridge.status_page.rates import RateMeter
from bootbridge.status_page.view import View

# Scripts, styles, pictures and updates only from this port; nothing inline or framed, no HTML from strings.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HEADERS = (
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
    ("Cache-Control", "no-store"),
)
FILES = {
    "/status.css": "text/css; charset=utf-8",
    "/status.js": "text/javascript; charset=utf-8",
    "/status.svg": "image/svg+xml",
}
# The first view has no earlier reading of the counters: it waits this long for a second one.
FIRST_READING_SECONDS = 0.25

StatusDocument = Callable[[Mapping[str, str]], Document]


class StatusSite:
    """The page of one program. `status` returns its status document for a query."""

    def __init__(self, status: StatusDocument) -> None:
        self._status = status
        self._meter = RateMeter()

    async def answer(self, request: AdminRequest) -> AdminResponse:
        if request.path in FILES:
            return AdminResponse(_file(request.path), content_type=FILES[request.path], headers=HEADERS)
        view = View.parse({key: unquote_plus(value) for key, value in request.query.items()})
        status = self._status(view.status_query())
        page = agent_page if status.get("program") == "proxy-agent" else server_page
        rates = self._read(page.totals(status))
        if not rates:
            await asyncio.sleep(FIRST_READING_SECONDS)
            status = self._status(view.status_query())
            rates = self._read(page.totals(status))
        return AdminResponse(
            page.render(status, view, rates), content_type="text/html; charset=utf-8", headers=HEADERS
        )

    def _read(self, totals: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
        # One counter that always exists: without rates, this is the first view.
        return self._meter.read({"views": 0.0, **dict(totals)}, time.monotonic())


def _file(path: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), path.lstrip("/")), encoding="utf-8") as file:
        return file.read()
