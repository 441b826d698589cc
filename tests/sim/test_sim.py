"""The simulator: a small block of seeds, determinism, and the seeds that once failed."""

from __future__ import annotations

import pytest

from bootbridge.proxy_server import agent_port
from bootbridge.tunnel.endpoint import Endpoint
from bootbridge.wire import packets as p
from bootbridge.wire.frames import PRIORITY
from bootbridge.wire.http2_budgets import ONE_STREAM, FrameBudget
from tests.sim.run import main, run_seed
from tests.support import sim_network

# Seeds that failed once, with the defect, which was in a core or in the simulator.
ONCE_FAILED = {
    11: "a stopping server closed its callers' connections in order, in the middle of a download",
    28: "a gRPC caller got two CLOSE_RSP when a direct endpoint closed",
    91: "CREDIT was sent for a connection after its CLOSE_REQ",
    691: "an agent that leaves no room for answers could make the server hold any number of them",
    1822: "a stopping server closed a direct endpoint in order, in the middle of an upload",
    12331: "a stopping server sent CLOSE_REQ behind half the upload of a gRPC caller",
    216056: "hundreds of closes of one lost caller transport, in one turn, were counted as a flood",
    220591: "a caller on a frozen shared transport was expected to be answered in time",
    224081: "a slow network full of honest bytes was taken for the effect of a stalled neighbour",
    227972: "hundreds of dials of one lost caller transport, in one turn, were counted as a flood",
    230214: "an endpoint that wrote to a socket closed in a freeze was not informed",
    303081: "an adversary that was refused a stream mixed up the messages of its others",
    305922: "a frozen caller of a Go agent was closed as stalled, which the check did not allow for",
    310376: "a shared transport was closed while a caller that had left was still sending",
    314520: "an adversary that had left, but whose last bytes were still coming, was given a new dial",
    325377: "a caller left with bytes in flight, and the check expected what the reset discarded",
    740024: "a request beside others in a Go agent's metered stream was expected to have the trickle alone",
    746545: "the same",
    780628: "the same",
    123: "the rest of an upload was dropped after 30 s, and its endpoint saw an orderly end",
    427: "the same, for a gRPC caller",
    696: "the same",
    485: "a dial's deadline passed while the server itself was paused",
    3000565: "the same, in a pause that ended shortly after the deadline",
    3001287: "a complete download was reset, because the rest of the upload met a closed endpoint",
    4004588: "bytes for a closed endpoint discarded its last data and its end, which Linux does not do",
    3001175: "an END behind a CLOSE_RSP, both of an adversary and held with first bytes, met a closed route",
    1856: "the same, with a second CLOSE_RSP",
    5000289: "a flood to a peer that had gone never ended: the model accepted any number of its bytes",
    5005229: "the same",
}
BLOCK = 50
PRIORITY_SEED = 9  # with a flood of PRIORITY frames
FLOOD_SEED = 289  # with most kinds of floods, one of them silent


@pytest.mark.parametrize("start", range(0, 3 * BLOCK, BLOCK))
def test_the_promises_hold_in_a_block_of_seeds(start: int) -> None:
    """With crashes, partitions, stalls and adversaries, no promise of ARCHITECTURE.md is broken."""
    failures = [
        result.line for result in map(run_seed, range(start, start + BLOCK)) if result.promise is not None
    ]
    assert failures == []


@pytest.mark.parametrize("seed", ONCE_FAILED, ids=lambda seed: f"{seed}: {ONCE_FAILED[seed]}")
def test_a_seed_that_once_failed_passes(seed: int) -> None:
    result = run_seed(seed)
    assert result.promise is None, result.line


@pytest.mark.parametrize("seed", [1, 5, 23])
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    """A failure replays exactly: same steps, same time, same bytes in the same order."""
    assert run_seed(seed) == run_seed(seed)


def test_different_seeds_give_different_runs() -> None:
    assert len({run_seed(seed).digest for seed in range(10)}) == 10


def test_a_broken_promise_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an agent that discards the download at close, one line has the seed, the step and the promise."""

    def close_at_once(endpoint: Endpoint, error: str, reason: str) -> None:
        endpoint.send_queue.discard()
        endpoint._stop(reason)
        endpoint._port.close()
        endpoint._server.send(p.CloseResponse(error, endpoint.connect_id))
        endpoint._server.forget_endpoint(endpoint)

    monkeypatch.setattr(Endpoint, "_close_behind_data", close_at_once)
    assert main(["--seeds", "100", "--failures", "1"]) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED"))
    assert " promise 1 commit " in line


def test_a_server_without_a_deadline_for_silent_peers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of floods can fail."""
    monkeypatch.setattr(agent_port, "UNADMITTED_SECONDS_MAX", 3600.0)
    result = run_seed(FLOOD_SEED)
    assert result.promise == 4, result.line
    assert "floods are still connected" in result.text


def test_a_server_without_a_budget_for_a_kind_of_frame_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with it, the flood would end with ENHANCE_YOUR_CALM."""
    unbounded = list(ONE_STREAM)
    unbounded[PRIORITY] = FrameBudget(10**9)
    monkeypatch.setattr(sim_network, "ONE_STREAM", tuple(unbounded))
    result = run_seed(PRIORITY_SEED)
    assert result.promise == 4, result.line
    assert "floods are still connected: ['priority']" in result.text
