"""The one-way lock: one winner, one measurement, and the restart after a crash."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bootbridge.common.failures import Fatal, Transient
from bootbridge.node.lock.bootstrap_record import BootstrapRecord, Flow, Phase
from bootbridge.node.lock.node_lock import NodeLock
from bootbridge.trust.key_hierarchy import cluster_id
from bootbridge.trust.measurement import ZERO, after_event, lock_value
from tests.support.deterministic_loop import run
from tests.support.node_environment import Environment, FakeRecordStore, FakeRegister

CLUSTER = b"\xaa" * 32


async def nothing() -> None: ...


def lock_in(environment: Environment) -> NodeLock:
    environment.gone = asyncio.Event()
    return NodeLock(FakeRecordStore(environment), FakeRegister(environment))


def test_the_register_after_locking_is_the_known_vector() -> None:
    """The constants were computed with another implementation."""
    cluster = cluster_id(bytes(range(32)), bytes(range(32, 64)))
    assert cluster.hex() == "128c164378fe8767f998fbdfe4b4d6463ec5ae1b664ea5999bc27417607ae9b6"
    assert lock_value(cluster).hex() == "23400370357e846478cce7cc0c76cdfe4da077cc57b36dee0f665ede2c8b3f2f"


@pytest.mark.parametrize("seed", range(20))
def test_one_of_many_concurrent_callers_gets_the_lock(seed: int) -> None:
    async def scenario() -> None:
        environment = Environment(seed, slow=1.0)
        lock = lock_in(environment)
        clusters = [bytes([number]) * 32 for number in range(11)]
        answers = await asyncio.gather(*(lock.try_lock(Flow.JOIN, each, b"work") for each in clusters))
        assert answers.count(True) == 1
        assert environment.persistent.extensions == 1
        winner = clusters[answers.index(True)]
        assert environment.persistent.register == lock_value(winner)
        assert environment.persistent.record == BootstrapRecord(Phase.LOCKED, Flow.JOIN, winner, b"work")
        assert not await lock.try_lock(Flow.INIT, CLUSTER, b"")

    run(scenario(), seed)


def test_a_caller_without_the_lock_changes_neither_register_nor_record() -> None:
    async def scenario() -> None:
        environment = Environment()
        lock = lock_in(environment)
        await lock.try_lock(Flow.INIT, CLUSTER, b"the winner's")
        before, calls, points = replace(environment.persistent), list(environment.calls), environment.points
        assert not await lock.try_lock(Flow.JOIN, b"\xbb" * 32, b"the loser's")
        assert (environment.persistent, environment.calls, environment.points) == (before, calls, points)
        assert lock.holder is Flow.INIT

    run(scenario())


def test_the_record_is_written_before_the_measurement() -> None:
    """Otherwise a crash right after the measurement would leave a register without a record."""

    async def scenario() -> None:
        environment = Environment()
        lock = lock_in(environment)
        seen: list[BootstrapRecord | None] = []

        class Watching(FakeRegister):
            async def extend(self, data: bytes) -> None:
                seen.append(environment.persistent.record)
                await super().extend(data)

        lock = NodeLock(FakeRecordStore(environment), Watching(environment))
        await lock.try_lock(Flow.JOIN, CLUSTER, b"work")
        assert seen == [BootstrapRecord(Phase.LOCKING, Flow.JOIN, CLUSTER, b"work")]

    run(scenario())


@pytest.mark.parametrize("call", ["register read", "register extend"])
def test_a_failing_register_is_fatal_and_the_lock_stays_taken(call: str) -> None:
    async def scenario() -> None:
        environment = Environment(faults={call: [Transient("the TPM is busy")]})
        lock = lock_in(environment)
        with pytest.raises(Fatal, match="the TPM is busy") as caught:
            await lock.try_lock(Flow.JOIN, CLUSTER, b"")
        assert "reboot" in caught.value.advice
        assert lock.holder is Flow.JOIN
        assert not await lock.try_lock(Flow.INIT, CLUSTER, b"")

    run(scenario())


def test_a_restart_does_not_resume_a_failed_lock() -> None:
    """The failure was already reported."""

    async def scenario() -> None:
        environment = Environment(faults={"register extend": [Transient("the TPM is busy")]})
        with pytest.raises(Fatal):
            await lock_in(environment).try_lock(Flow.INIT, CLUSTER, b"secrets")
        with pytest.raises(Fatal, match="the TPM is busy"):
            await lock_in(environment).restore()
        assert environment.persistent.extensions == 0
        assert environment.persistent.record is not None
        assert environment.persistent.record.inputs == b""

    run(scenario())


def test_an_instance_that_was_measured_for_another_cluster_is_not_measured_again() -> None:
    async def scenario() -> None:
        environment = Environment()
        environment.persistent.register = lock_value(b"\xcc" * 32)
        with pytest.raises(Fatal, match="another cluster"):
            await lock_in(environment).try_lock(Flow.JOIN, CLUSTER, b"")
        assert environment.persistent.extensions == 0
        assert environment.persistent.record is None

    run(scenario())


def test_a_closed_lock_cannot_be_taken() -> None:
    async def scenario() -> None:
        environment = Environment()
        lock = lock_in(environment)
        lock.close()
        await lock.wait_until_decided()
        assert not await lock.try_lock(Flow.INIT, CLUSTER, b"")
        assert lock.holder is None
        assert not environment.calls

    run(scenario())


LOCKING = BootstrapRecord(Phase.LOCKING, Flow.JOIN, CLUSTER, b"work")


@pytest.mark.parametrize(
    ("record", "register", "extensions"),
    [
        (LOCKING, ZERO, 1),
        (LOCKING, lock_value(CLUSTER), 0),
        (replace(LOCKING, phase=Phase.LOCKED), lock_value(CLUSTER), 0),
        (replace(LOCKING, phase=Phase.KUBEADM), lock_value(CLUSTER), 0),
        (replace(LOCKING, phase=Phase.JOIN_SERVICE), lock_value(CLUSTER), 0),
    ],
    ids=["not measured yet", "measured, not noted", "locked", "kubeadm", "join service"],
)
def test_a_restart_resumes_the_recorded_flow(
    record: BootstrapRecord, register: bytes, extensions: int
) -> None:
    async def scenario() -> None:
        environment = Environment()
        environment.persistent.record, environment.persistent.register = record, register
        lock = lock_in(environment)
        restored = await lock.restore()
        assert restored is not None
        assert restored.phase is (Phase.LOCKED if record.phase is Phase.LOCKING else record.phase)
        assert (restored.inputs, restored.resumed) == (b"work", 1)
        assert environment.persistent.record == restored
        assert environment.persistent.extensions == extensions
        assert lock.holder is Flow.JOIN
        assert not await lock.try_lock(Flow.INIT, CLUSTER, b"")

    run(scenario())


@pytest.mark.parametrize("phase", [each for each in Phase if each is not Phase.FAILED])
@pytest.mark.parametrize("register", [lock_value(b"\xcc" * 32), after_event(lock_value(CLUSTER), CLUSTER)])
def test_a_register_that_contradicts_the_record_is_fatal(phase: Phase, register: bytes) -> None:
    async def scenario() -> None:
        environment = Environment()
        environment.persistent.record, environment.persistent.register = (
            replace(LOCKING, phase=phase),
            register,
        )
        with pytest.raises(Fatal) as caught:
            await lock_in(environment).restore()
        assert "reboot" in caught.value.advice
        assert environment.persistent.extensions == 0

    run(scenario())


def test_a_measured_register_without_a_record_is_fatal_unless_the_node_state_matches() -> None:
    async def scenario() -> None:
        environment = Environment()
        environment.persistent.register = lock_value(CLUSTER)
        with pytest.raises(Fatal, match="no bootstrap record"):
            await lock_in(environment).restore()
        assert await lock_in(environment).restore(CLUSTER) is None

    run(scenario())


def test_a_restart_repeats_the_failure_and_the_record_has_no_secrets() -> None:
    async def scenario() -> None:
        environment = Environment()
        lock = lock_in(environment)
        await lock.try_lock(Flow.JOIN, CLUSTER, b"work")
        with pytest.raises(Fatal):
            async with lock.recording_failure(nothing):
                raise Fatal("kubeadm failed", advice="do this")
        assert environment.persistent.record is not None
        assert environment.persistent.record.inputs == b""
        with pytest.raises(Fatal, match="kubeadm failed") as caught:
            await lock_in(environment).restore()
        assert caught.value.advice == "do this"

    run(scenario())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Transient("later")])
def test_every_failure_after_the_lock_is_fatal_with_advice(error: Exception) -> None:
    async def scenario() -> None:
        lock = lock_in(Environment())
        await lock.try_lock(Flow.JOIN, CLUSTER, b"work")
        with pytest.raises(Fatal) as caught:
            async with lock.recording_failure(nothing):
                raise error
        assert caught.value.advice

    run(scenario())


@pytest.mark.parametrize("phase", [Phase.LOCKED, Phase.KUBEADM, Phase.JOIN_SERVICE])
def test_undo_runs_in_phase_kubeadm_before_the_failure_is_recorded(phase: Phase) -> None:
    """Before that phase nothing was changed; after it other nodes may have joined."""

    async def scenario() -> None:
        environment = Environment()
        lock = lock_in(environment)
        await lock.try_lock(Flow.INIT, CLUSTER, b"work")
        if phase is not Phase.LOCKED:
            lock.advance(phase)
        seen: list[Phase] = []

        async def undo() -> None:
            assert environment.persistent.record is not None
            seen.append(environment.persistent.record.phase)

        with pytest.raises(Fatal):
            async with lock.recording_failure(undo):
                raise Fatal("kubeadm failed", advice="do this")
        assert seen == ([Phase.KUBEADM] if phase is Phase.KUBEADM else [])
        assert environment.persistent.record is not None
        assert environment.persistent.record.phase is Phase.FAILED

    run(scenario())
