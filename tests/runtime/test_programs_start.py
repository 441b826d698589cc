"""Start of the programs: errors in one line, and no heavy imports."""

from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.process_program import OURS, free_port
from tests.support.tunnel_programs import Agent, Pairing, Programs, Server

# 131,000 measured with Python 3.11, of which 120,000 are imports.
STARTING_CALLS_MAX = 170_000
HEAVY_MODULES = {
    "aiohttp",
    "argparse",
    "cryptography",
    "grpc",
    "h2",
    "http.client",
    "pydantic",
    "pydantic_core",
    "http.server",
    "prometheus_client",
    "pygments",
    "requests",
    "rich",
    "yaml",
}


def complaint(program: Server | Agent) -> str:
    """The one line with which a program refused to start."""
    assert program.wait() == 1
    [line] = program.log.strip().splitlines()
    return line


# --- errors: one line and exit code 1


@pytest.mark.parametrize("flag", ["agent-port", "health-port", "admin-port", "server-port"])
def test_a_server_port_in_use_is_named(programs: Programs, flag: str) -> None:
    """Every listener counts, and nothing is left behind."""
    port = free_port()
    with socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True):
        server = programs.launch_server(flags={flag: port}, tcp=flag == "server-port")
        line = complaint(server)
    assert f"--{flag}" in line
    assert str(port) in line
    assert "in use" in line
    assert "while attempting" not in line
    assert not server.uds or not Path(server.uds).exists()


@pytest.mark.parametrize("flag", ["health-server-port", "admin-server-port"])
def test_an_agent_port_in_use_is_named(programs: Programs, flag: str) -> None:
    port = free_port()
    with socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True):
        line = complaint(programs.launch_agent(free_port(), flags={flag: port}))
    assert f"--{flag}" in line
    assert "in use" in line


@pytest.mark.parametrize("flag", ["health-server-host", "admin-bind-address", "proxy-server-host"])
def test_an_agents_host_that_cannot_be_one_is_named(programs: Programs, flag: str) -> None:
    """Also where the resolver does not even look at it."""
    line = complaint(programs.launch_agent(free_port(), flags={flag: "a..b"}))
    assert flag.replace("host", "").replace("bind-address", "") in line
    assert "a..b" in line


@pytest.mark.parametrize("flag", ["cluster-cert", "cluster-key", "cluster-ca-cert"])
@pytest.mark.parametrize("trouble", ["missing", "garbage"])
def test_an_unreadable_server_certificate_is_named(programs: Programs, flag: str, trouble: str) -> None:
    """Whether the file is not there or holds no PEM: the flag and the file are in the line."""
    line = complaint(programs.launch_server(flags={flag: _bad_file(programs.folder, trouble)}))
    assert f"--{flag}" in line
    assert "bad.pem" in line


@pytest.mark.parametrize("flag", ["ca-cert", "agent-cert", "agent-key"])
@pytest.mark.parametrize("trouble", ["missing", "garbage"])
def test_an_unreadable_agent_certificate_is_named(programs: Programs, flag: str, trouble: str) -> None:
    line = complaint(programs.launch_agent(free_port(), flags={flag: _bad_file(programs.folder, trouble)}))
    assert f"--{flag}" in line
    assert "bad.pem" in line


def _bad_file(folder: Path, trouble: str) -> Path:
    path = folder / "bad.pem"
    if trouble == "garbage":
        path.write_text("not a certificate")
    return path


def _a_file(path: Path) -> None:
    path.write_text("precious")


def _a_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [_a_file, _a_folder])
def test_a_socket_path_that_is_not_a_socket_is_left_alone(
    programs: Programs, make: Callable[[Path], None]
) -> None:
    path = programs.folder / "taken"
    make(path)
    line = complaint(programs.launch_server(flags={"uds-name": path}))
    assert "--uds-name" in line
    assert "taken" in line
    assert path.exists()
    assert not path.is_socket()


def test_a_socket_path_that_is_too_long_is_named(programs: Programs) -> None:
    line = complaint(programs.launch_server(flags={"uds-name": programs.folder / ("x" * 120)}))
    assert "--uds-name" in line


def test_a_socket_in_a_missing_folder_is_named(programs: Programs) -> None:
    line = complaint(programs.launch_server(flags={"uds-name": "/nonexistent-folder/s.sock"}))
    assert "--uds-name" in line


def test_a_socket_left_by_a_dead_server_is_kept_if_the_operator_says_so(programs: Programs) -> None:
    path = programs.folder / "stale.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    line = complaint(programs.launch_server(flags={"uds-name": path, "delete-existing-uds-file": False}))
    assert "--uds-name" in line
    assert path.is_socket()


def test_an_unknown_flag_is_named(programs: Programs) -> None:
    server = programs.launch_server(flags={"no-such-flag": "1"})
    assert server.wait() == 1
    assert "no-such-flag" in server.log
    assert "Traceback" not in server.log


# --- the frontend socket


def test_the_frontend_socket_is_for_owner_and_group_and_goes_with_the_server(programs: Programs) -> None:
    """Mode 0770, a stale one is replaced, and it is removed at the end."""
    path = programs.folder / "front.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = programs.server(flags={"uds-name": path})
    assert stat.S_IMODE(path.stat().st_mode) == 0o770
    server.terminate()
    assert server.wait() == 0
    assert not path.exists()


def test_a_stopping_server_leaves_its_successors_socket_alone(programs: Programs) -> None:
    """Two servers overlap during an upgrade: the old one removes only its own socket."""
    old = programs.server()
    new = programs.server(flags={"uds-name": old.uds})
    old.terminate()
    assert old.wait() == 0
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(new.uds)


# --- light


def _modules_of(program: str) -> set[str]:
    code = f"import sys, bootbridge.cli.{program}, bootbridge.proxy_{program}.main; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize("program", ["server", "agent"])
def test_nothing_heavy_is_imported(program: str) -> None:
    """What a program never needs costs every start and every megabyte for ever."""
    assert not _modules_of(program) & HEAVY_MODULES


@pytest.mark.parametrize("program", ["server", "agent"])
def test_the_status_page_is_not_imported_before_it_is_asked_for(program: str) -> None:
    """An idle program has neither the page's code nor its data."""
    loaded = _modules_of(program)
    assert "bootbridge.runtime.admin_routes" in loaded
    assert [name for name in loaded if name.startswith("bootbridge.status_page")] == []
    assert f"bootbridge.proxy_{program}.status_document" not in loaded


def test_a_running_agent_has_mapped_no_heavy_library(programs: Programs) -> None:
    """Nor does it load one later, when it has a server to talk to."""
    _, agent = programs.pair()
    maps = Path(f"/proc/{agent.pid}/maps").read_text()
    assert "cryptography" not in maps
    assert "grpc" not in maps


# Loaded by Python at its start, from PYTHONPATH: counts the calls of functions, in Python and C.
COUNTING = """
import atexit, os, sys
calls = 0
def counted(frame, event, argument):
    global calls
    calls += event == "call" or event == "c_call"
def report():
    sys.setprofile(None)
    with open(os.environ["CALLS_FILE"], "w") as file:
        file.write(str(calls))
atexit.register(report)
sys.setprofile(counted)
"""


def test_starting_costs_little(programs: Programs) -> None:
    """Until the health port answers, and to the end: unlike time, the number of calls ignores neighbours."""
    (programs.folder / "sitecustomize.py").write_text(COUNTING)
    report = programs.folder / "calls"
    env = {**os.environ, "PYTHONPATH": str(programs.folder), "CALLS_FILE": str(report)}
    agent = programs.agent(free_port(), env=env)
    agent.terminate()
    assert agent.wait() == 0
    assert 0 < int(report.read_text()) < STARTING_CALLS_MAX


def test_many_connections_need_no_ulimit(programs: Programs) -> None:
    """Both programs take what the kernel allows them, not what the shell before them was given."""
    given, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, most), most))
    try:
        pair = programs.pair()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (given, most))
    for program in pair:
        assert resource.prlimit(program.pid, resource.RLIMIT_NOFILE) == (most, most)


@pytest.mark.interop
def test_our_programs_are_smaller_than_the_originals(programs: Programs) -> None:
    """Idle and connected; `make bench` measures by how much, also under load."""
    ours, originals = programs.pair(), programs.pair(Pairing("go", "go"))
    for mine, theirs in zip(ours, originals, strict=True):
        assert mine.rss_bytes() < theirs.rss_bytes(), mine.title


@pytest.mark.parametrize("program", ["proxy-server", "proxy-agent"])
def test_help_and_version_need_no_flags(program: str) -> None:
    for flag in ("--help", "--version"):
        run = subprocess.run([OURS / program, flag], capture_output=True, text=True, timeout=20, check=False)
        assert run.returncode == 0
        assert run.stdout
