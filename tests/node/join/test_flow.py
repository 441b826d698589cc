"""The join after the lock was taken: attempts, resets, time limits, crashes and stops."""

from __future__ import annotations

import asyncio

import pytest

from bootbridge.common.failures import Fatal, Transient
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.messages import Ticket
from bootbridge.node.lock.bootstrap_record import Flow, Phase
from bootbridge.node.lock.flow_inputs import JoinInputs
from bootbridge.node.machine import NodeStillReady
from bootbridge.node.stages import ProgressCallback
from bootbridge.node.supervisor import FATAL, FINISHED
from tests.support.deterministic_loop import run
from tests.support.node_environment import (
    INSTANCE,
    JOIN_MEASUREMENT,
    Environment,
    cluster_of,
    exit_code,
    joins,
    started,
)

WORKER = Instance("worker-3", Role.WORKER, INSTANCE.addresses)


def test_every_further_attempt_starts_with_a_reset_and_writes_the_ticket_files_again() -> None:
    """kubeadm refuses to join on what an attempt has left, and a reset deletes the files of the ticket."""
    environment = Environment(faults={"join": [Transient("timed out")] * 2})
    joins(environment)
    assert not environment.violations
    steps = [each for each in environment.calls if each in ("reset", "ticket files", "join")]
    assert steps == ["ticket files", "join", *["reset", "ticket files", "join"] * 2]


def test_a_join_is_fatal_after_three_attempts_until_a_reboot() -> None:
    environment = Environment(faults={"join": [Transient("no route to host")] * 100})
    assert run(exit_code(environment)) == FATAL
    assert environment.calls.count("join") == 3
    assert environment.persistent.state is None
    assert environment.persistent.record is not None
    assert environment.persistent.record.phase is Phase.FAILED
    assert "no route to host" in environment.persistent.record.reason
    again = environment.again()
    assert run(exit_code(again)) == FATAL
    assert "join" not in again.calls


def test_a_join_waits_until_its_node_of_before_a_crash_is_not_ready_any_more() -> None:
    """Kubernetes notices after up to 50 s that a kubelet has stopped; these attempts do not count."""
    environment = Environment(faults={"join": [NodeStillReady("already exists")] * 6})
    joins(environment)
    assert environment.calls.count("join") == 7
    assert environment.calls.count("reset") == 6


def test_a_join_does_not_wait_forever_for_a_node_that_stays_ready() -> None:
    """Another instance may have this name."""
    environment = Environment(faults={"join": [NodeStillReady("already exists")] * 1000})
    assert run(exit_code(environment)) == FATAL
    assert 3 < environment.calls.count("join") < 100


def test_a_fatal_error_is_not_retried() -> None:
    environment = Environment(
        faults={"install": [Fatal("the hash does not match", advice="ask who built it")]}
    )
    assert run(exit_code(environment)) == FATAL
    assert environment.calls.count("install") == 1
    assert "join" not in environment.calls


@pytest.mark.parametrize("step", ["install", "kubeadm traces", "ticket files"])
@pytest.mark.parametrize(
    "error", [Transient("broken"), OSError(28, "No space left on device")], ids=["ours", "OS"]
)
def test_a_step_that_fails_restarts_the_attempt(step: str, error: Exception) -> None:
    environment = Environment(faults={step: [error]})
    joins(environment)
    after = environment.calls[environment.calls.index(step) + 1 :]
    assert after == ["install", "reset", "ticket files", "join"]


def test_a_join_fails_if_the_node_state_cannot_be_written() -> None:
    assert run(exit_code(Environment(faults={"state": [OSError("read-only file system")]}))) == FATAL


def test_files_left_by_kubeadm_before_a_reboot_are_reset_first() -> None:
    environment = Environment()
    environment.persistent.kubeadm = "half"
    joins(environment)
    assert (
        environment.calls.index("reset")
        < environment.calls.index("ticket files")
        < environment.calls.index("join")
    )


def test_a_stop_after_the_lock_waits_for_the_join() -> None:
    async def scenario() -> None:
        environment = Environment(slow=1.0)
        process = started(environment)
        await environment.lock.wait_until_decided()
        environment.stop.set()
        assert await process == FINISHED
        assert environment.persistent.kubeadm == "whole"

    run(scenario())


def test_an_expired_ticket_is_not_used_after_a_crash() -> None:
    environment = Environment()

    async def crash() -> None:
        environment.assemble()
        inputs = JoinInputs(environment.ticket(), b"key")
        await environment.lock.try_lock(Flow.JOIN, cluster_of(JOIN_MEASUREMENT), inputs.encode())

    run(crash())
    again = environment.again(booted_before=16 * 60.0)
    assert run(exit_code(again)) == FATAL
    assert "join" not in again.calls
    assert again.persistent.record is not None
    assert "expired" in again.persistent.record.reason


def test_no_attempt_starts_with_an_expired_token() -> None:
    async def scenario() -> None:
        environment = Environment(instance=WORKER, faults={"join": [Transient("no")] * 3})
        process = started(environment)
        join_taking(environment, 500)
        assert await process == FATAL
        assert environment.calls.count("join") == 2
        assert environment.persistent.record is not None
        assert "expired" in environment.persistent.record.reason

    run(scenario())


def test_a_worker_may_finish_after_its_token_has_expired() -> None:
    """kubeadm needs the token only at the beginning, and no other node waits."""

    async def scenario() -> None:
        environment = Environment(instance=WORKER)
        process = started(environment)
        join_taking(environment, 1000)
        assert await process == FINISHED

    run(scenario())


def test_the_turn_of_a_control_plane_counts_from_its_request_across_a_crash() -> None:
    """The next control plane may join when the turn is over, even if this process crashed."""

    async def crash(environment: Environment) -> None:
        environment.assemble()
        inputs = JoinInputs(environment.ticket(), b"key", int(environment.uptime()))
        await environment.lock.try_lock(Flow.JOIN, cluster_of(JOIN_MEASUREMENT), inputs.encode())

    async def resume(environment: Environment) -> float:
        process = started(environment)
        join_taking(environment, 1000)
        assert await process == FATAL
        return environment.uptime()

    environment = Environment(booted_before=50.0)
    run(crash(environment))
    again = environment.again(booted_before=350.0)
    assert run(resume(again)) == 650.0
    assert again.persistent.record is not None
    assert "after its turn of 600 s" in again.persistent.record.reason
    assert not again.persistent.kubeadm


def join_taking(environment: Environment, seconds: float) -> None:
    join = environment.machine.join

    async def slow_join(ticket: Ticket, progress: ProgressCallback) -> None:
        await asyncio.sleep(seconds)
        await join(ticket, progress)

    environment.machine.join = slow_join  # type: ignore[method-assign]
