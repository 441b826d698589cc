"""Answers the requests for the page and its three files."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Hashable
from types import ModuleType
from urllib.parse import unquote_plus

from bootbridge.runtime.admin_http import AdminRequest, AdminResponse
from bootbridge.runtime.admin_routes import StatusSource
from bootbridge.runtime.sliced_work import SlicedWork, Steps, chunks
from bootbridge.status_page import agent_page, server_page
from bootbridge.status_page.document import Document
from bootbridge.status_page.rates import RateMeter
from bootbridge.status_page.view import PERIOD_SECONDS, View

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
# A page that costs less than this is updated every second: those of most clusters, also on a busy machine,
# where the same work takes twice as long. With 1,000 agents and 10,000 connections a page costs more; then
# a viewer gets this share of the CPU.
CHEAP_SECONDS = 0.05
CPU_SHARE = 0.005
PERIOD_SECONDS_MAX = 20.0


class StatusSite:
    """The page of one program. `status` returns its status document for a query."""

    def __init__(self, status: StatusSource, work: SlicedWork) -> None:
        self._status = status
        self._work = work
        self._meter = RateMeter()

    async def answer(self, request: AdminRequest) -> AdminResponse:
        if request.path in FILES:
            return AdminResponse(_file(request.path), content_type=FILES[request.path], headers=HEADERS)
        view = View.parse({key: unquote_plus(value) for key, value in request.query.items()})
        (status, rates), reading_seconds = await self._work.run(self._current(view))
        if not rates:
            await asyncio.sleep(FIRST_READING_SECONDS)
            (status, rates), reading_seconds = await self._work.run(self._current(view))
        page = _page_of(status)
        sections, rendering_seconds = await self._work.run(page.sections(status, view, rates))
        period = period_seconds(reading_seconds + rendering_seconds)
        text, _ = await self._work.run(page.render(status, view, sections, period))
        return AdminResponse(text, content_type="text/html; charset=utf-8", headers=HEADERS)

    def _current(self, view: View) -> Steps[tuple[Document, dict[Hashable, float]]]:
        status = yield from self._status(view.status_query())
        read_at = time.monotonic()
        # One counter that always exists: without rates, this is the first view.
        totals: dict[Hashable, float] = {"views": 0.0}
        for chunk in chunks(_page_of(status).totals(status)):
            totals.update(chunk)
            yield
        return status, (yield from self._meter.read(totals, read_at))


def period_seconds(cost_seconds: float) -> float:
    """Returns how often a page of this cost is updated."""
    if cost_seconds < CHEAP_SECONDS:
        return PERIOD_SECONDS
    return min(round(cost_seconds / CPU_SHARE), PERIOD_SECONDS_MAX)


def _page_of(status: Document) -> ModuleType:
    return agent_page if status.get("program") == "proxy-agent" else server_page


def _file(path: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), path.lstrip("/")), encoding="utf-8") as file:
        return file.read()
