"""`status`, `doctor` and `check` of a server that was started by hand (`--server URL`)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.process_endpoints import Endpoint, echo
from tests.support.process_program import OURS, free_port
from tests.support.tunnel_programs import Programs, Server

VERBS = ("status", "doctor", "check")


def bootbridge(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [f"{OURS}/bootbridge", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


def document(verb: str, server: Server, *more: str, code: int) -> dict[str, Any]:
    done = bootbridge(verb, "--server", f"http://127.0.0.1:{server.admin.port}", "--json", *more)
    assert (done.returncode, done.stderr) == (code, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def verdicts(rows: list[dict[str, str]]) -> dict[str, str]:
    return {row["name"]: row["verdict"] for row in rows}


def test_a_working_tunnel_is_seen_without_an_installation(
    programs: Programs, endpoint: Callable[..., Endpoint]
) -> None:
    server, _ = programs.pair()
    status = document("status", server, code=0)
    [agent] = server.admin.status()["agents"]
    assert (status["works"], status["server"]["agents"]) == (True, [agent["id"]])
    assert status["certificatesExpireAt"].startswith("20")
    destination = endpoint(echo).address
    doctor = document("doctor", server, "--to", destination, code=0)
    assert set(verdicts(doctor["steps"]).values()) == {"ok"}
    assert doctor["steps"][-1]["evidence"] == f"an agent connected to {destination}"
    assert set(verdicts(document("check", server, code=0)["checks"]).values()) == {"pass"}


def test_the_first_broken_hop_is_named_with_its_fix(programs: Programs) -> None:
    """No agent, then a destination that refuses."""
    server = programs.server()
    assert document("status", server, code=2)["server"]["ready"] is False
    doctor = document("doctor", server, "--to=127.0.0.1:1", code=2)
    assert doctor["broken"]["name"] == "agents-connected"
    assert f"--proxy-server-port={server.agent_port}" in doctor["broken"]["fix"]
    assert verdicts(doctor["steps"])["dial"] == "not-reached"
    assert verdicts(document("check", server, code=2)["checks"])["agents-connected"] == "fail"
    programs.agent(server)
    server.wait_until_ready()
    doctor = document("doctor", server, f"--to=127.0.0.1:{free_port()}", code=2)
    assert doctor["broken"]["name"] == "dial"
    assert "connection refused" in doctor["broken"]["evidence"]
    assert doctor["broken"]["fix"] == "nothing listens on that port"
    checks = verdicts(document("check", server, code=0)["checks"])
    assert checks["recent-dials"] == "warn"


def test_a_frontend_that_does_not_accept_is_a_broken_hop(programs: Programs) -> None:
    server, _ = programs.pair()
    doctor = document("doctor", server, "--socket", f"{server.uds}.absent", code=2)
    assert (doctor["broken"]["hop"], doctor["broken"]["name"]) == ("socket", "frontend")
    assert "is the server running, with this --uds-name?" in doctor["broken"]["fix"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_server_that_does_not_answer_is_a_finding(verb: str) -> None:
    port = free_port()
    done = bootbridge(verb, "--server", f"127.0.0.1:{port}")
    assert (done.returncode, done.stderr) == (2, "")
    assert f"http://127.0.0.1:{port}: connection refused" in done.stdout


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["status", "--server=ftp://x"], "status: --server: invalid URL 'ftp://x' (give the admin port"),
        (["status", "--server=8095", "--watch"], "status: --watch: cannot be combined with --server (use `"),
        (["status", "--root=/absent", "--watch"], "status: --root: directory not found: /absent\n"),
        (["doctor", "--server=8095", "--webhook=x"], "doctor: --webhook, --from-node: cannot be combined"),
        (["doctor", "--socket=x"], "doctor: --socket: requires --server\n"),
        (["check", "--server=8095", "x"], "check: TARGET, --root: cannot be combined with --server\n"),
        (["check", "--certs=x"], "check: --certs: requires --server\n"),
    ],
)
def test_wrong_flags_are_one_error(words: list[str], error: str) -> None:
    done = bootbridge(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"bootbridge {error}")
    assert done.stderr.count("\n") == 1


def test_an_agents_address_is_one_clear_error(programs: Programs) -> None:
    _, agent = programs.pair()
    done = bootbridge("status", "--server", str(agent.admin.port))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"http://127.0.0.1:{agent.admin.port}: is a proxy-agent (give the server's admin" in done.stderr


@pytest.mark.interop
def test_a_go_server_is_read_by_its_metrics(programs: Programs, endpoint: Callable[..., Endpoint]) -> None:
    """It has no `/status`: the totals are shown, and a note names what is missing."""
    server = programs.server("go")
    programs.agent(server, "go")
    server.wait_until_ready()
    status = document("status", server, code=0)
    assert (status["server"]["agents"], status["server"]["agentCount"]) == (None, 1)
    assert status["note"].startswith("no /status (a Go program?): totals from /metrics")
    where = ["--socket", server.uds, "--to", endpoint(echo).address]
    doctor = document("doctor", server, *where, code=0)
    assert verdicts(doctor["steps"]) == {
        "server-answers": "ok",
        "certificates": "unknown",
        "frontend": "ok",
        "agents-connected": "ok",
        "recent-dials": "ok",
        "dial": "ok",
    }
    assert "no /status" in doctor["steps"][0]["evidence"]
