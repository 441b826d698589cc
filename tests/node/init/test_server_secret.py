"""The init server requires the init secret first, limits guesses, and gives no information without it."""

from __future__ import annotations

import asyncio

import pytest

from bootbridge.common.failures import Fatal
from bootbridge.node.init.messages import INIT
from bootbridge.node.supervisor import FATAL, FINISHED
from bootbridge.runtime.grpc import RpcError
from bootbridge.wire import grpc_messages as grpc
from tests.node.init.server_scenarios import lone, refused, scenario, untouched
from tests.support.node_environment import (
    Environment,
    init_request,
)


def test_a_wrong_secret_is_rejected_without_logs_and_changes_nothing() -> None:
    async def play(environment: Environment) -> None:
        environment.log_buffer.append("something that happened here")
        failure, events = await refused(environment, init_request(init_secret=b"guessed"))
        assert failure.code == grpc.PERMISSION_DENIED
        assert events == []
        assert untouched(environment)
        assert environment.listener.admitted == 0, "not admitted without the secret"
        assert (await environment.listener.call(init_request()))[-1].success, "the right secret must still do"
        assert environment.listener.admitted == 1

    assert scenario(lone(), play) == FINISHED


def test_the_secret_is_checked_before_any_other_field() -> None:
    """A validation error would be information for an unauthenticated client."""

    async def play(environment: Environment) -> None:
        asked = environment.calls.count("myself")
        request = init_request(init_secret=b"", init_id="", cluster_spec=b"broken", join_policy=b"broken")
        failure, _ = await refused(environment, request)
        assert (failure.code, failure.message) == (grpc.PERMISSION_DENIED, "wrong init secret")
        assert environment.calls.count("myself") == asked

    scenario(lone(addresses=()), play)


def test_a_wrong_secret_does_not_reveal_whether_an_init_is_running() -> None:
    async def play(environment: Environment) -> None:
        await environment.listener.call(init_request())
        failure, events = await refused(environment, init_request(init_secret=b"guessed"))
        assert failure.code == grpc.PERMISSION_DENIED
        assert events == []

    scenario(lone(), play)


def test_guesses_are_limited_to_less_than_one_a_second() -> None:
    async def play(environment: Environment) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for _ in range(20):
            await refused(environment, init_request(init_secret=b"guessed"))
        assert loop.time() - begun >= 19

    scenario(lone(), play)


def test_a_client_with_the_secret_is_admitted_between_guesses_in_bounded_time() -> None:
    async def play(environment: Environment) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(10):
            await refused(environment, init_request(init_secret=b"guessed"))
        begun = loop.time()
        assert (await environment.listener.call(init_request()))[-1].success
        assert loop.time() - begun <= 9

    scenario(lone(), play)


def test_a_client_with_the_secret_does_not_wait_for_guesses_from_another_source() -> None:
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


def test_too_many_waiting_guesses_are_rejected() -> None:
    async def play(environment: Environment) -> None:
        guesses = [refused(environment, init_request(init_secret=b"guessed")) for _ in range(40)]
        codes = [failure.code for failure, _ in await asyncio.gather(*guesses)]
        assert codes.count(grpc.RESOURCE_EXHAUSTED) >= 30
        assert codes.count(grpc.PERMISSION_DENIED) >= 8

    scenario(lone(), play)


def test_an_undecodable_request_is_rejected() -> None:
    async def play(environment: Environment) -> None:
        async def send(body: bytes) -> None:
            raise AssertionError("nothing is sent")

        with pytest.raises(RpcError) as caught:
            await environment.init_server.handlers("user", lambda: None)[INIT](b"\xff\xff\xff", send)
        assert caught.value.code == grpc.INVALID_ARGUMENT

    scenario(lone(), play)


def test_the_log_of_a_failed_init_is_not_sent_without_the_secret() -> None:
    async def play(environment: Environment) -> None:
        environment.log_buffer.append("the machine's journal")
        await environment.listener.call(init_request())
        _, events = await refused(environment, init_request(init_secret=b"guess"))
        assert events == []

    assert scenario(lone(faults={"init": [Fatal("kubeadm failed", advice="reboot")]}), play) == FATAL
