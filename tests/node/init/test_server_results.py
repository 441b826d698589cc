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


def test_a_watcher_who_comes_back_sees_the_rest_and_only_that() -> None:
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


def test_a_late_watcher_sees_everything_from_the_beginning() -> None:
    async def play(environment: Environment) -> None:
        first = await environment.listener.call(init_request())
        assert await environment.listener.call(init_request()) == first

    scenario(lone(), play)


def test_the_success_is_held_for_a_watcher_who_lost_the_connection() -> None:
    async def play(environment: Environment) -> None:
        watching = tasks.spawn(environment.listener.call(init_request()), "user")
        await environment.lock.wait_until_decided()
        watching.cancel()
        await asyncio.sleep(100)
        assert environment.persistent.record is not None
        assert environment.persistent.record.phase is Phase.DONE
        assert (await environment.listener.call(init_request()))[-1].success

    assert scenario(lone(), play) == FINISHED


def test_the_success_is_not_held_for_ever() -> None:
    async def play(environment: Environment) -> None:
        watching = tasks.spawn(environment.listener.call(init_request()), "user")
        await environment.lock.wait_until_decided()
        watching.cancel()
        await environment.listener.closed.wait()
        assert 120 <= asyncio.get_running_loop().time() < 130
        assert environment.persistent.record is not None
        assert environment.persistent.record.result == b"", "the kubeconfig is kept no longer"

    assert scenario(lone(), play) == FINISHED


def test_once_the_user_has_it_the_process_ends_at_once() -> None:
    async def play(environment: Environment) -> None:
        await environment.listener.call(init_request(), acknowledge=True)
        told_at = asyncio.get_running_loop().time()
        await environment.listener.closed.wait()
        assert asyncio.get_running_loop().time() == told_at

    assert scenario(lone(), play) == FINISHED


def test_what_was_sent_and_may_be_lost_on_its_way_is_held_as_if_it_had_not_been_sent() -> None:
    """The line is cut after the server's last word, and the user is back after a while, twice."""

    async def play(environment: Environment) -> None:
        for pause in (5, 100):
            assert (await environment.listener.call(init_request()))[-1].success
            await asyncio.sleep(pause)
        assert (await environment.listener.call(init_request(), acknowledge=True))[-1].success
        await environment.listener.closed.wait()

    assert scenario(lone(), play) == FINISHED


def test_the_door_stays_open_for_whoever_is_in_it_but_not_for_a_crowd_of_strangers() -> None:
    async def play(environment: Environment) -> None:
        await environment.listener.call(init_request())
        await asyncio.sleep(119)
        environment.listener.handshakes = 1
        await asyncio.sleep(20)
        assert (await environment.listener.call(init_request()))[-1].success
        await environment.listener.closed.wait()
        assert 200 < asyncio.get_running_loop().time() < 400

    assert scenario(lone(), play) == FINISHED


def test_nobody_can_say_that_the_end_was_fetched_but_who_was_told_it() -> None:
    """On another connection no secret was shown, and an init that runs has no end yet."""

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
def test_a_failure_past_the_lock_is_told_with_logs_and_ends_the_process_as_failed(step: str) -> None:
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
def test_a_watcher_whose_line_breaks_can_still_have_the_failure_and_its_logs(lost_at: str) -> None:
    async def play(environment: Environment) -> None:
        environment.log_buffer.append("what kubeadm said")

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
        assert b"what kubeadm said" in b"".join(event.log for event in events)

    assert scenario(lone(faults={"init": [Fatal("broken", advice="reboot")]}), play) == FATAL


def test_a_failed_init_is_not_begun_again_by_a_restart() -> None:
    """The user was told that it failed; an instance that then succeeds on its own would be a ghost."""

    async def play(environment: Environment) -> None:
        await environment.listener.call(init_request())

    environment = lone(faults={"init": [Fatal("broken", advice="reboot")]})
    assert scenario(environment, play) == FATAL
    again = environment.again()

    async def restart() -> int:
        return await started(again)

    assert run(restart()) == FATAL
    assert "init" not in again.calls


def test_a_state_that_cannot_be_written_fails_the_init() -> None:
    async def play(environment: Environment) -> None:
        events = await environment.listener.call(init_request())
        assert any(event.failure and "read-only" in event.failure.reason for event in events)

    assert scenario(lone(faults={"state": [OSError("read-only file system")]}), play) == FATAL


def test_a_young_api_server_is_given_time() -> None:
    async def play(environment: Environment) -> None:
        assert (await environment.listener.call(init_request()))[-1].success

    assert scenario(lone(faults={"join service": [Transient("etcd has no leader")] * 5}), play) == FINISHED


def test_a_defect_of_ours_is_told_to_the_user_too() -> None:
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
