"""One browser for all tests of a process, a new tab for each page."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.chromium import Chromium, Page
from tests.support.tunnel_programs import Agent, Server

OpenPage = Callable[..., Page]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def open_page(browser: Chromium) -> Iterator[OpenPage]:
    """Opens the page of a program: `open_page(server, "?filter=x", width=360, javascript=False)`.

    Afterwards no page may have complained in the console, or have asked another host for anything.
    """
    opened: list[tuple[Page, str]] = []

    def open_one(
        program: Server | Agent | int,
        query: str = "",
        *,
        width: int = 1280,
        scheme: str = "light",
        javascript: bool = True,
    ) -> Page:
        port = program if isinstance(program, int) else program.admin.port
        origin = f"http://127.0.0.1:{port}/"

        def prepare(page: Page) -> None:
            opened.append((page, origin))
            page.resize(width, 900, mobile=width < 500)
            page.prefer(scheme)
            if not javascript:
                page.disable_javascript()

        return browser.open(origin + query, prepare)

    yield open_one
    for page, origin in opened:
        complaints = [text for text in page.complaints() if text not in page.expected_complaints]
        outside = [url for url in page.requests() if not url.startswith(origin)]
        page.close()
        assert complaints == []
        assert outside == []
