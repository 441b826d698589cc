"""The process crashes at every step and is restarted, with and without reboots."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from bootbridge.common.failures import Transient
from bootbridge.node.init.messages import InitEvent
from bootbridge.node.lock.bootstrap_record import Phase
from bootbridge.node.supervisor import FATAL, FINISHED
from bootbridge.runtime import tasks
from bootbridge.runtime.concurrency import cancel_and_wait
from bootbridge.runtime.grpc import RpcError
from bootbridge.trust.measurement import ZERO, lock_value
from tests.support import deterministic_loop
from tests.support.node_environment import (
    INIT_MEASUREMENT,
    JOIN_MEASUREMENT,
    Environment,
    PersistentState,
    cluster_of,
    init_request,
    quiet,
)

STEPS_MAX = 200


@dataclass
class User:
    """Requests one init and reconnects with the same ID after every lost connection."""

    init_id: str = "one"
    events: list[InitEvent] = field(default_factory=list)

    async def insist(self, environment: Environment) -> None:
        seen = max((event.number for event in self.events), default=0)
        await environment.listener.opened.wait()
        with suppress(RpcError):
            await environment.listener.call_into(
                init_request(self.init_id, seen=seen), self.events, acknowledge=True
            )

    @property
    def kubeconfigs(self) -> list[bytes]:
        return [event.success.kubeconfig for event in self.events if event.success]


def lives(environment: Environment, user: User | None, seed: int) -> int | None:
    """Runs one process; returns its exit code, or None if it crashed."""
    return deterministic_loop.run(_lives(environment, user), seed, may_leave=True)


async def _lives(environment: Environment, user: User | None) -> int | None:
    supervisor = environment.assemble()
    running = tasks.spawn(supervisor.run(environment.stop), "process")
    gone = tasks.spawn(environment.gone.wait(), "gone")
    calling = [tasks.spawn(user.insist(environment), "user")] if user else []
    await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
    if environment.dead:
        return None
    await cancel_and_wait(gone, *calling)
    return running.result()


def scenario(kind: str, seed: int) -> tuple[Environment, User | None]:
    environment = Environment(seed, tickets=kind in ("join", "both"))
    if kind == "rejoin":
        environment.persistent = member_before_reboot()
    return environment, User() if kind in ("init", "both") else None


def member_before_reboot() -> PersistentState:
    environment = Environment()
    assert lives(environment, None, 0) == FINISHED
    environment.persistent.reboot()
    return environment.persistent


def assert_one_membership(environment: Environment) -> None:
    persistent = environment.persistent
    assert not environment.violations, environment.violations
    assert persistent.state is not None
    assert persistent.member_of == persistent.state.cluster_id
    assert persistent.member_of in (cluster_of(INIT_MEASUREMENT), cluster_of(JOIN_MEASUREMENT))
    assert (persistent.kubeadm, persistent.kubelet_runs) == ("whole", True)
    assert persistent.extensions == 1
    assert persistent.register == lock_value(persistent.member_of)
    assert persistent.join_service_deployed == (persistent.member_of == cluster_of(INIT_MEASUREMENT))
    assert persistent.record is not None
    assert persistent.record.phase is Phase.DONE
    assert (persistent.record.inputs, persistent.record.result) == (b"", b""), "secrets are kept for nothing"


def steps_of(kind: str) -> int:
    environment, user = scenario(kind, 0)
    assert lives(environment, user, 0) == FINISHED
    assert_one_membership(environment)
    assert 10 < environment.points < STEPS_MAX, "no steps to crash at"
    return environment.points


@pytest.mark.parametrize("reboot", [False, True], ids=["restart", "reboot"])
@pytest.mark.parametrize("kind", ["init", "join", "rejoin", "both"])
def test_a_crash_at_any_step_ends_in_one_membership(kind: str, reboot: bool) -> None:
    """Measured once per boot; kubeadm runs only on a blank machine; no kubelet without configuration."""
    with quiet():
        for step in range(steps_of(kind)):
            environment, user = scenario(kind, step)
            environment.crash_at = step
            assert lives(environment, user, step) is None, f"step {step} was not reached"
            assert not environment.violations
            measured_before = environment.persistent.register
            if reboot:
                environment.persistent.reboot()
            environment = environment.again()
            assert lives(environment, user, step) == FINISHED, f"after a crash at step {step}"
            assert_one_membership(environment)
            if not reboot and measured_before != ZERO:
                assert environment.persistent.register == measured_before


@pytest.mark.parametrize("reboot", [False, True], ids=["restart", "reboot"])
@pytest.mark.parametrize("kind", ["init", "join"])
def test_a_final_failure_leaves_a_blank_machine_after_a_crash_at_any_step(kind: str, reboot: bool) -> None:
    """The machine is reset before the failure is recorded; after a crash in between it fails again."""

    def failing(seed: int) -> tuple[Environment, User | None]:
        environment, user = scenario(kind, seed)
        environment.faults[kind] = [Transient("kubeadm failed") for _ in range(STEPS_MAX)]
        return environment, user

    with quiet():
        whole, user = failing(0)
        assert lives(whole, user, 0) == FATAL
        for step in range(whole.points):
            environment, user = failing(step)
            environment.crash_at = step
            assert lives(environment, user, step) is None, f"step {step} was not reached"
            if reboot:
                environment.persistent.reboot()
            environment = environment.again()
            assert lives(environment, user, step) == FATAL, f"after a crash at step {step}"
            persistent = environment.persistent
            assert not environment.violations
            assert (persistent.kubeadm, persistent.files, persistent.kubelet_runs) == ("", False, False)
            assert persistent.record is not None
            assert (persistent.record.phase, persistent.record.inputs) == (Phase.FAILED, b"")


def test_a_crash_after_the_api_server_was_ready_does_not_cause_a_reset() -> None:
    """Other nodes may have joined; before that a restart resets first."""
    met = set()
    with quiet():
        for step in range(steps_of("init")):
            environment, user = scenario("init", step)
            environment.crash_at = step
            lives(environment, user, step)
            record = environment.persistent.record
            phase = record.phase if record else None
            met.add(phase)
            environment = environment.again()
            assert lives(environment, user, step) == FINISHED
            if phase in (Phase.JOIN_SERVICE, Phase.DONE):
                assert not {"reset", "init"} & set(environment.calls), f"after a crash at step {step}"
            if phase is Phase.KUBEADM:
                assert environment.calls.index("reset") < environment.calls.index("init")
    assert met == {None, Phase.LOCKING, Phase.LOCKED, Phase.KUBEADM, Phase.JOIN_SERVICE, Phase.DONE}


def test_the_client_gets_the_kubeconfig_after_a_crash_at_any_step() -> None:
    """By reconnecting with the same ID; no event is sent twice."""
    with quiet():
        for step in range(steps_of("init")):
            environment, user = scenario("init", step)
            assert user is not None
            environment.crash_at = step
            lives(environment, user, step)
            lives(environment.again(), user, step)
            assert user.kubeconfigs[:1] == [b"kubeconfig"], f"after a crash at step {step}"
            numbers = [event.number for event in user.events]
            assert numbers == sorted(set(numbers))


def test_repeated_crashes_and_reboots_end_in_one_membership() -> None:
    with quiet():
        for seed in range(300):
            chance = Random(seed)
            environment, user = scenario(chance.choice(("init", "join", "rejoin", "both")), seed)
            for _ in range(chance.randint(1, 5)):
                environment.crash_at = chance.randrange(60)
                if lives(environment, user, seed) is not None:
                    break
                assert not environment.violations
                if chance.random() < 0.3:
                    environment.persistent.reboot()
                environment = environment.again()
            environment = environment.again()
            assert lives(environment, user, seed) == FINISHED, f"seed {seed}"
            assert_one_membership(environment)


def test_a_restart_repeats_the_join_unless_the_node_state_was_written() -> None:
    """Otherwise a crash after the lock would look like a finished bootstrap, and the kubelet would start."""
    for step in range(STEPS_MAX):
        environment = Environment(crash_at=step)
        if lives(environment, None, 0) is not None:
            break
        unfinished = environment.persistent.state is None
        again = environment.again()
        assert lives(again, None, 0) == FINISHED
        assert not again.violations
        assert ("join" in again.calls) is unfinished, f"after a crash at step {step}"
    assert step > 10
