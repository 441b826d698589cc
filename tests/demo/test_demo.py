"""`bootbridge demo` as a user runs it: all steps succeed, and everything is removed, however it ends."""

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

from bootbridge.cli.main import main
from bootbridge.demo import programs
from bootbridge.demo.network import NAMED_NAMESPACES
from tests.demo.conftest import needs_namespaces

pytestmark = pytest.mark.slow  # each runs the whole demo

NETWORKS = [
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
    raise AssertionError(f"{words!r} missing in:\n{text}")


def processes_of(directory: Path) -> list[str]:
    """Returns the command lines with the directory: each of the demo's programs reads a file from it."""
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
    """Returns what exists, looked up without the demo's code."""
    namespaces = [str(path) for path in NAMED_NAMESPACES.glob(f"bb-demo-{pid}-*")]
    return processes_of(directory) + [str(path) for path in directory.iterdir()] + namespaces


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("flags", NETWORKS)
def test_all_steps_succeed_and_nothing_is_left(flags: list[str], short_tmp: Path) -> None:
    demo = start(short_tmp, "--json", *flags)
    out, err = demo.communicate(timeout=60)
    result: dict[str, Any] = json.loads(out)
    assert (demo.returncode, err, result["ok"], result["notRemoved"]) == (0, "", True, [])
    assert [step for step in result["steps"] if not step["ok"]] == []
    assert result["network"] == ("loopback" if flags else "namespaces")
    assert len(result["latency"]) == 4
    assert all(0 < row["p50Ms"] <= row["p99Ms"] for row in result["latency"])
    direct = next(step for step in result["steps"] if step["title"] == "Direct call")
    assert ("succeeds too" if flags else "Network is unreachable") in direct["detail"]
    assert left_by(demo.pid, short_tmp) == []


@pytest.mark.parametrize("flags", NETWORKS)
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
def test_signal_at_any_step_leaves_nothing(
    flags: list[str], number: signal.Signals, moment: str, short_tmp: Path
) -> None:
    demo = start(short_tmp, *flags)
    read_until(demo.stdout, moment)
    demo.send_signal(number)
    out, err = demo.communicate(timeout=20)
    assert (demo.returncode, err) == (128 + number, "")
    assert f"FAIL Stopped by {number.name}." in out
    assert "removed " in out
    assert left_by(demo.pid, short_tmp) == []


def test_repeated_ctrl_c_does_not_interrupt_the_clean_up(short_tmp: Path) -> None:
    demo = start(short_tmp, "--no-root")
    read_until(demo.stdout, "proxy-agents")
    for _ in range(3):
        demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=20)
    assert (demo.returncode, err) == (130, "")
    assert "removed " in out
    assert left_by(demo.pid, short_tmp) == []


def test_closed_stdout_ends_the_demo_without_a_message(short_tmp: Path) -> None:
    """As with `bootbridge demo | head -3`."""
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
    """SIGKILL allows no clean-up; the kernel ends the processes."""
    demo = start(short_tmp, "--no-root")
    read_until(demo.stdout, "proxy-agents")
    assert processes_of(short_tmp) != []
    demo.kill()
    demo.communicate(timeout=20)
    assert eventually(lambda: processes_of(short_tmp) == [])


def test_keep_prints_a_working_curl_command_and_ends_with_0_on_ctrl_c(short_tmp: Path) -> None:
    demo = start(short_tmp, "--no-root", "--keep")
    text = read_until(demo.stdout, "Ctrl-C stops")
    command = text[text.index("curl --connect-to") : text.index("/validate") + len("/validate")]
    curl = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20, check=False)
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=20)
    assert json.loads(curl.stdout)["response"]["allowed"] is False, curl.stderr
    assert (demo.returncode, err) == (0, "")
    assert "removed " in out
    assert left_by(demo.pid, short_tmp) == []


def test_failed_program_is_named_with_its_last_log_lines(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_tmp))
    broken = (sys.executable, "-c", "import sys; sys.exit('invalid certificate')")
    monkeypatch.setitem(programs.MODULES, "agent", broken)
    assert main(["demo", "--no-root"]) == 1
    out = capsys.readouterr().out
    assert "FAIL Step 5, proxy-agents: proxy-agent-node1 exited with code 1" in out
    assert "last log lines of proxy-agent-node1:\n  invalid certificate\n" in out
    assert "removed " in out
    assert left_by(os.getpid(), short_tmp) == []


def test_failed_tunnel_is_reported_with_the_hop(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even if the agents were counted as connected."""
    monkeypatch.setattr("tempfile.tempdir", str(short_tmp))
    idle = (sys.executable, "-c", "import signal; signal.pause()")
    monkeypatch.setitem(programs.MODULES, "agent", idle)
    monkeypatch.setattr(programs.DemoPrograms, "wait_for_agents", lambda self: None)
    assert main(["demo", "--no-root", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    failed = [step for step in result["steps"] if not step["ok"]]
    assert len(failed) == 1
    assert failed[0]["detail"].startswith("tunnel to 127.0.0.1:")
    assert failed[0]["detail"].endswith("No agent available")
    assert result["ok"] is False


@pytest.mark.parametrize("flags", [["--kep"], ["extra"], ["--keep", "--json"]])
def test_invalid_flag_is_named(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *flags]) == 1
    assert flags[-1] in capsys.readouterr().err
