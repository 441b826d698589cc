"""Programs are run with a time limit, their output is passed on by line, and none is left running."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from bootbridge.common.failures import Fatal, Transient
from bootbridge.node.kubeadm import commands
from bootbridge.node.kubeadm.commands import LINE_BYTES_MAX, CommandFailed, run_command
from bootbridge.trust.authority import Authority
from tests.support.deterministic_loop import run
from tests.support.fake_clock import pass_time


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


async def lines_of(script: str) -> list[str]:
    lines: list[str] = []
    await run_command(shell(script), seconds=10, on_line=lines.append)
    return lines


async def test_stdout_and_stderr_keep_their_order() -> None:
    assert await lines_of("echo one; echo two >&2; printf three") == ["one", "two", "three"]


async def test_lines_are_passed_on_as_they_are_written(tmp_path: Path) -> None:
    """The program waits for a reaction to its first line."""
    heard = tmp_path / "heard"
    os.mkfifo(heard)

    def answer(line: str) -> None:
        with heard.open("w") as fifo:
            fifo.write("yes\n")

    await run_command(shell(f"echo ready; read answer < {heard}"), seconds=10, on_line=answer)


async def test_a_long_line_is_cut_and_the_next_is_complete() -> None:
    lines = await lines_of(f"head -c {5 * LINE_BYTES_MAX} /dev/zero | tr '\\0' x; echo; echo next")
    assert len(lines[0]) == LINE_BYTES_MAX + 2
    assert lines[1:] == ["next"]


async def test_invalid_utf8_is_replaced() -> None:
    assert await lines_of(r"printf '\377\n'") == ["�"]


async def test_a_failure_reports_the_status_and_the_last_lines() -> None:
    with pytest.raises(CommandFailed, match=r"^sh: exit status 3: .*line 30$") as failure:
        await run_command(shell("for i in $(seq 30); do echo line $i; done; exit 3"), seconds=10)
    assert "line 2 " not in str(failure.value)
    assert isinstance(failure.value, Transient)


async def test_a_missing_program_is_fatal_with_advice() -> None:
    with pytest.raises(Fatal, match="to the components"):
        await run_command(["/nowhere/kubeadm"], seconds=10)


def pids_in(file: Path) -> list[int]:
    return [int(word) for word in file.read_text().split()]


def alive(pid: int) -> bool:
    """Returns whether the process runs; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def reaped(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def ended(pids: list[int]) -> None:
    async with asyncio.timeout(10):
        while any(map(alive, pids)):  # noqa: ASYNC110 - not a child of this process: nothing to wait for
            await asyncio.sleep(0.01)


def hanging(tmp_path: Path, trap: str = "") -> str:
    """Prints its PID and that of a child, and keeps running."""
    return (
        f"{trap} sleep 600 & echo $$ $! > {tmp_path}/made; mv {tmp_path}/made {tmp_path}/pids; echo up; wait"
    )


async def test_a_timeout_ends_the_program_and_its_children(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="sh: timed out after 600 s: up"):
        await run_command(shell(hanging(tmp_path)), seconds=600, on_line=lambda line: pass_time(600))
    await ended(pids_in(tmp_path / "pids"))


async def test_a_program_that_ignores_sigterm_is_killed_and_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "GRACE_SECONDS", 0.0)
    script = hanging(tmp_path, "trap '' TERM;") + "; while :; do sleep 600; done"
    with pytest.raises(CommandFailed):
        await run_command(shell(script), seconds=600, on_line=lambda line: pass_time(600))
    leader, child = pids_in(tmp_path / "pids")
    assert reaped(leader)
    await ended([child])


def test_a_killed_program_is_waited_for_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit may take long in the kernel; the caller must not continue in the meantime."""
    sent: list[signal.Signals] = []

    class Slow:
        returncode: int | None = None

        async def wait(self) -> int:
            await asyncio.sleep(1000)
            self.returncode = -9
            return self.returncode

    monkeypatch.setattr(commands, "_signal", lambda process, number: sent.append(number))
    process = Slow()
    run(commands._terminate(process))  # type: ignore[arg-type]
    assert (sent, process.returncode) == ([signal.SIGTERM, signal.SIGKILL], -9)


async def test_cancellation_ends_the_program(tmp_path: Path) -> None:
    up = asyncio.Event()
    running = asyncio.create_task(
        run_command(shell(hanging(tmp_path)), seconds=600, on_line=lambda line: up.set())
    )
    await up.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await ended(pids_in(tmp_path / "pids"))


async def test_a_daemon_that_keeps_the_pipe_open_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "DRAIN_SECONDS", 0.1)
    pid = tmp_path / "pid"
    await run_command(shell(f"setsid sleep 600 & echo $! > {pid}; echo done"), seconds=10)
    os.kill(pids_in(pid)[0], 9)


@pytest.mark.parametrize(
    ("line", "clean"),
    [
        ("kubeadm join --token abcdef.0123456789abcdef", "kubeadm join --token [redacted]"),
        (
            "[bootstrap-token] Using token: abcdef.0123456789abcdef",
            "[bootstrap-token] Using token: [redacted]",
        ),
        ("--certificate-key " + "0a" * 32, "--certificate-key [redacted]"),
        ("-----BEGIN RSA PRIVATE KEY----- MIIE", "[redacted]"),
    ],
)
async def test_tokens_and_keys_are_redacted(line: str, clean: str) -> None:
    assert await lines_of(f"echo '{line}'") == [clean]


async def test_ordinary_words_and_ca_hashes_are_kept() -> None:
    line = f"v1.36.3 at cp-0.example.internal, sha256:{'ab' * 32}"
    assert await lines_of(f"echo '{line}'") == [line]


async def test_all_lines_of_a_private_key_are_redacted() -> None:
    key = Authority.create("test").key_pem.decode()
    lines = await lines_of(f"echo before; cat <<'KEY'\n{key}KEY\necho after")
    assert lines == ["before", "[redacted]", "[redacted]", "after"]
