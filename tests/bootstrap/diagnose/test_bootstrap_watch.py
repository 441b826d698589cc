"""`bootbridge status --watch`: what a bootstrap has done so far, until the tunnel is ready."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bootbridge.bootstrap.diagnose.bootstrap_watch import RECORDS, Observation, WatchState, observe
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.cli import status_watch
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from tests.bootstrap.diagnose.test_gather_analysis import BAD, GOOD, IMAGE_DONE, START, record
from tests.support import bootstrap_driver
from tests.support.bootstrap_node import BootstrapNode, bootstrap_node
from tests.support.process_program import ROOT, until
from tests.support.tmux import TmuxTerminal

CERTS, SERVER = "konnectivity-certs", "konnectivity-server-bootstrap"


class QuietHost(Host):
    """A node on which no server answers, except with this status document."""

    status: dict[str, Any] | None = None

    def http_get(self, port: int, page: str) -> tuple[int, bytes]:
        if page.startswith("/status") and self.status is not None:
            return 200, json.dumps(self.status).encode()
        return 0, b"connection refused"


@pytest.fixture
def host(tmp_path: Path) -> QuietHost:
    host = QuietHost(tmp_path)
    host.make_directory(RECORDS)
    return host


def seen(host: Host, *entries: str) -> Observation:
    """What is observed after these entries of bootkube's record."""
    if entries:
        for service, data in {**IMAGE_DONE, "bootkube": record(*entries)}.items():
            host.write(f"{RECORDS}/{service}.json", Asset(data))
    return observe(InstallContext(Plan(), host))


def line(found: Observation, title: str) -> tuple[WatchState, str]:
    return next((each.state, each.text) for each in found.lines if each.title == title)


def test_before_bootkube_runs_nothing_has_started(host: QuietHost) -> None:
    found = seen(host)
    assert line(found, "stage certs") == (WatchState.WAITING, "not started")
    assert line(found, "server") == (WatchState.WAITING, "no answer")
    assert (found.works, found.result) == (False, "")


def test_stages_are_shown_as_they_run(host: QuietHost) -> None:
    found = seen(host, START, f"stage start {CERTS}", f"stage end {CERTS} success", f"stage start {SERVER}")
    assert line(found, "stage certs") == (WatchState.DONE, "succeeded")
    assert line(found, "stage server-bootstrap") == (WatchState.RUNNING, "running")
    assert line(found, "stage cleanup") == (WatchState.WAITING, "not started")
    assert "in stage 'konnectivity-server-bootstrap'" in line(found, "bootkube")[1]


def test_a_failed_stage_shows_its_message(host: QuietHost) -> None:
    found = seen(host, START, f"stage start {CERTS}", f"stage end {CERTS} failure", BAD)
    assert line(found, "stage certs") == (WatchState.FAILED, "failed: no default route")
    assert line(found, "bootkube")[0] is WatchState.FAILED


def test_after_a_restart_only_the_last_run_counts(host: QuietHost) -> None:
    found = seen(host, START, f"stage start {CERTS}", f"stage end {CERTS} failure", BAD, START)
    assert line(found, "stage certs") == (WatchState.WAITING, "not started")


def test_a_bootstrap_that_has_completed_ends_the_watch(host: QuietHost) -> None:
    found = seen(host, START, GOOD)
    assert found.result == "The bootstrap has completed; the tunnel was removed."


@pytest.mark.parametrize("stage", [SERVER, "konnectivity-agent-apply", "konnectivity-cleanup"])
def test_a_failed_stage_of_a_completed_bootstrap_does_not_hold_the_watch(host: QuietHost, stage: str) -> None:
    """bootkube.sh went on after it; nothing is left to wait for."""
    found = seen(host, START, f"stage start {stage}", f"stage end {stage} failure", GOOD)
    assert line(found, "bootkube")[0] is WatchState.DONE
    assert found.result.startswith("The bootstrap has completed")
    assert found.result.endswith("the tunnel was removed.") == (stage != "konnectivity-cleanup")


def test_a_record_that_is_being_written_is_tolerated(host: QuietHost) -> None:
    host.write(f"{RECORDS}/bootkube.json", Asset(b'[{"phase": "serv'))
    assert line(seen(host), "stage certs") == (WatchState.WAITING, "not started")


def dial(time: str, outcome: str = "established", **more: str) -> dict[str, str]:
    return {"time": time, "destination": "10.0.0.5:8443", "agent": "node-a", "outcome": outcome, **more}


def test_the_first_successful_dial_is_the_oldest_one(host: QuietHost) -> None:
    host.status = {"dials": {"succeeded": 2}, "recentDials": [dial("T2"), dial("T1")]}
    assert line(seen(host), "first dial") == (WatchState.DONE, "T1 to 10.0.0.5:8443 through node-a")


def test_a_first_dial_that_the_server_has_forgotten_is_older_than_the_others(host: QuietHost) -> None:
    host.status = {"dials": {"succeeded": 200}, "recentDials": [dial("T2"), dial("T1")]}
    assert line(seen(host), "first dial") == (WatchState.DONE, "succeeded before T1")


def test_failed_dials_are_not_the_first_one(host: QuietHost) -> None:
    failed = dial("T1", "refused", hop="agent to endpoint", reason="connection refused")
    host.status = {"dials": {"succeeded": 0}, "recentDials": [failed], "recentFailures": [failed]}
    found = seen(host)
    assert line(found, "first dial") == (WatchState.WAITING, "none succeeded yet")
    assert line(found, "last failed dial")[1].endswith("agent to endpoint: connection refused")


def test_agents_are_counted_by_node(host: QuietHost) -> None:
    host.status = {"agents": [{"id": "1", "node": "a"}, {"id": "2", "node": "a"}, {"id": "b"}]}
    found = seen(host)
    assert line(found, "agents")[1] == "3 connected"
    assert (line(found, "  node a")[1], line(found, "  node b")[1]) == ("2 connected", "connected")


def test_many_nodes_are_summarised(host: QuietHost) -> None:
    host.status = {"agents": [{"id": f"node-{number:03}"} for number in range(1000)]}
    found = seen(host)
    assert len([each for each in found.lines if each.title.startswith("  node")]) == 10
    assert line(found, "  more nodes")[1] == "990"


# --- with a real server and agents


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BootstrapNode]:
    with bootstrap_node(tmp_path) as node:
        yield node


def command(node: BootstrapNode, *flags: str) -> list[str]:
    argv = [sys.executable, "-m", bootstrap_driver.__name__, "status", "--watch"]
    return [*argv, "--root", str(node.root), *flags]


def test_a_pipe_gets_a_line_for_each_change_until_the_tunnel_is_ready(
    node: BootstrapNode, tmp_path: Path
) -> None:
    output = tmp_path / "watch.txt"
    for name in ("node0", "node1", "node2"):
        manifest = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        code, answer = node.api.call("POST", "/api/v1/nodes", manifest)
        assert code == 201, answer
    with output.open("wb") as out:
        watch = subprocess.Popen(command(node), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
    try:
        until(lambda: "server: no answer" in output.read_text(), "the watch has looked once")
        node.up()
        assert watch.wait(60) == 0
    finally:
        watch.kill()
        watch.wait()
    text = output.read_text()
    lines = [each.split("  ", 1)[1].strip() for each in text.splitlines()]
    assert lines[-1] == "ok   The tunnel is ready."
    for expected in (
        "ok   server: ready",
        "ok   node node0: connected",
        "agents: 2 connected on 2 of 3 nodes",
        "-    node node2: no agent connected",
    ):
        assert expected in lines, text
    assert lines.count("ok   server: ready") == 1
    assert "\x1b" not in text


def test_json_lines_of_a_ready_tunnel(node: BootstrapNode) -> None:
    node.up()
    assert node.run("status", "--watch", "--json", env={}) == 0, node.output
    document = json.loads(node.stdout.splitlines()[-1])
    assert (document["works"], document["result"]) == (True, "The tunnel is ready.")
    assert {"title": "server", "state": "done", "text": "ready"} in document["lines"]


def test_in_a_terminal_it_is_redrawn_and_leaves_the_result(node: BootstrapNode) -> None:
    terminal = TmuxTerminal(100, 50)
    try:
        terminal.type(f"cd {ROOT}; {' '.join(command(node))}; echo exit=$?")
        terminal.until_shows("ctrl-c ends the watch")
        node.up()
        shown = terminal.until_shows("exit=0")
        assert "✓ The tunnel is ready." in shown
        assert "✓   node node0" in shown
        assert shown.count("agents  ") == 1
        assert terminal.is_plain()
    finally:
        terminal.close()


@pytest.mark.parametrize(("key", "code"), [("C-c", 130), ("", 143)])
def test_it_can_be_ended_before(node: BootstrapNode, key: str, code: int) -> None:
    """By ctrl-c or SIGTERM; the cursor is visible again."""
    terminal = TmuxTerminal(100, 50)
    try:
        terminal.type(
            f"cd {ROOT}; sh -c 'echo $$ > {node.folder}/pid; exec {' '.join(command(node))}'; echo exit=$?"
        )
        terminal.until_shows("ctrl-c ends the watch")
        if key:
            terminal.press(key)
        else:
            os.kill(int((node.folder / "pid").read_text()), signal.SIGTERM)
        terminal.until_shows(f"exit={code}")
        assert terminal.is_plain()
    finally:
        terminal.close()


def test_an_unreadable_node_is_shown_and_looked_at_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """For example while the kubeconfig is being written."""
    from bootbridge.errors import OperatorError

    looks = iter([OperatorError("invalid YAML", subject="admin.conf")])
    ready = Observation((), works=True, result="The tunnel is ready.")

    def look(_context: object) -> Observation:
        for error in looks:
            raise error
        return ready

    monkeypatch.setattr(status_watch, "observe", look)
    monkeypatch.setattr(status_watch, "INTERVAL_SECONDS", 0.0)
    from contextlib import nullcontext

    assert status_watch.watch(lambda: nullcontext(), as_json=False) == 0  # type: ignore[arg-type,return-value]
    out = capsys.readouterr().out
    assert "FAIL node: admin.conf: invalid YAML" in out
    assert "The tunnel is ready." in out
