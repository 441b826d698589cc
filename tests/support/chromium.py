"""A headless Chromium, driven by the DevTools protocol over a pipe: no driver, no library, no port.

    with Chromium(folder) as browser:
        page = browser.open("http://127.0.0.1:8095/")
        page.until("document.title === 'x'", "the title is x")
        page.screenshot(path)

Names resolve to nothing but loopback, so a page cannot reach another machine even if it tries.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

from tests.support.process_program import DEADLINE_SECONDS

PROGRAM = "chromium"
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the sandbox needs another user than root
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-features=Translate,OptimizationHints,MediaRouter",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--password-store=basic",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost, EXCLUDE ::1",
    "--remote-debugging-pipe",
    "about:blank",
)
# Chromium reads commands from 3 and writes to 4.
LAUNCHER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
SPECIAL_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowDown": 40}


def missing() -> str:
    return "" if shutil.which(PROGRAM) else f"missing {PROGRAM}: apt-get install chromium"


class DevToolsError(Exception):
    """Chromium refused a command."""


class Chromium:
    """One browser process with an empty profile."""

    def __init__(self, folder: Path) -> None:
        profile = folder / "chromium"
        profile.mkdir(exist_ok=True)
        theirs_in, ours_out = _high_pipe()
        ours_in, theirs_out = _high_pipe()
        self._out, self._in = ours_out, ours_in
        self._log = (folder / "chromium.log").open("wb")
        command = [sys.executable, "-c", LAUNCHER, str(theirs_in), str(theirs_out), PROGRAM]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", *FLAGS],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, "HOME": str(folder)},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, url: str, prepare: Callable[[Page], None] | None = None) -> Page:
        """Opens a page and waits until it has loaded; `prepare` is called before the first request."""
        # A window of its own: the page of a tab in the background would pause.
        target = self.call("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        if prepare is not None:
            prepare(page)
        page.go(url)
        return page

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer; events that come before it are recorded."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise DevToolsError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._record(answer)

    def collect(self) -> None:
        """Records the events that have arrived."""
        self.call("Browser.getVersion")

    def _record(self, event: dict[str, Any]) -> None:
        page = self._pages.get(event.get("sessionId", ""))
        if page is not None:
            page.events.append(event)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium did not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "Chromium ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def close_target(self, target: str) -> None:
        self.call("Target.closeTarget", targetId=target)

    def close(self) -> None:
        """Ends the browser and its children: they are one process group, which we started."""
        os.close(self._out)
        try:
            self._process.wait(5)  # it ends when the pipe does
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(10)
        os.close(self._in)
        self._log.close()


class Page:
    """One tab."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self._browser = browser
        self._target = target
        self._session = session
        self.events: list[dict[str, Any]] = []
        # What a test provokes.
        self.expected_complaints: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    # --- preparing

    def resize(self, width: int, height: int, *, scale: float = 1, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=mobile,
        )

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def disable_javascript(self) -> None:
        self.call("Emulation.setScriptExecutionDisabled", value=True)

    # --- using

    def go(self, url: str) -> None:
        before = self._loads()
        answer = self.call("Page.navigate", url=url)
        assert not answer.get("errorText"), f"{url}: {answer['errorText']}"
        self.wait_for_load(before)

    def wait_for_load(self, before: int) -> None:
        self._wait(lambda: self._loads() > before, "the page has loaded")

    def loads(self) -> int:
        self._browser.collect()
        return self._loads()

    def _loads(self) -> int:
        return len(self._events("Page.loadEventFired"))

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The text that is shown, of the first element that matches."""
        found = f"document.querySelector({json.dumps(selector)})"
        return str(self.evaluate(f"{found}.innerText ?? {found}.textContent"))  # SVG has no innerText

    def document_text(self) -> str:
        """All text of the page, also where scripts are disabled."""
        root = self.call("DOM.getDocument", depth=0)["root"]["nodeId"]
        html: str = self.call("DOM.getOuterHTML", nodeId=root)["outerHTML"]
        return unescape(re.sub("<[^>]*>", "", html))

    def value(self, name: str) -> int:
        """The exact value of a number of the page, by its name."""
        return int(self.evaluate(f"document.querySelector('data[data-name={name}]').value"))

    def until(self, expression: str, what: str, seconds: float = DEADLINE_SECONDS) -> float:
        """Waits until an expression is true; returns the seconds that it took."""
        return self._wait(lambda: bool(self.evaluate(expression)), what, seconds)

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> float:
        started = time.monotonic()
        while True:
            self._browser.collect()
            if condition():
                return time.monotonic() - started
            assert time.monotonic() < started + seconds, f"not within {seconds:.0f} s: {what}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Presses and releases a key: one of SPECIAL_KEYS, or a character."""
        code = SPECIAL_KEYS.get(key)
        shared: dict[str, Any] = {"key": key, "code": key if code else ""}
        if code:
            shared |= {"windowsVirtualKeyCode": code}
        text = {"Enter": "\r"}.get(key, "" if code else key)
        self.call(
            "Input.dispatchKeyEvent",
            type="keyDown" if text else "rawKeyDown",
            **shared,
            **({"text": text} if text else {}),
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def screenshot(self, path: Path, *, full: bool = True) -> None:
        """Writes a PNG of the whole page, or of the window only."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(answer["data"]))

    def wait_for_updates(self, count: int) -> None:
        """Waits until the page has updated itself this many times."""
        before = self.updates()
        self._wait(
            lambda: self.updates() >= before + count, f"{count} updates", 10 * count + DEADLINE_SECONDS
        )

    def close(self) -> None:
        self._browser.close_target(self._target)

    # --- what happened

    def updates(self) -> int:
        """How many requests its script has finished so far."""
        finished = {event["params"]["requestId"] for event in self._events("Network.loadingFinished")}
        return len(finished & self._script_requests())

    def requests_of_script(self) -> int:
        """How many requests its script has begun so far."""
        self._browser.collect()
        return len(self._script_requests())

    def _script_requests(self) -> set[str]:
        sent = (event["params"] for event in self._events("Network.requestWillBeSent"))
        return {each["requestId"] for each in sent if each["type"] == "XHR"}

    def requests(self) -> list[str]:
        """The URLs of all requests so far."""
        self._browser.collect()
        sent = self._events("Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[str]:
        """Console errors and warnings, violations of the policy, exceptions, failed requests."""
        self._browser.collect()
        found = [
            event["params"]["entry"]["text"]
            for event in self._events("Log.entryAdded")
            if event["params"]["entry"]["level"] in ("error", "warning")
        ]
        found += [str(event["params"]) for event in self._events("Runtime.exceptionThrown")]
        found += [
            str(event["params"]["args"])
            for event in self._events("Runtime.consoleAPICalled")
            if event["params"]["type"] in ("error", "warning", "assert")
        ]
        return found

    def _events(self, method: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("method") == method]


def _high_pipe() -> tuple[int, int]:
    """A pipe whose ends are above the numbers that the launcher replaces."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
        os.close(end)
    return ends[0], ends[1]
