"""The audit trail of a running server: one line per dial, rotation, and a disk that is full."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.audit_lines import assert_lines_add_up, audit_lines, parsed
from tests.support.process_endpoints import Endpoint, echo, reset_after_read
from tests.support.process_pairings import with_our_server
from tests.support.process_program import free_port, until
from tests.support.process_tunnels import RefusedDialError, dial, receive, receive_all
from tests.support.tunnel_programs import ANY_DESTINATION, Pairing, Programs, Server

Endpoints = Callable[..., Endpoint]


@pytest.fixture
def trail(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def echo_once(server: Server, address: str, data: bytes = b"0123456789") -> None:
    tunnel = dial(server, address)
    tunnel.send(data)
    assert receive(tunnel, len(data)) == data
    tunnel.close()


def refused(server: Server, address: str) -> None:
    with pytest.raises(RefusedDialError):
        dial(server, address)


def facts(line: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(line[name] for name in names)


# --- lines


@with_our_server
def test_every_dial_has_one_line(
    programs: Programs, mode: str, pairing: Pairing, endpoint: Endpoints, trail: Path
) -> None:
    """Also one that failed, with the hop and the reason; and who closed, with a Go agent too."""
    server, agent = programs.pair(
        pairing, mode, server_flags={"audit-log": trail, "server-id": "s1"}, agent_flags={"agent-id": "a1"}
    )
    address, resetting, closed = endpoint(echo).address, endpoint(reset_after_read).address, free_port()
    echo_once(server, address)
    tunnel = dial(server, resetting)
    tunnel.send(b"x" * 1000)
    try:
        receive_all(tunnel)
    except ConnectionError:
        pass
    tunnel.abandon()
    refused(server, f"127.0.0.1:{closed}")
    refused(server, "no-such-name.invalid:1")
    open_until_agent_is_lost = dial(server, address)
    agent.kill()
    server.wait_for_agents(0)
    open_until_agent_is_lost.abandon()
    refused(server, address)
    lines = audit_lines(trail, 6)

    assert_lines_add_up(server, lines)
    assert {facts(line, "serverID", "caller", "protocol") for line in lines} == {("s1", "unix", mode)}
    assert [facts(line, "outcome", "hop", "closedBy") for line in lines] == [
        ("established", "", "caller"),
        ("established", "", "endpoint"),
        ("refused", "agent to endpoint", ""),
        ("refused", "agent to endpoint", ""),
        ("established", "", "agent lost"),
        ("no agent", "server: no agent", ""),
    ]
    assert facts(lines[0], "destination", "name", "strategy", "agent") == (address, "", "default", "a1")
    assert facts(lines[0], "triedAgents", "bytesUp", "bytesDown") == (["a1"], 10, 10)
    assert facts(lines[1], "bytesUp", "bytesDown") == (1000, 0)
    assert "connection refused" in lines[2]["reason"]
    assert lines[3]["name"] == "no-such-name.invalid"
    assert lines[4]["closeReason"].startswith("agent lost: ")
    assert facts(lines[5], "agent", "triedAgents", "reason") == ("", [], "default: no agent is connected")
    assert all(line["openSeconds"] > 0 for line in lines if line["outcome"] == "established")


def test_a_direct_connection_has_a_line(
    programs: Programs, mode: str, endpoint: Endpoints, trail: Path
) -> None:
    flags = {
        "audit-log": trail,
        "proxy-strategies": "direct",
        "direct-cidrs": "127.0.0.0/8",
        "allow-destinations": ANY_DESTINATION,
    }
    server = programs.server(mode=mode, flags=flags)
    echo_once(server, endpoint(echo).address)
    (line,) = audit_lines(trail, 1)
    assert facts(line, "strategy", "agent", "outcome", "bytesUp", "bytesDown") == (
        "direct",
        "",
        "established",
        10,
        10,
    )


def test_connections_that_a_stop_cuts_have_their_lines(
    programs: Programs, mode: str, endpoint: Endpoints, trail: Path
) -> None:
    """The server writes them before it exits."""
    server, _ = programs.pair(mode=mode, server_flags={"audit-log": trail})
    tunnels = [dial(server, endpoint(echo).address) for _ in range(20)]
    for tunnel in tunnels:
        tunnel.send(b"cut")
        assert receive(tunnel, 3) == b"cut"
    server.terminate()
    assert server.wait() == 0
    lines = audit_lines(trail, 20)
    assert {facts(line, "closedBy", "bytesUp", "bytesDown") for line in lines} == {("server", 3, 3)}


def test_lines_can_go_to_stdout(programs: Programs, endpoint: Endpoints) -> None:
    """The log is on stderr, so that the two can be separated."""
    server, _ = programs.pair(server_flags={"audit-log": "-"})
    echo_once(server, endpoint(echo).address)
    until(lambda: '"outcome"' in server.log, "the line")
    (line,) = parsed("".join(each + "\n" for each in server.log.splitlines() if each.startswith("{")))
    assert line["bytesUp"] == 10


# --- rotation


def test_after_a_rename_lines_go_to_a_new_file(programs: Programs, endpoint: Endpoints, trail: Path) -> None:
    """Without a signal; and a removed file is created again."""
    server, _ = programs.pair(server_flags={"audit-log": trail})
    address, old = endpoint(echo).address, trail.with_suffix(".1")
    echo_once(server, address)
    audit_lines(trail, 1)
    trail.rename(old)
    echo_once(server, address)
    assert [line["id"] for line in audit_lines(trail, 1)] == [2]
    assert [line["id"] for line in audit_lines(old, 1)] == [1]
    trail.unlink()
    echo_once(server, address)
    assert [line["id"] for line in audit_lines(trail, 1)] == [3]
    assert trail.stat().st_mode & 0o777 == 0o600


def test_sighup_opens_the_file_again_at_once(programs: Programs, endpoint: Endpoints, trail: Path) -> None:
    """As logrotate does it, before the next dial; the server goes on."""
    server, _ = programs.pair(server_flags={"audit-log": trail})
    old = trail.with_suffix(".1")
    trail.rename(old)
    os.kill(server.pid, signal.SIGHUP)
    until(trail.exists, "the file is there again")
    until(lambda: old.stat().st_ino not in open_files(server), "the old file is closed")
    echo_once(server, endpoint(echo).address)
    audit_lines(trail, 1)
    assert old.read_bytes() == b""


def test_a_path_that_is_gone_loses_no_line(programs: Programs, endpoint: Endpoints, tmp_path: Path) -> None:
    """While the path cannot be opened, lines go to the file that is open, under whatever name it has."""
    folder, moved = tmp_path / "trail", tmp_path / "moved"
    folder.mkdir()
    server, _ = programs.pair(server_flags={"audit-log": folder / "audit.jsonl"})
    folder.rename(moved)
    echo_once(server, endpoint(echo).address)
    audit_lines(moved / "audit.jsonl", 1)
    server.wait_for_log("file not opened again")
    assert server.metric("audit_lines_dropped_total") == 0


def open_files(server: Server) -> set[int]:
    found = set()
    for link in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            found.add(link.stat().st_ino)
        except OSError:
            pass  # closed meanwhile
    return found


# --- failures


def test_a_full_disk_loses_audit_lines_and_nothing_else(programs: Programs, endpoint: Endpoints) -> None:
    """/dev/full refuses every write. The lines are counted in the metric and in the log."""
    server, _ = programs.pair(server_flags={"audit-log": "/dev/full"})
    address = endpoint(echo).address
    for _ in range(30):
        echo_once(server, address, b"y" * 5000)
    until(lambda: server.metric("audit_lines_dropped_total") == 30, "every line is counted")
    assert server.metric("dial_duration_seconds_count") == 30
    assert server.metric("transferred_bytes_total", direction="to_agent") == 150_000
    (limit,) = [row for row in server.admin.status()["limits"] if row["name"] == "audit bytes"]
    assert limit["reachedTotal"] == 30
    assert server.health.get("/readyz") == (200, "ok")
    server.terminate()
    assert server.wait() == 0
    counts = re.findall(r'audit lines dropped count=(\d+) reason="No space left on device"', server.log)
    assert sum(map(int, counts)) == 30
    assert len(counts) < 30  # at most one line in ten seconds, and one at the end


def test_a_disk_that_was_full_has_whole_lines_only(
    programs: Programs, endpoint: Endpoints, trail: Path
) -> None:
    """A limit on the file's size stands for the full disk: a line that fits in part is removed."""
    server, _ = programs.pair(server_flags={"audit-log": trail})
    address = endpoint(echo).address
    echo_once(server, address)
    audit_lines(trail, 1)
    size = trail.stat().st_size
    unlimited = resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size * 2 + 10, resource.RLIM_INFINITY))
    for _ in range(9):
        echo_once(server, address)
    until(lambda: server.metric("audit_lines_dropped_total") >= 7, "lines are lost")
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, unlimited)
    echo_once(server, address)
    until(lambda: '"id": 11' in trail.read_text(), "it is written again")
    lines = parsed(trail.read_text())
    assert len(lines) + server.metric("audit_lines_dropped_total") == 11


def test_a_file_that_cannot_be_written_is_an_error_at_the_start(programs: Programs, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "audit.jsonl"
    server = programs.launch_server(flags={"audit-log": path})
    assert server.wait() == 1
    assert (
        f"--audit-log: cannot write {path}: No such file or directory "
        "(use a file in a writable directory, or - for stdout)" in server.log
    )


def test_a_named_pipe_without_a_reader_does_not_block_the_start(programs: Programs, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    server = programs.launch_server(flags={"audit-log": path})
    assert server.wait() == 1
    assert "--audit-log: cannot write" in server.log
