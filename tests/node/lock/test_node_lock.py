"""The one-way lock: one winner, one measurement, and a restart that knows what was begun."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bootbridge.common.failures import Fatal, Transient
from bootbridge.node.lock.node_lock import Locked, NodeLock
from bootbridge.node.lock.phases import Flow, Phase, Record
from bootbridge.trust.key_hierarchy import cluster_id
from bootbridge.trust.measurement import ZERO, after_event, lock_value
from tests.support.deterministic_loop import run
from tests.support.node_world import World, WorldPhases, WorldRegister

CLUSTER = b"\xaa" * 32


async def nothing() -> None: ...


def lock_in(world: World) -> NodeLock:
    world.gone = asyncio.Event()
    return NodeLock(WorldPhases(world), WorldRegister(world))


def test_the_register_after_locking_is_the_known_vector() -> None:
    """The constants were computed elsewhere, with another implementation."""
    cluster = cluster_id(bytes(range(32)), bytes(range(32, 64)))
    assert cluster.hex() == "128c164378fe8767f998fbdfe4b4d6463ec5ae1b664ea5999bc27417607ae9b6"
    assert lock_value(cluster).hex() == "23400370357e846478cce7cc0c76cdfe4da077cc57b36dee0f665ede2c8b3f2f"


@pytest.mark.parametrize("seed", range(20))
def test_of_many_at_once_one_gets_it_and_the_others_are_told_at_once(seed: int) -> None:
    async def scenario() -> None:
        world = World(seed, slow=1.0)
        lock = lock_in(world)
        clusters = [bytes([number]) * 32 for number in range(11)]
        answers = await asyncio.gather(*(lock.try_lock(Flow.JOIN, each, b"work") for each in clusters))
        assert answers.count(Locked.ACQUIRED) == 1
        assert world.lasting.extensions == 1
        winner = clusters[answers.index(Locked.ACQUIRED)]
        assert world.lasting.register == lock_value(winner)
        assert world.lasting.record == Record(Phase.LOCKED, Flow.JOIN, winner, b"work")
        assert await lock.try_lock(Flow.INIT, CLUSTER, b"") is Locked.HELD

    run(scenario(), seed)


def test_the_loser_touches_neither_the_register_nor_the_record() -> None:
    async def scenario() -> None:
        world = World()
        lock = lock_in(world)
        await lock.try_lock(Flow.INIT, CLUSTER, b"the winner's")
        before, calls, points = replace(world.lasting), list(world.calls), world.points
        assert await lock.try_lock(Flow.JOIN, b"\xbb" * 32, b"the loser's") is Locked.HELD
        assert (world.lasting, world.calls, world.points) == (before, calls, points)
        assert lock.holder is Flow.INIT

    run(scenario())


def test_the_work_is_written_down_before_it_is_measured() -> None:
    """Else a crash right after the measurement would leave an instance that nobody can explain."""

    async def scenario() -> None:
        world = World()
        lock = lock_in(world)
        seen: list[Record | None] = []

        class Watching(WorldRegister):
            async def extend(self, data: bytes) -> None:
                seen.append(world.lasting.record)
                await super().extend(data)

        lock = NodeLock(WorldPhases(world), Watching(world))
        await lock.try_lock(Flow.JOIN, CLUSTER, b"work")
        assert seen == [Record(Phase.LOCKING, Flow.JOIN, CLUSTER, b"work")]

    run(scenario())


@pytest.mark.parametrize("call", ["register read", "register extend"])
def test_a_register_that_fails_leaves_the_lock_taken_and_is_fatal(call: str) -> None:
    async def scenario() -> None:
        world = World(faults={call: [Transient("the TPM is busy")]})
        lock = lock_in(world)
        with pytest.raises(Fatal, match="the TPM is busy") as caught:
            await lock.try_lock(Flow.JOIN, CLUSTER, b"")
        assert "reboot" in caught.value.advice
        assert lock.holder is Flow.JOIN
        assert await lock.try_lock(Flow.INIT, CLUSTER, b"") is Locked.HELD

    run(scenario())


def test_what_failed_while_locking_is_not_gone_on_with_by_a_restart() -> None:
    """Somebody was told that it failed."""

    async def scenario() -> None:
        world = World(faults={"register extend": [Transient("the TPM is busy")]})
        with pytest.raises(Fatal):
            await lock_in(world).try_lock(Flow.INIT, CLUSTER, b"secrets")
        with pytest.raises(Fatal, match="the TPM is busy"):
            await lock_in(world).restore()
        assert world.lasting.extensions == 0
        assert world.lasting.record is not None
        assert world.lasting.record.work == b""

    run(scenario())


def test_an_instance_that_was_measured_for_another_cluster_is_not_measured_again() -> None:
    async def scenario() -> None:
        world = World()
        world.lasting.register = lock_value(b"\xcc" * 32)
        with pytest.raises(Fatal, match="another cluster"):
            await lock_in(world).try_lock(Flow.JOIN, CLUSTER, b"")
        assert world.lasting.extensions == 0
        assert world.lasting.record is None

    run(scenario())


def test_once_shut_nobody_takes_it() -> None:
    async def scenario() -> None:
        world = World()
        lock = lock_in(world)
        lock.shut()
        await lock.decided()
        assert await lock.try_lock(Flow.INIT, CLUSTER, b"") is Locked.HELD
        assert lock.holder is None
        assert not world.calls

    run(scenario())


LOCKING = Record(Phase.LOCKING, Flow.JOIN, CLUSTER, b"work")


@pytest.mark.parametrize(
    ("record", "register", "extensions"),
    [
        (LOCKING, ZERO, 1),
        (LOCKING, lock_value(CLUSTER), 0),
        (replace(LOCKING, phase=Phase.LOCKED), lock_value(CLUSTER), 0),
        (replace(LOCKING, phase=Phase.KUBEADM), lock_value(CLUSTER), 0),
        (replace(LOCKING, phase=Phase.FOUNDING), lock_value(CLUSTER), 0),
    ],
    ids=["not measured yet", "measured, not noted", "locked", "kubeadm", "founding"],
)
def test_a_restart_goes_on_with_what_was_begun(record: Record, register: bytes, extensions: int) -> None:
    async def scenario() -> None:
        world = World()
        world.lasting.record, world.lasting.register = record, register
        lock = lock_in(world)
        restored = await lock.restore()
        assert restored is not None
        assert restored.phase is (Phase.LOCKED if record.phase is Phase.LOCKING else record.phase)
        assert (restored.work, restored.resumed) == (b"work", 1)
        assert world.lasting.record == restored
        assert world.lasting.extensions == extensions
        assert lock.holder is Flow.JOIN
        assert await lock.try_lock(Flow.INIT, CLUSTER, b"") is Locked.HELD

    run(scenario())


@pytest.mark.parametrize("phase", [each for each in Phase if each is not Phase.FAILED])
@pytest.mark.parametrize("register", [lock_value(b"\xcc" * 32), after_event(lock_value(CLUSTER), CLUSTER)])
def test_a_restart_that_finds_another_measurement_is_fatal(phase: Phase, register: bytes) -> None:
    async def scenario() -> None:
        world = World()
        world.lasting.record, world.lasting.register = replace(LOCKING, phase=phase), register
        with pytest.raises(Fatal) as caught:
            await lock_in(world).restore()
        assert "reboot" in caught.value.advice
        assert world.lasting.extensions == 0

    run(scenario())


def test_a_measured_instance_without_a_record_is_fatal_unless_it_remembers_that_cluster() -> None:
    async def scenario() -> None:
        world = World()
        world.lasting.register = lock_value(CLUSTER)
        with pytest.raises(Fatal, match="nothing says by whom"):
            await lock_in(world).restore()
        assert await lock_in(world).restore(CLUSTER) is None

    run(scenario())


def test_a_failure_is_repeated_to_whoever_starts_it_again_and_its_secrets_are_gone() -> None:
    async def scenario() -> None:
        world = World()
        lock = lock_in(world)
        await lock.try_lock(Flow.JOIN, CLUSTER, b"work")
        with pytest.raises(Fatal):
            async with lock.for_good(nothing):
                raise Fatal("kubeadm said no", advice="do this")
        assert world.lasting.record is not None
        assert world.lasting.record.work == b""
        with pytest.raises(Fatal, match="kubeadm said no") as caught:
            await lock_in(world).restore()
        assert caught.value.advice == "do this"

    run(scenario())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Transient("later")])
def test_whatever_fails_past_the_lock_is_fatal_with_advice(error: Exception) -> None:
    async def scenario() -> None:
        lock = lock_in(World())
        await lock.try_lock(Flow.JOIN, CLUSTER, b"work")
        with pytest.raises(Fatal) as caught:
            async with lock.for_good(nothing):
                raise error
        assert caught.value.advice

    run(scenario())


@pytest.mark.parametrize("phase", [Phase.LOCKED, Phase.KUBEADM, Phase.FOUNDING])
def test_what_kubeadm_was_given_is_undone_before_the_failure_is_written_down(phase: Phase) -> None:
    """Before it nothing was begun, and once the API server is ready others may have joined it."""

    async def scenario() -> None:
        world = World()
        lock = lock_in(world)
        await lock.try_lock(Flow.INIT, CLUSTER, b"work")
        if phase is not Phase.LOCKED:
            lock.advance(phase)
        seen: list[Phase] = []

        async def undo() -> None:
            assert world.lasting.record is not None
            seen.append(world.lasting.record.phase)

        with pytest.raises(Fatal):
            async with lock.for_good(undo):
                raise Fatal("kubeadm said no", advice="do this")
        assert seen == ([Phase.KUBEADM] if phase is Phase.KUBEADM else [])
        assert world.lasting.record is not None
        assert world.lasting.record.phase is Phase.FAILED

    run(scenario())
