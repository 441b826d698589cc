"""The init server: success, request validation, concurrent requests, and its start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bootbridge.common.failures import MetadataUnavailable
from bootbridge.join_api.instance import Instance, Role
from bootbridge.node.init.messages import InitEvent, StageEvent
from bootbridge.node.lock.bootstrap_record import Flow
from bootbridge.node.supervisor import FINISHED
from bootbridge.runtime import tasks
from bootbridge.runtime.grpc import RpcError
from bootbridge.wire import grpc_messages as grpc
from tests.node.init.server_scenarios import lone, refused, scenario, untouched
from tests.support.deterministic_loop import run
from tests.support.node_environment import (
    INIT_MEASUREMENT,
    Environment,
    cluster_of,
    exit_code,
    init_request,
    started,
)


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


def test_stages_are_streamed_while_they_run() -> None:
    """Not only with the result."""

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


def test_kubeadm_runs_only_after_the_lock_was_taken() -> None:
    async def play(environment: Environment) -> None:
        await environment.listener.call(init_request())
        assert (
            environment.calls.index("register extend")
            < environment.calls.index("install")
            < environment.calls.index("init")
        )

    scenario(lone(), play)


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
def test_an_invalid_request_is_rejected_and_may_be_corrected(wrong: dict[str, Any]) -> None:
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


def test_an_init_that_fails_on_metadata_may_be_retried() -> None:
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


def test_a_second_init_is_rejected_while_one_runs() -> None:
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
def test_of_many_concurrent_inits_one_runs(seed: int) -> None:
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


def test_a_joining_instance_rejects_an_init() -> None:
    """The listener may have accepted the call just before."""

    async def on_its_own() -> None:
        environment = await serving_alone()
        await environment.lock.try_lock(Flow.JOIN, b"\xaa" * 32, b"")
        failure, _ = await refused(environment, init_request())
        assert failure.code == grpc.FAILED_PRECONDITION
        assert "joining" in failure.message
        assert "myself" not in environment.calls

    run(on_its_own())


@pytest.mark.parametrize("seed", range(50))
def test_a_second_init_never_blocks_the_end_of_the_first(seed: int) -> None:
    """It is rejected instead of waiting for the lock, which a graceful stop would wait for in turn."""

    async def play(environment: Environment) -> None:
        first = tasks.spawn(environment.listener.call(init_request("one")), "first")
        await environment.lock.wait_until_decided()
        while not first.done():
            failure, _ = await refused(environment, init_request("two"))
            assert failure.code == grpc.FAILED_PRECONDITION
            await asyncio.sleep(0.05)

    assert scenario(lone(seed=seed, slow=0.3), play, seed) == FINISHED


def test_an_init_that_loses_the_lock_during_validation_is_rejected() -> None:
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
    """Starts the server without a supervisor."""
    environment = lone()
    environment.assemble()
    await environment.init_server._open_listener()
    assert environment.listener.opened.is_set()
    return environment


def test_without_a_secret_hash_init_is_disabled_and_the_instance_joins() -> None:
    async def joins() -> int:
        environment = Environment(secret_hash="")
        code = await started(environment)
        assert not environment.listener.opened.is_set()
        assert environment.lock.holder is Flow.JOIN
        return code

    assert run(joins()) == FINISHED


def test_failed_metadata_is_retried_at_the_start() -> None:
    async def play(environment: Environment) -> None:
        assert (await environment.listener.call(init_request()))[-1].success

    environment = lone(faults={"init secret hash": [MetadataUnavailable("not up yet")] * 5})
    assert scenario(environment, play) == FINISHED


def test_a_port_in_use_is_retried_and_does_not_block_a_join() -> None:
    async def play(environment: Environment) -> None:
        assert (await environment.listener.call(init_request()))[-1].success

    busy = OSError(98, "Address already in use")
    environment = lone(faults={"open listener": [busy] * 3})
    assert scenario(environment, play) == FINISHED
    assert environment.calls.count("open listener") == 4
    environment = Environment(faults={"open listener": [busy] * 1000})
    assert run(exit_code(environment)) == FINISHED
    assert not environment.listener.opened.is_set()
