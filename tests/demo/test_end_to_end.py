"""The demo as a user runs it: it holds what it says, and leaves nothing behind, whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from bootbridge.demo import stage
from bootbridge.demo.main import run
from bootbridge.demo.network import NAMED_NAMESPACES, why_no_namespaces
from bootbridge.errors import OperatorError

pytestmark = pytest.mark.slow  # each runs the whole demo

# Under CI they run, and fail where they cannot.
needs_namespaces = pytest.mark.skipif(
    bool(why_no_namespaces()) and os.environ.get("CI") != "true",
    reason=f"network namespaces: {why_no_namespaces()}",
)
SITES = [
    pytest.param([], marks=needs_namespaces, id="namespaces"),
    pytest.param(["--no-root"], id="loopback"),
]


def start(directory: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bootbridge.cli.main", "demo", *flags],
        env={**os.environ, "TMPDIR": str(directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(stream: IO[str] | None, words: str) -> str:
    assert stream is not None
    text = ""
    for line in stream:
        text += line
        if words in line:
            return text
    raise AssertionError(f"{words!r} never came:\n{text}")


def processes_of(directory: Path) -> list[str]:
    """Command lines that mention the directory: each of the demo's programs reads a file from it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in command:
            found.append(command)
    return found


def left_by(pid: int, directory: Path) -> list[str]:
    """Looked up without the demo's own help."""
    namespaces = [str(path) for path in NAMED_NAMESPACES.glob(f"bb-demo-{pid}-*")]
    return processes_of(directory) + [str(path) for path in directory.iterdir()] + namespaces


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("flags", SITES)
def test_every_step_holds_and_nothing_is_left(flags: list[str], short_tmp: Path) -> None:
    """Exit code 0, JSON alone on stdout, and the machine as it was."""
    demo = start(short_tmp, "--json", *flags)
    out, err = demo.communicate(timeout=60)
    result: dict[str, Any] = json.loads(out)
    assert (demo.returncode, err, result["ok"], result["left_behind"]) == (0, "", True, [])
    assert [step for step in result["steps"] if not step["ok"]] == []
    assert result["site"] == ("loopback" if flags else "namespaces")
    assert len(result["latency"]) == 4
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in result["latency"])
    direct = next(step for step in result["steps"] if step["title"] == "Direct call")
    assert ("works as well" if flags else "Network is unreachable") in direct["detail"]
    assert left_by(demo.pid, short_tmp) == []


@pytest.mark.parametrize("flags", SITES)
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "Bootbridge demo"),
        (signal.SIGINT, "Network"),
        (signal.SIGTERM, "Webhook"),
        (signal.SIGINT, "proxy-agents"),
        (signal.SIGHUP, "Direct call"),
    ],
)
def test_a_signal_in_the_middle_leaves_nothing(
    flags: list[str], number: signal.Signals, moment: str, short_tmp: Path
) -> None:
    """Wherever it is interrupted, it removes what it made and says so."""
    demo = start(short_tmp, *flags)
    read_until(demo.stdout, moment)
    demo.send_signal(number)
    out, err = demo.communicate(timeout=20)
    assert (demo.returncode, err) == (128 + number, "")
    assert f"✗ Stopped by {number.name}." in out
    assert "nothing is left" in out
    assert left_by(demo.pid, short_tmp) == []


def test_an_impatient_second_ctrl_c_does_not_spoil_the_clean_up(short_tmp: Path) -> None:
    """Three in a row are as good as one."""
    demo = start(short_tmp, "--no-root")
    read_until(demo.stdout, "proxy-agents")
    for _ in range(3):
        demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=20)
    assert (demo.returncode, err) == (130, "")
    assert "nothing is left" in out
    assert left_by(demo.pid, short_tmp) == []


def test_a_reader_who_leaves_early_ends_the_demo_cleanly(short_tmp: Path) -> None:
    """`bootbridge demo | head -3` leaves nothing, and complains about nothing."""
    demo = start(short_tmp, "--no-root")
    read_until(demo.stdout, "Network")
    assert demo.stdout is not None
    assert demo.stderr is not None
    demo.stdout.close()
    assert demo.wait(timeout=20) == 128 + signal.SIGPIPE
    assert demo.stderr.read() == ""
    demo.stderr.close()
    assert left_by(demo.pid, short_tmp) == []


def test_sigkill_leaves_no_process(short_tmp: Path) -> None:
    """Not even the one signal that allows no clean-up leaves a program running."""
    demo = start(short_tmp, "--no-root")
    read_until(demo.stdout, "proxy-agents")
    assert processes_of(short_tmp) != []
    demo.kill()
    demo.communicate(timeout=20)
    assert eventually(lambda: processes_of(short_tmp) == [])


def test_keep_stays_until_ctrl_c_and_its_advice_works(short_tmp: Path) -> None:
    """The curl command that it prints gets the webhook's refusal; then Ctrl-C is a good end."""
    demo = start(short_tmp, "--no-root", "--keep")
    text = read_until(demo.stdout, "Ctrl-C ends it")
    command = text[text.index("curl --proxy") : text.index("/validate") + len("/validate")]
    curl = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20, check=False)
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=20)
    assert json.loads(curl.stdout)["response"]["allowed"] is False, curl.stderr
    assert (demo.returncode, err) == (0, "")
    assert "nothing is left" in out
    assert left_by(demo.pid, short_tmp) == []


def test_a_program_that_fails_is_named_with_its_last_words(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says which step failed and why; the log says the rest; everything is removed."""
    monkeypatch.setattr("tempfile.tempdir", str(short_tmp))
    broken = (sys.executable, "-c", "import sys; sys.exit('the flux is gone')")
    monkeypatch.setitem(stage.MODULES, "agent", broken)
    assert run(["--no-root"]) == 1
    out = capsys.readouterr().out
    assert "✗ Step 5, proxy-agents: proxy-agent-node1 ended at once, exit code 1" in out
    assert "proxy-agent-node1 said last:\n  the flux is gone\n" in out
    assert "nothing is left" in out
    assert left_by(os.getpid(), short_tmp) == []


def test_a_dead_tunnel_is_told_by_hop(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent count that lies does not get us past the call itself."""
    monkeypatch.setattr("tempfile.tempdir", str(short_tmp))
    idle = (sys.executable, "-c", "import signal; signal.pause()")
    monkeypatch.setitem(stage.MODULES, "agent", idle)
    monkeypatch.setattr(stage.Stage, "wait_for_agents", lambda self: None)
    assert run(["--no-root", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    failed = [step for step in result["steps"] if not step["ok"]]
    assert len(failed) == 1
    assert failed[0]["detail"].startswith("tunnel to 127.0.0.1:")
    assert failed[0]["detail"].endswith("No agent available")
    assert result["ok"] is False


@pytest.mark.parametrize("flags", [["--kep"], ["extra"], ["--keep", "--json"]])
def test_bad_flags_are_refused_by_name(flags: list[str]) -> None:
    """Before anything is made."""
    with pytest.raises(OperatorError, match=flags[-1]):
        run(flags)
