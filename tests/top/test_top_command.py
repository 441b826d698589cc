"""`bootbridge top` as a command: where the sample comes from, one sample, and one clear error each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.process_endpoints import Endpoint, echo
from tests.support.process_program import OURS, free_port, until
from tests.support.process_tunnels import dial
from tests.support.tunnel_programs import Programs


def top(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [f"{OURS}/bootbridge", "top", "--interval=200ms", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def test_one_sample_equals_status_and_metrics(programs: Programs, endpoint: Callable[..., Endpoint]) -> None:
    server, agent = programs.pair()
    tunnel = dial(server, endpoint(echo).address)
    tunnel.send(b"x" * 1000)
    assert tunnel.recv()
    until(lambda: server.metric("transferred_bytes_total", direction="to_frontend") == 1000, "it was counted")
    done = top("--json", f"127.0.0.1:{server.admin.port}")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["bytes"] == {"up": 1000, "down": 1000}
    assert (document["agents"], document["connections"], document["ready"]) == (1, 1, True)
    assert document["rates"]["bytesUpPerSecond"] == 0.0
    assert document["status"]["dials"]["succeeded"] == document["dials"]["succeeded"] == 1
    text = top("--once", f"http://127.0.0.1:{agent.admin.port}/status")
    assert (text.returncode, text.stderr) == (0, "")
    assert "Servers (1)" in text.stdout
    tunnel.close()


def test_without_a_terminal_it_prints_one_sample_and_says_so(programs: Programs) -> None:
    server = programs.server()
    done = top(str(server.admin.port))
    assert done.returncode == 0
    assert done.stderr == "bootbridge top: not a terminal: one sample, as with --once\n"
    assert "x not ready  0 agents" in done.stdout


def test_a_reader_that_closes_the_pipe_is_not_an_error(programs: Programs) -> None:
    server = programs.server()
    command = f"{OURS}/bootbridge top --once --interval=200ms {server.admin.port} | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("proxy-server")


def test_the_health_port_shows_totals_and_names_the_admin_port(programs: Programs) -> None:
    server, _ = programs.pair()
    done = top("--once", str(server.health.port))
    assert done.returncode == 0
    assert "no /status on this port: totals from /metrics; give the admin port" in done.stdout


def test_another_web_server_is_one_clear_error(tmp_path: Path) -> None:
    port = free_port()
    argv = [
        sys.executable,
        "-m",
        "http.server",
        str(port),
        "--bind",
        "127.0.0.1",
        "--directory",
        str(tmp_path),
    ]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: top(str(port)).stderr and "refused" not in top(str(port)).stderr, "it answers")
            done = top("--once", str(port))
        finally:
            process.kill()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"bootbridge top: http://127.0.0.1:{port}: not a proxy-server or proxy-agent "
        "(/status: 404 Not Found; /metrics: 404 Not Found) "
        "(give the admin port: 8095 of a server, 8094 of an agent, by default)\n"
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["http://127.0.0.1:PORT"],
            "http://127.0.0.1:PORT: connection refused (is the program running, and is",
        ),
        (["ftp://node"], "invalid URL 'ftp://node' (give the admin port, for example http://127.0.0.1:8095)"),
        (["http://nowhere.invalid:1"], "http://nowhere.invalid:1: host name not found"),
        (["--interval=0s", "8095"], "--interval: out of range: 0s (100ms to 1h, for example 2s)"),
        (["--interval=soon", "8095"], "--interval: invalid duration 'soon'"),
        (["--agent=x", "8095"], "--agent: cannot be combined with '8095'"),
        (["--agent=x", "--server=y"], "--agent: cannot be combined with --server"),
        (["--context=\x1b[2J", "--agent=x"], "kubectl get pods: "),
        (
            ["--server=http://127.0.0.1:8095"],
            "--server: invalid pod or node name 'http://127.0.0.1:8095' "
            "(a URL is given without a flag: `bootbridge top http://127.0.0.1:8095`)",
        ),
    ],
)
def test_bad_input_is_one_clear_error(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A kubectl that fails, as with an unknown context.
    script = tmp_path / "kubectl"
    script.write_text('#!/bin/sh\necho "error: context does not exist" >&2\nexit 1\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path('/bin')}:{Path('/usr/bin')}")
    port = str(free_port())
    done = top("--once", *(word.replace("PORT", port) for word in words))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"bootbridge top: {error.replace('PORT', port)}")
    assert done.stderr.count("\n") == 1


@pytest.mark.interop
@pytest.mark.parametrize("flag", ["--once", "--json"])
def test_a_go_server_shows_the_totals_of_its_metrics(
    programs: Programs, endpoint: Callable[..., Endpoint], flag: str
) -> None:
    """A Go server has no `/status`; what its `/metrics` has is shown, and what is missing is said."""
    server = programs.server("go")
    programs.agent(server, "go")
    server.wait_until_ready()
    tunnel = dial(server, endpoint(echo).address)
    done = top(flag, str(server.admin.port))
    tunnel.close()
    assert (done.returncode, done.stderr) == (0, "")
    assert "no /status (a Go program?): totals from /metrics" in done.stdout
    if flag == "--json":
        document = json.loads(done.stdout)
        assert (document["page"], document["ready"], document["agents"]) == ("/metrics", True, 1)
        assert (document["connections"], document["dials"]["succeeded"]) == (1, 1)
        assert {"http_connections", "dial_duration_seconds_count"} <= {
            row["name"] for row in document["metrics"]
        }
    else:
        assert "+ ready  1 agent  1 connection" in done.stdout
        assert "ready_backend_connections" in done.stdout


@pytest.mark.interop
def test_a_go_agents_admin_port_redirects_to_its_metrics(programs: Programs) -> None:
    server = programs.server("go")
    agent = programs.agent(server, "go")
    agent.wait_for_servers(1)
    done = top("--json", str(agent.admin.port))
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert (document["program"], document["servers"]) == ("proxy-agent", 1)
