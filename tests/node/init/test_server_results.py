"""Events, results, failures and logs of an init: for clients that reconnect, and kept for a while."""

from __future__ import annotations

import asyncio

import pytest

from bootbridge.common.failures import Fatal, Transient
from bootbridge.node.init.messages import ACKNOWLEDGE, INIT, InitEvent
from bootbridge.node.lock.bootstrap_record import Phase
from bootbridge.node.supervisor import FATAL, FINISHED
from bootbridge.runtime import tasks
from bootbridge.runtime.grpc import RpcError
from bootbridge.wire import grpc_messages as grpc
from tests.node.init.server_scenarios import lone, scenario
from tests.support.deterministic_loop import run
from tests.support.node_environment import (
    Environment,
    init_request,
    started,
    until,
)


def test_a_client_that_reconnects_gets_only_the_events_it_missed() -> None:
    async def play(environment: Environment) -> None:
        first: list[InitEvent] = []
        watching = tasks.spawn(environment.listener.call_into(init_request(), first), "user")
        await until(lambda: first)
        watching.cancel()
        await asyncio.wait({watching})
        rest = await environment.listener.call(init_request(seen=first[-1].number))
        assert rest[-1].success
        numbers = [event.number for event in first + rest]
        assert numbers == list(range(1, len(numbers) + 1))
        assert environment.calls.count("init") == 1

    assert scenario(lone(slow=0.5), play, seed=5) == FINISHED


def test_a_late_client_gets_all_events() -> None:
    async def play(environment: Environment) -> None:
        first = await environment.listener.call(init_request())
        assert await environment.listener.call(init_request()) == first

    scenario(lone(), play)


def test_the_result_is_kept_for_a_client_that_lost_its_connection() -> None:
    async def play(environment: Environment) -> None:
        watching = tasks.spawn(environment.listener.call(init_request()), "user")
        await environment.lock.wait_until_decided()
        watching.cancel()
        await asyncio.sleep(100)
        assert environment.persistent.record is not None
        assert environment.persistent.record.phase is Phase.DONE
        assert (await environment.listener.call(init_request()))[-1].success

    assert scenario(lone(), play) == FINISHED


def test_the_result_is_kept_for_a_limited_time() -> None:
    async def play(environment: Environment) -> None:
        watching = tasks.spawn(environment.listener.call(init_request()), "user")
        await environment.lock.wait_until_decided()
        watching.cancel()
        await environment.listener.closed.wait()
        assert 120 <= asyncio.get_running_loop().time() < 130
        assert environment.persistent.record is not None
        assert environment.persistent.record.result == b"", "the kubeconfig is kept no longer"

    assert scenario(lone(), play) == FINISHED


def test_the_process_exits_once_the_result_is_acknowledged() -> None:
    async def play(environment: Environment) -> None:
        await environment.listener.call(init_request(), acknowledge=True)
        told_at = asyncio.get_running_loop().time()
        await environment.listener.closed.wait()
        assert asyncio.get_running_loop().time() == told_at

    assert scenario(lone(), play) == FINISHED


def test_a_result_without_acknowledgement_is_kept() -> None:
    """The connection is lost after the last event, and the client reconnects twice."""

    async def play(environment: Environment) -> None:
        for pause in (5, 100):
            assert (await environment.listener.call(init_request()))[-1].success
            await asyncio.sleep(pause)
        assert (await environment.listener.call(init_request(), acknowledge=True))[-1].success
        await environment.listener.closed.wait()

    assert scenario(lone(), play) == FINISHED


def test_open_connections_extend_the_wait_up_to_a_limit() -> None:
    async def play(environment: Environment) -> None:
        await environment.listener.call(init_request())
        await asyncio.sleep(119)
        environment.listener.handshakes = 1
        await asyncio.sleep(20)
        assert (await environment.listener.call(init_request()))[-1].success
        await environment.listener.closed.wait()
        assert 200 < asyncio.get_running_loop().time() < 400

    assert scenario(lone(), play) == FINISHED


def test_only_a_connection_that_got_the_outcome_can_acknowledge_it() -> None:
    """Not another connection, and not before the init has ended."""

    async def play(environment: Environment) -> None:
        ours, another = (environment.init_server.handlers("user", lambda: None) for _ in range(2))
        watching = tasks.spawn(ours[INIT](init_request().encode(), send_nothing), "user")
        await environment.lock.wait_until_decided()
        with pytest.raises(RpcError, match="no outcome was sent"):
            await ours[ACKNOWLEDGE](b"", send_nothing)
        await watching
        with pytest.raises(RpcError, match="no outcome was sent"):
            await another[ACKNOWLEDGE](b"", send_nothing)
        assert not environment.listener.closed.is_set()
        await ours[ACKNOWLEDGE](b"", send_nothing)
        await environment.listener.closed.wait()

    assert scenario(lone(slow=0.5), play) == FINISHED


@pytest.mark.parametrize("step", ["register extend", "install", "kubeadm traces", "init", "join service"])
def test_a_failure_after_the_lock_is_sent_with_the_log_and_fails_the_process(step: str) -> None:
    async def play(environment: Environment) -> None:
        environment.log_buffer.append("kubeadm: [preflight] the port 6443 is in use")
        events = await environment.listener.call(init_request())
        (ending,) = [event.failure for event in events if event.failure]
        assert "broken" in ending.reason
        assert "reboot" in ending.advice
        assert not ending.may_retry
        failed_at = next(at for at, event in enumerate(events) if event.failure)
        assert b"port 6443 is in use" in b"".join(event.log for event in events[failed_at:])
        assert not any(event.log for event in events[:failed_at]), "the failure comes first"
        await environment.listener.closed.wait()

    environment = lone(faults={step: [Fatal("broken", advice="reboot")]})
    assert scenario(environment, play) == FATAL
    assert environment.persistent.state is None


@pytest.mark.parametrize("lost_at", ["stage", "failure", "log"])
def test_a_client_that_lost_its_connection_can_still_get_failure_and_log(lost_at: str) -> None:
    async def play(environment: Environment) -> None:
        environment.log_buffer.append("output of kubeadm")

        async def breaks(body: bytes) -> None:
            if getattr(InitEvent.decode(body), lost_at):
                raise RpcError(grpc.CANCELLED, "the caller is gone")

        with pytest.raises(RpcError):
            await environment.init_server.handlers("user", lambda: None)[INIT](
                init_request().encode(), breaks
            )
        await asyncio.sleep(100)
        events = await environment.listener.call(init_request())
        assert any(event.failure for event in events)
        assert b"output of kubeadm" in b"".join(event.log for event in events)

    assert scenario(lone(faults={"init": [Fatal("broken", advice="reboot")]}), play) == FATAL


def test_a_restart_does_not_repeat_a_failed_init() -> None:
    """The operator was informed of the failure and would not expect a later success."""

    async def play(environment: Environment) -> None:
        await environment.listener.call(init_request())

    environment = lone(faults={"init": [Fatal("broken", advice="reboot")]})
    assert scenario(environment, play) == FATAL
    again = environment.again()

    async def restart() -> int:
        return await started(again)

    assert run(restart()) == FATAL
    assert "init" not in again.calls


def test_an_init_fails_if_the_node_state_cannot_be_written() -> None:
    async def play(environment: Environment) -> None:
        events = await environment.listener.call(init_request())
        assert any(event.failure and "read-only" in event.failure.reason for event in events)

    assert scenario(lone(faults={"state": [OSError("read-only file system")]}), play) == FATAL


def test_join_service_setup_is_retried() -> None:
    async def play(environment: Environment) -> None:
        assert (await environment.listener.call(init_request()))[-1].success

    assert scenario(lone(faults={"join service": [Transient("etcd has no leader")] * 5}), play) == FINISHED


def test_an_internal_error_is_reported_to_the_client() -> None:
    async def play(environment: Environment) -> None:
        events = await environment.listener.call(init_request())
        assert any(event.failure and "internal error" in event.failure.reason for event in events)

    with pytest.raises(ZeroDivisionError):
        scenario(lone(faults={"init": [ZeroDivisionError("oops")]}), play)


async def send_nothing(body: bytes) -> None: ...


def test_every_client_of_a_failed_init_gets_the_log() -> None:
    async def play(environment: Environment) -> None:
        environment.log_buffer.append("kubeadm: no space left on device")
        for _ in range(3):
            events = await environment.listener.call(init_request())
            assert b"no space left" in b"".join(event.log for event in events)

    assert scenario(lone(faults={"init": [Fatal("kubeadm failed", advice="reboot")]}), play) == FATAL
