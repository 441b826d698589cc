"""The join client: requests tickets from several addresses until one is granted, and validates it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bootbridge.common.failures import MetadataUnavailable, PeerRefused, Transient
from bootbridge.join_api.components import Component
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.kubeadm_defaults import CONTROL_PLANE_FILES
from bootbridge.join_api.messages import ControlPlaneFile, Ticket, TicketRequest
from bootbridge.node.join.endpoints import Address
from bootbridge.node.lock.bootstrap_record import Flow, Phase
from bootbridge.node.supervisor import FINISHED, INTERRUPTED
from bootbridge.runtime.concurrency import Turn
from tests.support.deterministic_loop import run
from tests.support.node_environment import (
    INSTANCE,
    Environment,
    exit_code,
    joins,
    started,
    until,
)

WORKER = Instance("worker-3", Role.WORKER, INSTANCE.addresses)
THREE = (("a", 30090), ("b", 30090), ("c", 30090))
Answer = Callable[[Address, TicketRequest, Turn], Coroutine[Any, Any, Ticket]]


def answering(environment: Environment, answer: Answer) -> asyncio.Task[int]:
    process = started(environment)
    environment.service.request_ticket = answer  # type: ignore[method-assign]
    return process


@pytest.mark.parametrize("instance", [INSTANCE, WORKER], ids=["control plane", "worker"])
def test_an_instance_joins_and_writes_its_node_state(instance: Instance) -> None:
    environment = Environment(instance=instance)
    joins(environment)
    assert environment.persistent.state is not None
    assert (environment.persistent.state.name, environment.persistent.state.role) == (
        instance.name,
        instance.role,
    )
    assert environment.persistent.record is not None
    assert environment.persistent.record.phase is Phase.DONE


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("myself", MetadataUnavailable("no name yet")),
        ("endpoints", MetadataUnavailable("no peers")),
        ("ticket", Transient("connection refused")),
        ("ticket", PeerRefused("PCR 15 is not zero")),
    ],
    ids=["metadata", "endpoints", "service", "refusal"],
)
def test_failures_before_the_lock_are_retried(call: str, error: Exception) -> None:
    environment = Environment(faults={call: [error] * 4})
    joins(environment)
    assert environment.calls.count(call) == 5


def test_an_instance_waits_until_a_join_service_is_known() -> None:
    async def scenario() -> None:
        environment = Environment(addresses=())
        process = started(environment)
        await until(lambda: environment.calls.count("endpoints") == 6)
        assert "ticket" not in environment.calls
        environment.addresses = (("10.0.0.1", 30090),)
        assert await process == FINISHED

    run(scenario())


def test_each_round_reads_the_metadata_again() -> None:
    """An operator can correct a name or a role without access to the instance."""

    async def scenario() -> None:
        environment = Environment(instance=Instance("not a name!", Role.WORKER, ()), secret_hash="")
        process = started(environment)
        await until(lambda: environment.calls.count("myself") == 3)
        environment.instance = WORKER
        assert await process == FINISHED
        assert environment.persistent.state is not None
        assert environment.persistent.state.name == WORKER.name

    run(scenario())


def test_metadata_requests_time_out() -> None:
    async def scenario() -> None:
        environment = Environment(secret_hash="")
        process = started(environment)
        myself = environment.metadata.myself

        async def hangs() -> Instance:
            environment.metadata.myself = myself  # type: ignore[method-assign]
            await asyncio.Event().wait()
            raise AssertionError

        environment.metadata.myself = hangs  # type: ignore[method-assign]
        assert await process == FINISHED

    run(scenario())


def test_every_attempt_uses_a_new_key() -> None:
    async def scenario() -> None:
        environment = Environment(addresses=THREE)
        made: list[str] = []
        process = started(environment)
        fresh = environment.new_request

        def counted(name: str) -> Any:
            made.append(name)
            return fresh(name)

        object.__setattr__(environment.join_client._sources, "new_request", counted)
        environment.faults["ticket"] = [Transient("no")] * 5
        assert await process == FINISHED
        assert len(made) == 6

    run(scenario())


def test_a_silent_address_does_not_delay_the_others() -> None:
    async def scenario() -> None:
        environment = Environment(addresses=THREE)
        asked = []

        async def answer(address: Address, request: TicketRequest, turn: Turn) -> Ticket:
            asked.append(address[0])
            if address[0] != "c":
                await asyncio.Event().wait()
            return environment.ticket()

        assert await answering(environment, answer) == FINISHED
        assert asked == ["a", "b", "c"]
        assert asyncio.get_running_loop().time() < 10

    run(scenario())


def test_no_other_address_is_called_if_the_first_answers_at_once() -> None:
    """Otherwise many instances would get a ticket from every control plane."""
    environment = Environment(addresses=THREE)
    joins(environment)
    assert environment.calls.count("ticket") == 1


def test_a_round_with_silent_addresses_only_is_followed_by_another() -> None:
    async def scenario() -> None:
        environment = Environment(addresses=(("a", 1), ("b", 2)))
        asked = 0

        async def answer(address: Address, request: TicketRequest, turn: Turn) -> Ticket:
            nonlocal asked
            asked += 1
            if asked <= 4:
                await asyncio.Event().wait()
            return environment.ticket()

        assert await answering(environment, answer) == FINISHED
        assert asked >= 5

    run(scenario())


@pytest.mark.parametrize("seed", range(30))
def test_concurrent_connections_lead_to_one_ticket_and_one_join(seed: int) -> None:
    async def scenario() -> None:
        environment = Environment(seed, addresses=THREE * 3)
        opening = asyncio.Event()
        channels = tickets = 0

        async def answer(address: Address, request: TicketRequest, turn: Turn) -> Ticket:
            nonlocal channels, tickets
            channels += 1
            if channels == 4:
                opening.set()
            await opening.wait()
            await turn()
            tickets += 1
            await asyncio.sleep(environment.chance.uniform(0, 5))
            return environment.ticket()

        assert await answering(environment, answer) == FINISHED
        assert channels == 4, "no more than four at once"
        assert tickets == 1
        assert environment.calls.count("join") == 1
        assert environment.persistent.extensions == 1

    run(scenario(), seed)


def test_a_slow_join_service_is_the_only_one_that_gets_a_request() -> None:
    """It may be slow because many instances call; further requests would add load and unused tokens."""

    async def scenario() -> None:
        environment = Environment(addresses=THREE)
        dialled, asked = [], []

        async def answer(address: Address, request: TicketRequest, turn: Turn) -> Ticket:
            dialled.append(address[0])
            await turn()
            asked.append(address[0])
            await asyncio.sleep(3)
            return environment.ticket()

        assert await answering(environment, answer) == FINISHED
        assert (dialled, asked) == (["a"], ["a"])

    run(scenario())


def test_the_next_join_service_gets_a_request_after_a_failure() -> None:
    async def scenario() -> None:
        environment = Environment(addresses=THREE)
        asked, out = [], 0

        async def answer(address: Address, request: TicketRequest, turn: Turn) -> Ticket:
            nonlocal out
            await asyncio.sleep(5)  # so channels to all of them are on their way
            await turn()
            asked.append(address[0])
            out += 1
            assert out == 1, "one at a time"
            await asyncio.sleep(3)
            out -= 1
            if address[0] != "c":
                raise Transient("try again")
            return environment.ticket()

        assert await answering(environment, answer) == FINISHED
        assert asked == ["a", "b", "c"]

    run(scenario())


def test_a_refused_ticket_is_retried_with_long_pauses() -> None:
    environment = Environment(faults={"ticket": [PeerRefused("this name belongs to another key")] * 6})

    async def scenario() -> None:
        assert await exit_code(environment) == FINISHED
        assert 6 * 15 <= asyncio.get_running_loop().time() <= 6 * 300

    run(scenario())


def test_a_refusal_takes_precedence_over_unreachable_addresses(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        environment = Environment(addresses=THREE)
        environment.faults["ticket"] = [
            Transient("unreachable"),
            PeerRefused("PCR 15 differs"),
            Transient("unreachable"),
        ]
        assert await exit_code(environment) == FINISHED
        assert asyncio.get_running_loop().time() >= 15

    run(scenario())
    (line,) = [record for record in caplog.records if record.message == "ticket refused"]
    assert "PCR 15 differs" in vars(line)["fields"]["reason"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"node_name": "another-node"},
        {"control_plane": False, "control_plane_files": ()},
        {"kubernetes_version": ""},
        {"kubernetes_version": "1.19"},
        {"kubernetes_version": "v1.36.3 --evil"},
        {"api_server_endpoint": ":6443"},
        {"api_server_endpoint": "10.0.0.1"},
        {"token": "x"},
        {"token_seconds": 0},
        {"turn_seconds": 0},
        {"ca_certificate_hashes": ()},
        {"ca_certificate_hashes": ("sha256:zz",)},
        {"kubelet_certificate": b""},
        {"control_plane_files": ()},
        {"measurement_secret": b""},
        {"measurement_salt": b"short"},
        {"addresses": ("10.0.0.5", "not an address")},
        {"components": (Component(install_path="relative/kubeadm"),)},
        {"components": (Component("https://example/kubeadm", "sha256:zz", "/usr/bin/kubeadm"),)},
        {"components": (Component(install_path="/opt/../etc/passwd"),)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_an_invalid_ticket_is_not_used(wrong: dict[str, Any]) -> None:
    async def scenario() -> None:
        environment = Environment(ticket_changes=wrong)
        process = started(environment)
        await until(lambda: environment.calls.count("ticket") == 3)
        assert environment.persistent.register == bytes(32)
        assert environment.lock.is_available
        assert not {"ticket files", "install", "join"} & set(environment.calls)
        environment.ticket_changes = {}
        assert await process == FINISHED

    run(scenario())


def test_a_worker_rejects_a_ticket_with_control_plane_keys() -> None:
    async def scenario() -> None:
        files = tuple(ControlPlaneFile(name, b"key") for name in CONTROL_PLANE_FILES)
        environment = Environment(instance=WORKER, ticket_changes={"control_plane_files": files})
        process = started(environment)
        await until(lambda: environment.calls.count("ticket") == 2)
        assert environment.lock.is_available
        environment.stop.set()
        assert await process == INTERRUPTED

    run(scenario())


def test_without_the_lock_no_ticket_file_is_written() -> None:
    async def scenario() -> None:
        environment = Environment()
        environment.assemble()
        reached = asyncio.Event()

        async def answer(address: Address, request: TicketRequest, turn: Turn) -> Ticket:
            reached.set()
            return environment.ticket()

        environment.service.request_ticket = answer  # type: ignore[method-assign]
        await environment.lock.try_lock(Flow.INIT, b"\xaa" * 32, b"")
        assert await environment.join_client.run() is None
        assert not {"ticket files", "install", "join"} & set(environment.calls)
        assert environment.persistent.extensions == 1

    run(scenario())


@pytest.mark.parametrize("where", ["myself", "endpoints", "request_ticket", "pause"])
def test_a_stop_before_the_lock_takes_effect_at_once(where: str) -> None:
    """Also during a ticket request, which may take half a minute per address."""

    async def scenario() -> None:
        environment = Environment(secret_hash="")
        process = started(environment)
        interrupted = asyncio.Event()

        async def hangs(*_: object) -> Any:
            try:
                await asyncio.Event().wait()
            finally:
                interrupted.set()

        if where == "pause":
            environment.tickets = False
            interrupted.set()
        elif where == "endpoints":
            object.__setattr__(environment.join_client._sources, "endpoints", hangs)
        else:
            setattr(environment.metadata if where == "myself" else environment.service, where, hangs)
        await asyncio.sleep(5)
        environment.stop.set()
        stopped_at = asyncio.get_running_loop().time()
        assert await process == INTERRUPTED
        assert asyncio.get_running_loop().time() == stopped_at
        assert interrupted.is_set()

    run(scenario())


@pytest.mark.parametrize("seed", range(10))
def test_a_stop_at_any_time_ends_cleanly(seed: int) -> None:
    async def scenario() -> None:
        for at in range(10):
            environment = Environment(seed, slow=0.5, tickets=False)
            process = started(environment)
            await asyncio.sleep(at / 7)
            environment.stop.set()
            environment.stop.set()
            assert await process == INTERRUPTED
            assert environment.persistent.record is None

    run(scenario(), seed)


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "etcd/../ca.key", "extra.crt", ""])
def test_a_ticket_with_an_unknown_file_name_is_rejected_as_a_whole(name: str) -> None:
    """A file name is joined to a path: an unchecked one could write anywhere."""

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


def test_rounds_are_separated_by_random_pauses_even_after_a_slow_round() -> None:
    """A fixed timer would make all instances call at once after a slow round."""

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
