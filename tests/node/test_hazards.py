"""Defects that were seen in the model of this program, by their number there, and what is promised instead.

The join service's are in `join_service/test_hazards.py`, kubeadm's in `kubeadm/test_hazards.py`.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

import pytest

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import Fatal, Transient
from bootbridge.join_api.kubeadm_defaults import CONTROL_PLANE_FILES
from bootbridge.join_api.messages import ControlPlaneFile, Ticket, TicketRequest
from bootbridge.node.init.messages import InitEvent
from bootbridge.node.join.endpoints import Address
from bootbridge.node.supervisor import FATAL, FINISHED, INTERRUPTED
from bootbridge.runtime import tasks
from bootbridge.runtime.concurrency import Turn
from bootbridge.runtime.grpc import RpcError
from bootbridge.wire import grpc_messages as grpc
from tests.support.deterministic_loop import run
from tests.support.node_environment import Environment, exit_code, init_request, started


def failing(*, times: int = 1) -> Environment:
    return Environment(tickets=False, faults={"init": [Fatal("kubeadm failed", advice="reboot")] * times})


async def opened(environment: Environment) -> asyncio.Task[int]:
    process = started(environment)
    await environment.listener.opened.wait()
    return process


def test_hazard_1_a_failed_init_ends_the_process_as_failed() -> None:
    """There it ended as if all were well, and nothing was cleaned up."""

    async def scenario() -> int:
        environment = failing()
        process = await opened(environment)
        await environment.listener.call(init_request())
        return await process

    assert run(scenario()) == FATAL


@pytest.mark.parametrize("seed", range(50))
def test_hazard_2_a_second_init_never_blocks_the_end_of_the_first(seed: int) -> None:
    """There a second call that waited for a lock and a graceful stop waited for each other."""

    async def scenario() -> int:
        environment = Environment(seed, tickets=False, slow=0.3)
        process = await opened(environment)
        first = tasks.spawn(environment.listener.call(init_request("one")), "first")
        await environment.lock.wait_until_decided()
        while not first.done():
            with pytest.raises(RpcError) as caught:
                await environment.listener.call(init_request("two"))
            assert caught.value.code == grpc.FAILED_PRECONDITION
            await asyncio.sleep(0.05)
        return await process

    assert run(scenario(), seed) == FINISHED


def test_hazard_3_a_crash_past_the_lock_is_not_mistaken_for_a_finished_bootstrap() -> None:
    """There the kubelet was started without a configuration. Every step: `test_crash.py`."""

    async def crashes(environment: Environment) -> None:
        process = started(environment)
        await environment.gone.wait()
        await asyncio.wait({process})
        process.exception()

    async def restarted(environment: Environment) -> int:
        return await started(environment)

    probe = Environment()
    run(exit_code(probe))
    for step in range(probe.points):
        environment = Environment(crash_at=step)
        run(crashes(environment), may_leave=True)
        unfinished = environment.persistent.state is None
        again = environment.again()
        assert run(restarted(again)) == FINISHED
        assert not again.violations
        assert ("join" in again.calls) is unfinished, f"after a crash at step {step}"


def test_hazard_4_a_caller_without_the_secret_is_sent_no_log() -> None:
    async def scenario() -> None:
        environment = failing()
        process = await opened(environment)
        environment.log_buffer.append("the machine's journal")
        events: list[InitEvent] = []
        for _ in range(3):
            with pytest.raises(RpcError):
                await environment.listener.call_into(init_request(init_secret=b"guess"), events)
        await environment.listener.call(init_request())
        with pytest.raises(RpcError):
            await environment.listener.call_into(init_request(init_secret=b"guess"), events)
        assert events == []
        await process

    run(scenario())


def test_hazard_5_logs_are_told_to_every_watcher_of_a_failed_init() -> None:
    """There the collector could be started once in the life of the process."""

    async def scenario() -> None:
        environment = failing()
        process = await opened(environment)
        environment.log_buffer.append("kubeadm: no space left on device")
        for _ in range(3):
            events = await environment.listener.call(init_request())
            assert b"no space left" in b"".join(event.log for event in events)
        await process

    run(scenario())


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "etcd/../ca.key", "extra.crt", ""])
def test_hazard_8_a_ticket_with_a_strange_file_is_refused_as_a_whole(name: str) -> None:
    """There names were joined to a path unchecked."""

    async def scenario() -> None:
        names = (*CONTROL_PLANE_FILES, name)
        environment = Environment(
            ticket_changes={"control_plane_files": tuple(ControlPlaneFile(n, b"x") for n in names)}
        )
        process = started(environment)
        await asyncio.sleep(120)
        assert environment.calls.count("ticket") > 1
        assert not {"ticket files", "join"} & set(environment.calls)
        environment.stop.set()
        assert await process == INTERRUPTED

    run(scenario())


def test_hazard_10_without_an_address_nobody_is_dialled() -> None:
    """There an empty load balancer became a call to ":30090"; see also `test_endpoints.py`."""

    async def scenario() -> None:
        environment = Environment(addresses=())
        process = started(environment)
        await asyncio.sleep(300)
        assert environment.calls.count("endpoints") > 5
        assert "ticket" not in environment.calls
        environment.stop.set()
        await process

    run(scenario())


@pytest.mark.parametrize("step", ["install", "kubeadm traces", "ticket files"])
def test_hazard_13_a_step_that_failed_is_never_walked_past(step: str) -> None:
    """There an error at the start was logged, and what it should have made was missing later."""
    environment = Environment(faults={step: [Transient("broken")]})
    assert run(exit_code(environment)) == FINISHED
    after = environment.calls[environment.calls.index(step) + 1 :]
    assert after == ["install", "reset", "ticket files", "join"], "the attempt begins anew"


def test_hazard_14_kubeadm_never_joins_a_machine_that_is_half_a_node() -> None:
    """There the second attempt ran on what the first had left."""
    environment = Environment(faults={"join": [Transient("timed out")] * 2})
    assert run(exit_code(environment)) == FINISHED
    assert not environment.violations
    kubeadm = [each for each in environment.calls if each in ("join", "reset")]
    assert kubeadm == ["join", "reset", "join", "reset", "join"]


def test_hazard_18_after_a_slow_round_the_next_one_still_waits_and_two_instances_differ() -> None:
    """There a ticker fired at once after a slow round, on all instances alike."""

    async def rounds(seed: int) -> list[float]:
        environment = Environment(seed)
        loop = asyncio.get_running_loop()
        begun: list[float] = []
        ended: list[float] = []

        async def slow(address: Address, request: TicketRequest, turn: Turn) -> Ticket:
            begun.append(loop.time())
            await asyncio.sleep(29)
            ended.append(loop.time())
            raise Transient("no")

        process = started(environment)
        environment.service.request_ticket = slow  # type: ignore[method-assign]
        await asyncio.sleep(600)
        environment.stop.set()
        await process
        pauses = [later - before for before, later in zip(ended, begun[1:], strict=False)]
        assert min(pauses) >= 0.5
        return pauses

    first, second = run(rounds(1)), run(rounds(2))
    assert len(first) > 5
    assert first != second
    assert len(set(first)) == len(first)


def test_hazard_18_waits_grow_to_a_bound_and_start_small_again() -> None:
    backoff = Backoff(Random(7), least=0.5, first=2.0, most=30.0)
    waits = [backoff.seconds() for _ in range(2000)]
    assert all(0.5 <= wait <= 30.0 for wait in waits)
    assert all(wait <= ceiling for wait, ceiling in zip(waits, (2, 4, 8, 16, 30), strict=False))
    assert max(waits) > 25
    assert any(later < before for before, later in pairwise(waits)), "jitter, not a staircase"
    backoff.reset()
    assert backoff.seconds() <= 2.0
