"""The init server: who may ask, what is refused without harm, who may watch, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bootbridge.common.failures import Fatal, MetadataUnavailable, Transient
from bootbridge.join_api.instance import Instance, Role
from bootbridge.node.init.messages import ACKNOWLEDGE, INIT, InitEvent, InitRequest, StageEvent
from bootbridge.node.lock.bootstrap_record import Flow, Phase
from bootbridge.node.supervisor import FATAL, FINISHED
from bootbridge.runtime import tasks
from bootbridge.runtime.grpc import RpcError
from bootbridge.wire import grpc_messages as grpc
from tests.support.deterministic_loop import run
from tests.support.node_environment import (
    INIT_MEASUREMENT,
    Environment,
    cluster_of,
    init_request,
    started,
    until,
)

NOTHING_DONE = ("register extend", "install", "reset", "init", "join", "ticket files")


def untouched(environment: Environment) -> bool:
    return (
        environment.lock.holder is None
        and environment.persistent.record is None
        and not set(NOTHING_DONE) & set(environment.calls)
    )


def lone(**given: Any) -> Environment:
    """An instance that nobody but a user wants."""
    return Environment(tickets=False, **given)


def scenario(environment: Environment, play: Callable[[Environment], Awaitable[None]], seed: int = 0) -> int:
    """The process's exit code, after `play` was had with it."""

    async def both() -> int:
        process = started(environment)
        await environment.listener.opened.wait()
        await play(environment)
        environment.stop.set()
        return await process

    return run(both(), seed)


async def refused(environment: Environment, request: InitRequest) -> tuple[RpcError, list[InitEvent]]:
    events: list[InitEvent] = []
    with pytest.raises(RpcError) as caught:
        await environment.listener.call_into(request, events)
    return caught.value, events


# --- success


def test_an_init_streams_its_stages_and_ends_with_the_kubeconfig_and_the_cluster_id() -> None:
    async def play(environment: Environment) -> None:
        events = await environment.listener.call(init_request())
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert [event.stage for event in events if event.stage] == [
            StageEvent("kubeadm init", "started"),
            StageEvent("kubeadm init", "done"),
        ]
        assert events[-1].success is not None
        assert events[-1].success.kubeconfig == b"kubeconfig"
        assert events[-1].success.cluster_id == cluster_of(INIT_MEASUREMENT)
        assert not any(event.failure or event.log for event in events)
        assert environment.lock.holder is Flow.INIT

    assert scenario(lone(), play) == FINISHED


def test_stages_are_seen_while_they_happen() -> None:
    """Progress that comes only with the result is none."""

    async def play(environment: Environment) -> None:
        events: list[InitEvent] = []
        held = asyncio.Event()
        init = environment.machine.init

        async def slow_init(*given: Any) -> bytes:
            given[-1](StageEvent("certs", "started"))
            await held.wait()
            return await init(*given)

        environment.machine.init = slow_init  # type: ignore[method-assign]
        watching = tasks.spawn(environment.listener.call_into(init_request(), events), "user")
        await asyncio.sleep(1)
        assert [event.stage and event.stage.name for event in events] == ["certs"]
        held.set()
        await watching

    assert scenario(lone(), play) == FINISHED


def test_kubeadm_is_not_run_for_a_cluster_before_the_lock_is_taken() -> None:
    async def play(environment: Environment) -> None:
        await environment.listener.call(init_request())
        assert (
            environment.calls.index("register extend")
            < environment.calls.index("install")
            < environment.calls.index("init")
        )

    scenario(lone(), play)


# --- the secret


def test_a_wrong_secret_is_refused_without_logs_and_leaves_the_instance_as_it_was() -> None:
    async def play(environment: Environment) -> None:
        environment.log_buffer.append("something that happened here")
        failure, events = await refused(environment, init_request(init_secret=b"guessed"))
        assert failure.code == grpc.PERMISSION_DENIED
        assert events == []
        assert untouched(environment)
        assert environment.listener.admitted == 0, "a stranger may not stay"
        assert (await environment.listener.call(init_request()))[-1].success, "the right secret must still do"
        assert environment.listener.admitted == 1

    assert scenario(lone(), play) == FINISHED


def test_nothing_is_looked_at_before_the_secret() -> None:
    """Not even whether the request makes sense: that, too, would be told to a stranger."""

    async def play(environment: Environment) -> None:
        asked = environment.calls.count("myself")
        request = init_request(init_secret=b"", init_id="", cluster_spec=b"broken", join_policy=b"broken")
        failure, _ = await refused(environment, request)
        assert (failure.code, failure.message) == (grpc.PERMISSION_DENIED, "wrong init secret")
        assert environment.calls.count("myself") == asked

    scenario(lone(addresses=()), play)


def test_a_wrong_secret_does_not_tell_whether_an_init_is_running() -> None:
    async def play(environment: Environment) -> None:
        await environment.listener.call(init_request())
        failure, events = await refused(environment, init_request(init_secret=b"guessed"))
        assert failure.code == grpc.PERMISSION_DENIED
        assert events == []

    scenario(lone(), play)


def test_guessing_is_slowed_down_to_less_than_one_attempt_a_second() -> None:
    async def play(environment: Environment) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for _ in range(20):
            await refused(environment, init_request(init_secret=b"guessed"))
        assert loop.time() - begun >= 19

    scenario(lone(), play)


def test_who_knows_the_secret_gets_in_between_guesses_within_a_bounded_time() -> None:
    async def play(environment: Environment) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(10):
            await refused(environment, init_request(init_secret=b"guessed"))
        begun = loop.time()
        assert (await environment.listener.call(init_request()))[-1].success
        assert loop.time() - begun <= 9

    scenario(lone(), play)


def test_who_knows_the_secret_does_not_wait_for_guesses_from_elsewhere() -> None:
    async def play(environment: Environment) -> None:
        loop = asyncio.get_running_loop()
        guess = init_request(init_secret=b"guessed")
        crowd = [asyncio.ensure_future(environment.listener.call(guess, "203.0.113.1")) for _ in range(16)]
        await asyncio.sleep(5)
        begun = loop.time()
        assert (await environment.listener.call(init_request()))[-1].success
        assert loop.time() - begun <= 1
        await asyncio.gather(*crowd, return_exceptions=True)

    scenario(lone(), play)


def test_a_crowd_of_guessers_is_sent_away_instead_of_queued() -> None:
    async def play(environment: Environment) -> None:
        guesses = [refused(environment, init_request(init_secret=b"guessed")) for _ in range(40)]
        codes = [failure.code for failure, _ in await asyncio.gather(*guesses)]
        assert codes.count(grpc.RESOURCE_EXHAUSTED) >= 30
        assert codes.count(grpc.PERMISSION_DENIED) >= 8

    scenario(lone(), play)


def test_garbage_is_no_request() -> None:
    async def play(environment: Environment) -> None:
        async def send(body: bytes) -> None:
            raise AssertionError("nothing is sent")

        with pytest.raises(RpcError) as caught:
            await environment.init_server.handlers("user", lambda: None)[INIT](b"\xff\xff\xff", send)
        assert caught.value.code == grpc.INVALID_ARGUMENT

    scenario(lone(), play)


# --- what can be corrected


@pytest.mark.parametrize(
    "wrong",
    [
        {"init_id": ""},
        {"init_id": "a\nb"},
        {"measurement_secret": b"short"},
        {"measurement_salt": b""},
        {"cluster_spec": b"{"},
        {"cluster_spec": b"{}"},
        {"cluster_spec": b"\xff"},
        {"cluster_spec": b'{"kubernetesVersion": "1.19"}'},
        {"join_policy": b"broken"},
    ],
    ids=str,
)
def test_a_request_that_makes_no_sense_is_refused_and_may_be_corrected(wrong: dict[str, Any]) -> None:
    async def play(environment: Environment) -> None:
        failure, events = await refused(environment, init_request(**wrong))
        assert failure.code == grpc.INVALID_ARGUMENT
        assert events[0].failure is not None
        assert events[0].failure.may_retry
        assert events[0].failure.reason
        assert untouched(environment)
        assert (await environment.listener.call(init_request()))[-1].success

    assert scenario(lone(), play) == FINISHED


def test_a_worker_cannot_be_initialised() -> None:
    async def play(environment: Environment) -> None:
        failure, _ = await refused(environment, init_request())
        assert failure.code == grpc.INVALID_ARGUMENT
        assert "worker" in failure.message
        assert untouched(environment)

    scenario(lone(instance=Instance("w", Role.WORKER, ())), play)


def test_metadata_that_fails_during_an_init_may_be_tried_again() -> None:
    async def play(environment: Environment) -> None:
        environment.faults["myself"] = [MetadataUnavailable("timed out")]
        failure, events = await refused(environment, init_request())
        assert failure.code == grpc.UNAVAILABLE
        assert events[0].failure is not None
        assert events[0].failure.may_retry
        assert untouched(environment)
        assert (await environment.listener.call(init_request()))[-1].success

    # Without join services the join client asks the metadata, too; it must not take the fault away.
    environment = lone()
    environment.faults["myself"] = []
    assert scenario(environment, play, seed=3) == FINISHED


# --- several at once


def test_a_second_init_is_refused_at_once_while_one_runs() -> None:
    async def play(environment: Environment) -> None:
        held = asyncio.Event()
        install = environment.machine.install_components

        async def slow(*given: Any) -> None:
            await held.wait()
            await install(*given)

        environment.machine.install_components = slow  # type: ignore[method-assign]
        first = tasks.spawn(environment.listener.call(init_request("one")), "first")
        await asyncio.sleep(1)
        begun = asyncio.get_running_loop().time()
        failure, events = await refused(environment, init_request("two"))
        assert (failure.code, events) == (grpc.FAILED_PRECONDITION, [])
        assert "another init" in failure.message
        assert asyncio.get_running_loop().time() == begun
        held.set()
        assert (await first)[-1].success

    assert scenario(lone(), play) == FINISHED


@pytest.mark.parametrize("seed", range(30))
def test_of_many_inits_at_once_one_runs(seed: int) -> None:
    async def play(environment: Environment) -> None:
        calls = [environment.listener.call(init_request(str(number))) for number in range(8)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, list) for each in answers) == 1
        for answer in answers:
            assert isinstance(answer, list) or (
                isinstance(answer, RpcError) and answer.code == grpc.FAILED_PRECONDITION
            )
        assert environment.calls.count("init") == 1

    assert scenario(lone(slow=0.5), play, seed) == FINISHED


def test_an_instance_that_joins_refuses_an_init_at_once() -> None:
    """Here its door is still open: a call may have come in just before."""

    async def on_its_own() -> None:
        environment = await serving_alone()
        await environment.lock.try_lock(Flow.JOIN, b"\xaa" * 32, b"")
        failure, _ = await refused(environment, init_request())
        assert failure.code == grpc.FAILED_PRECONDITION
        assert "joining" in failure.message
        assert "myself" not in environment.calls

    run(on_its_own())


def test_an_init_that_loses_the_lock_during_its_checks_is_refused() -> None:
    async def on_its_own() -> None:
        environment = await serving_alone()
        asked = asyncio.Event()

        async def myself() -> Instance:
            asked.set()
            await asyncio.sleep(1)
            return environment.instance

        environment.metadata.myself = myself  # type: ignore[method-assign]
        calling = tasks.spawn(refused(environment, init_request()), "user")
        await asked.wait()
        await environment.lock.try_lock(Flow.JOIN, b"\xaa" * 32, b"")
        failure, _ = await calling
        assert failure.code == grpc.FAILED_PRECONDITION
        assert "install" not in environment.calls

    run(on_its_own())


async def serving_alone() -> Environment:
    """The server without the rest of its process."""
    environment = lone()
    environment.assemble()
    await environment.init_server._open_listener()
    assert environment.listener.opened.is_set()
    return environment


# --- watching


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


async def send_nothing(body: bytes) -> None: ...


# --- failures past the lock


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


# --- its beginning


def test_without_a_secret_hash_there_is_no_init_and_the_instance_joins() -> None:
    async def joins() -> int:
        environment = Environment(secret_hash="")
        code = await started(environment)
        assert not environment.listener.opened.is_set()
        assert environment.lock.holder is Flow.JOIN
        return code

    assert run(joins()) == FINISHED


def test_metadata_that_fails_at_the_start_is_asked_again() -> None:
    async def play(environment: Environment) -> None:
        assert (await environment.listener.call(init_request()))[-1].success

    environment = lone(faults={"init secret hash": [MetadataUnavailable("not up yet")] * 5})
    assert scenario(environment, play) == FINISHED


def test_a_port_that_is_in_use_is_tried_again_and_does_not_stop_a_join() -> None:
    async def play(environment: Environment) -> None:
        assert (await environment.listener.call(init_request()))[-1].success

    busy = OSError(98, "Address already in use")
    assert scenario(lone(faults={"open the door": [busy] * 3}), play) == FINISHED

    async def joins() -> int:
        return await started(Environment(faults={"open the door": [busy] * 1000}))

    assert run(joins()) == FINISHED
