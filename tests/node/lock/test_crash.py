"""The process dies at every step, and starts again: after a crash, after a reboot, after several of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from bootbridge.common.failures import Transient
from bootbridge.node.init.messages import InitEvent
from bootbridge.node.lock.phases import Phase
from bootbridge.node.supervisor import FATAL, FINISHED
from bootbridge.runtime import tasks
from bootbridge.runtime.calls import CallFailed
from bootbridge.runtime.concurrency import ended
from bootbridge.trust.measurement import ZERO, lock_value
from tests.support import deterministic_loop
from tests.support.node_world import (
    INIT_MEASUREMENT,
    JOIN_MEASUREMENT,
    Lasting,
    World,
    cluster_of,
    init_request,
    quiet,
)

STEPS_MAX = 200


@dataclass
class User:
    """Wants one init, and comes back with the same ID and what was seen, however often the line breaks."""

    init_id: str = "one"
    events: list[InitEvent] = field(default_factory=list)

    async def insist(self, world: World) -> None:
        seen = max((event.number for event in self.events), default=0)
        await world.door.opened.wait()
        with suppress(CallFailed):
            await world.door.call_into(init_request(self.init_id, seen=seen), self.events, fetch=True)

    @property
    def kubeconfigs(self) -> list[bytes]:
        return [event.success.kubeconfig for event in self.events if event.success]


def lives(world: World, user: User | None, seed: int) -> int | None:
    """One process from start to exit code, or to its sudden end (None)."""
    return deterministic_loop.run(_lives(world, user), seed, may_leave=True)


async def _lives(world: World, user: User | None) -> int | None:
    supervisor = world.assemble()
    running = tasks.spawn(supervisor.run(world.stop), "process")
    gone = tasks.spawn(world.gone.wait(), "gone")
    calling = [tasks.spawn(user.insist(world), "user")] if user else []
    await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
    if world.dead:
        return None
    await ended(gone, *calling)
    return running.result()


def scenario(kind: str, seed: int) -> tuple[World, User | None]:
    world = World(seed, tickets=kind in ("join", "both"))
    if kind == "rejoin":
        world.lasting = member_before_reboot()
    return world, User() if kind in ("init", "both") else None


def member_before_reboot() -> Lasting:
    world = World()
    assert lives(world, None, 0) == FINISHED
    world.lasting.reboot()
    return world.lasting


def assert_one_membership(world: World) -> None:
    lasting = world.lasting
    assert not world.violations, world.violations
    assert lasting.state is not None
    assert lasting.member_of == lasting.state.cluster_id
    assert lasting.member_of in (cluster_of(INIT_MEASUREMENT), cluster_of(JOIN_MEASUREMENT))
    assert (lasting.kubeadm, lasting.kubelet_runs) == ("whole", True)
    assert lasting.extensions == 1
    assert lasting.register == lock_value(lasting.member_of)
    assert lasting.founded == (lasting.member_of == cluster_of(INIT_MEASUREMENT))
    assert lasting.record is not None
    assert lasting.record.phase is Phase.DONE
    assert (lasting.record.work, lasting.record.result) == (b"", b""), "secrets are kept for nothing"


def steps_of(kind: str) -> int:
    world, user = scenario(kind, 0)
    assert lives(world, user, 0) == FINISHED
    assert_one_membership(world)
    assert 10 < world.points < STEPS_MAX, "no steps to crash at"
    return world.points


@pytest.mark.parametrize("reboot", [False, True], ids=["restart", "reboot"])
@pytest.mark.parametrize("kind", ["init", "join", "rejoin", "both"])
def test_a_crash_at_any_step_ends_in_one_membership(kind: str, reboot: bool) -> None:
    """Measured once a boot, kubeadm only on a blank machine, no kubelet without its configuration."""
    with quiet():
        for step in range(steps_of(kind)):
            world, user = scenario(kind, step)
            world.crash_at = step
            assert lives(world, user, step) is None, f"step {step} was not reached"
            assert not world.violations
            measured_before = world.lasting.register
            if reboot:
                world.lasting.reboot()
            world = world.again()
            assert lives(world, user, step) == FINISHED, f"after a crash at step {step}"
            assert_one_membership(world)
            if not reboot and measured_before != ZERO:
                assert world.lasting.register == measured_before


@pytest.mark.parametrize("reboot", [False, True], ids=["restart", "reboot"])
@pytest.mark.parametrize("kind", ["init", "join"])
def test_what_fails_for_good_leaves_a_blank_machine_whenever_it_crashed(kind: str, reboot: bool) -> None:
    """Blank before the failure is written down: a crash in between only makes it fail once more."""

    def failing(seed: int) -> tuple[World, User | None]:
        world, user = scenario(kind, seed)
        world.faults[kind] = [Transient("kubeadm said no") for _ in range(STEPS_MAX)]
        return world, user

    with quiet():
        whole, user = failing(0)
        assert lives(whole, user, 0) == FATAL
        for step in range(whole.points):
            world, user = failing(step)
            world.crash_at = step
            assert lives(world, user, step) is None, f"step {step} was not reached"
            if reboot:
                world.lasting.reboot()
            world = world.again()
            assert lives(world, user, step) == FATAL, f"after a crash at step {step}"
            lasting = world.lasting
            assert not world.violations
            assert (lasting.kubeadm, lasting.files, lasting.kubelet_runs) == ("", False, False)
            assert lasting.record is not None
            assert (lasting.record.phase, lasting.record.work) == (Phase.FAILED, b"")


def test_a_cluster_that_others_may_have_joined_is_not_reset_by_a_crash() -> None:
    """From the moment its API server was ready; before that a reset comes first."""
    met = set()
    with quiet():
        for step in range(steps_of("init")):
            world, user = scenario("init", step)
            world.crash_at = step
            lives(world, user, step)
            record = world.lasting.record
            phase = record.phase if record else None
            met.add(phase)
            world = world.again()
            assert lives(world, user, step) == FINISHED
            if phase in (Phase.FOUNDING, Phase.DONE):
                assert not {"reset", "init"} & set(world.calls), f"after a crash at step {step}"
            if phase is Phase.KUBEADM:
                assert world.calls.index("reset") < world.calls.index("init")
    assert met == {None, Phase.LOCKING, Phase.LOCKED, Phase.KUBEADM, Phase.FOUNDING, Phase.DONE}


def test_a_user_gets_the_kubeconfig_whenever_the_instance_crashed() -> None:
    """By asking again with the same ID; no event is told twice."""
    with quiet():
        for step in range(steps_of("init")):
            world, user = scenario("init", step)
            assert user is not None
            world.crash_at = step
            lives(world, user, step)
            lives(world.again(), user, step)
            assert user.kubeconfigs[:1] == [b"kubeconfig"], f"after a crash at step {step}"
            numbers = [event.number for event in user.events]
            assert numbers == sorted(set(numbers))


def test_crash_after_crash_after_reboot_still_ends_in_one_membership() -> None:
    with quiet():
        for seed in range(300):
            chance = Random(seed)
            world, user = scenario(chance.choice(("init", "join", "rejoin", "both")), seed)
            for _ in range(chance.randint(1, 5)):
                world.crash_at = chance.randrange(60)
                if lives(world, user, seed) is not None:
                    break
                assert not world.violations
                if chance.random() < 0.3:
                    world.lasting.reboot()
                world = world.again()
            world = world.again()
            assert lives(world, user, seed) == FINISHED, f"seed {seed}"
            assert_one_membership(world)
