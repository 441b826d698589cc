"""The whole process: rejoin after a reboot, restarts, renewals, stops and failures."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from bootbridge.common.failures import PeerRefused, Transient
from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import Role
from bootbridge.node.lock.bootstrap_record import BootstrapRecord, Flow, Phase
from bootbridge.node.lock.node_state import NodeState
from bootbridge.node.supervisor import FATAL, FINISHED, INTERRUPTED
from bootbridge.runtime import tasks
from bootbridge.runtime.concurrency import cancel_and_wait
from bootbridge.trust.authority import Authority
from bootbridge.trust.measurement import ZERO, lock_value
from tests.support.deterministic_loop import run
from tests.support.node_environment import (
    JOIN_MEASUREMENT,
    Environment,
    PersistentState,
    cluster_of,
    exit_code,
    init_request,
    started,
    until,
)

CLUSTER = cluster_of(JOIN_MEASUREMENT)
STATE = NodeState(Role.WORKER, "node-7", CLUSTER)


def rebooted() -> PersistentState:
    """The persistent state of a node after a reboot."""
    return PersistentState(state=STATE, kubeadm="whole", member_of=CLUSTER)


def serving(environment: Environment, pair: bytes) -> None:
    async def given() -> bytes:
        return pair

    environment.machine.read_serving_certificate = given  # type: ignore[method-assign]


def certificate(life: timedelta) -> tuple[bytes, datetime]:
    """Returns a certificate with its key, and its start."""
    made = datetime.now(UTC)
    authority = Authority.create("test", validity=timedelta(days=3650))
    issued = authority.issue_server(["node-7"], validity=life)
    return issued.cert_pem + issued.key_pem, made


# --- rejoin


def test_a_rebooted_node_is_measured_again_and_its_kubelet_started() -> None:
    environment = Environment(persistent=rebooted())
    assert run(exit_code(environment)) == FINISHED
    assert environment.persistent.register == lock_value(CLUSTER)
    assert environment.persistent.kubelet_runs
    assert environment.calls.index("register extend") < environment.calls.index("start kubelet")


def test_a_rebooted_node_neither_joins_nor_accepts_an_init() -> None:
    environment = Environment(persistent=rebooted())
    assert run(exit_code(environment)) == FINISHED
    assert not {"ticket", "open listener", "join", "reset"} & set(environment.calls)


def test_a_node_without_kubelet_configuration_is_neither_measured_nor_started() -> None:
    environment = Environment(persistent=PersistentState(state=STATE))
    assert run(exit_code(environment)) == FATAL
    assert environment.persistent.register == ZERO
    assert "start kubelet" not in environment.calls


def test_a_failed_kubelet_start_is_retried_and_then_fatal() -> None:
    environment = Environment(
        persistent=rebooted(), faults={"start kubelet": [Transient("systemd is busy")] * 2}
    )
    assert run(exit_code(environment)) == FINISHED
    environment = Environment(persistent=rebooted(), faults={"start kubelet": [Transient("masked")] * 100})
    assert run(exit_code(environment)) == FATAL
    again = environment.again(faults={})
    assert run(exit_code(again)) == FINISHED, "this failure can be fixed without a reboot"
    assert again.persistent.extensions == 1


def test_a_restart_on_a_finished_node_only_starts_the_kubelet() -> None:
    environment = Environment()
    assert run(exit_code(environment)) == FINISHED
    environment.persistent.kubelet_runs = False
    again = environment.again()
    assert run(exit_code(again)) == FINISHED
    assert environment.persistent.kubelet_runs
    assert not {"ticket", "open listener", "join", "register extend"} & set(again.calls)


def started_again_when_due(environment: Environment) -> tuple[asyncio.Task[int], Environment]:
    """Starts the process of a running node whose serving certificate is due."""
    pem, made = certificate(timedelta(days=300))
    again = environment.again(now=made + timedelta(days=201))
    process = started(again)
    serving(again, pem)
    return process, again


def test_a_restart_without_reboot_renews_a_due_certificate() -> None:
    """Otherwise the certificate would expire if the node is never rebooted."""

    async def scenario() -> None:
        environment = Environment()
        assert await exit_code(environment) == FINISHED
        process, again = started_again_when_due(environment)
        assert await process == FINISHED
        assert again.calls.index("start kubelet") < again.calls.index("renew serving")
        assert not {"ticket", "open listener", "join", "register extend"} & set(again.calls)

    run(scenario())


def test_a_stop_interrupts_a_renewal() -> None:
    async def scenario() -> None:
        environment = Environment()
        assert await exit_code(environment) == FINISHED
        environment.faults["rejoin ticket"] = [PeerRefused("not now")] * 1000
        process, again = started_again_when_due(environment)
        await until(lambda: "rejoin ticket" in again.calls)
        began = asyncio.get_running_loop().time()
        again.stop.set()
        assert await process == FINISHED
        assert asyncio.get_running_loop().time() - began < 1, "the time here is virtual"

    run(scenario())


def test_a_finished_node_without_kubelet_configuration_is_not_started() -> None:
    environment = Environment()
    assert run(exit_code(environment)) == FINISHED
    environment.persistent.kubeadm = "half"
    again = environment.again()
    assert run(exit_code(again)) == FATAL
    assert "start kubelet" not in again.calls


def test_a_serving_certificate_is_renewed_after_two_thirds_of_its_validity() -> None:
    pem, made = certificate(timedelta(days=300))

    async def renewals(after: timedelta) -> list[str]:
        environment = Environment(persistent=rebooted(), now=made + after)
        process = started(environment)
        serving(environment, pem)
        assert await process == FINISHED
        return [
            each
            for each in environment.calls
            if each in ("renew serving", "register extend", "start kubelet")
        ]

    assert run(renewals(timedelta(days=199))) == ["register extend", "start kubelet"]
    # While the register is still zero: join policies ask for that.
    assert run(renewals(timedelta(days=201))) == ["renew serving", "register extend", "start kubelet"]


def test_a_failed_renewal_does_not_block_the_node() -> None:
    pem, made = certificate(timedelta(days=300))

    async def scenario() -> None:
        environment = Environment(persistent=rebooted(), now=made + timedelta(days=299))
        environment.faults["rejoin ticket"] = [PeerRefused("this key is not known")] * 1000
        process = started(environment)
        serving(environment, pem)
        assert await process == FINISHED
        assert environment.persistent.kubelet_runs
        assert "renew serving" not in environment.calls
        assert asyncio.get_running_loop().time() < 300

    run(scenario())


def test_a_single_control_plane_renews_once_its_own_join_service_runs() -> None:
    pem, made = certificate(timedelta(days=300))

    async def scenario() -> None:
        environment = Environment(persistent=rebooted(), now=made + timedelta(days=299))
        process = started(environment)
        serving(environment, pem)

        async def endpoints() -> tuple[tuple[str, int], ...]:
            return (("10.0.0.1", 30090),) if environment.persistent.kubelet_runs else ()

        object.__setattr__(environment.join_client._sources, "endpoints", endpoints)
        assert await process == FINISHED
        assert environment.calls.index("start kubelet") < environment.calls.index("renew serving")

    run(scenario())


def test_a_stop_during_the_renewal_before_the_lock_starts_nothing() -> None:
    """An unmeasured node must not run its kubelet."""
    pem, made = certificate(timedelta(days=300))

    async def scenario() -> None:
        environment = Environment(persistent=rebooted(), now=made + timedelta(days=299))
        environment.faults["rejoin ticket"] = [Transient("connection refused")] * 1000
        process = started(environment)
        serving(environment, pem)
        await until(lambda: "rejoin ticket" in environment.calls)
        environment.stop.set()
        assert await process == INTERRUPTED
        assert not environment.persistent.kubelet_runs
        assert (environment.persistent.record, environment.persistent.register) == (None, ZERO)

    run(scenario())


def renewals_of(pair: bytes) -> int:
    async def scenario() -> int:
        environment = Environment(persistent=rebooted())
        process = started(environment)
        serving(environment, pair)
        assert await process == FINISHED
        return environment.calls.count("renew serving")

    return run(scenario())


def test_without_a_certificate_of_ours_none_is_requested() -> None:
    assert renewals_of(b"") == 0


def test_an_invalid_certificate_pair_is_due_at_once() -> None:
    """Regardless of its validity."""
    one, other = (certificate(timedelta(days=300))[0] for _ in range(2))
    begins = b"-----BEGIN"
    (of_one, key), (_, of_other) = (
        (pair[: pair.rindex(begins)], pair[pair.rindex(begins) :]) for pair in (one, other)
    )
    assert renewals_of(of_one + key) == 0
    assert [renewals_of(each) for each in (of_one + of_other, of_one, key, b"garbage")] == [1, 1, 1, 1]


# --- logs and failures


def test_a_fatal_failure_is_logged_with_advice(caplog: pytest.LogCaptureFixture) -> None:
    environment = Environment(persistent=PersistentState(register=lock_value(b"\xcc" * 32)))
    assert run(exit_code(environment)) == FATAL
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "measured" in line.message
    assert "reboot" in vars(line)["fields"]["advice"]


def test_an_unwritable_record_is_logged_and_ends_the_process() -> None:
    async def scenario() -> int:
        environment = Environment(persistent=rebooted())
        process = started(environment)
        full = OperatorError("cannot write bootstrap-record.json: No space left on device")

        def save(record: BootstrapRecord) -> None:
            raise full

        environment.lock._records.save = save  # type: ignore[method-assign]
        return await process

    assert run(scenario()) == FATAL


def test_a_rejoin_without_node_state_is_fatal() -> None:
    record = BootstrapRecord(Phase.LOCKED, Flow.REJOIN, CLUSTER)
    environment = Environment(persistent=PersistentState(record=record, register=lock_value(CLUSTER)))
    assert run(exit_code(environment)) == FATAL
    assert "start kubelet" not in environment.calls


def test_a_stop_before_the_lock_ends_init_and_join_at_once() -> None:
    async def scenario() -> None:
        environment = Environment(tickets=False)
        process = started(environment)
        await environment.listener.opened.wait()
        environment.stop.set()
        assert await process == INTERRUPTED
        assert environment.listener.closed.is_set()
        assert environment.persistent == PersistentState()

    run(scenario())


@pytest.mark.parametrize("seed", range(10))
def test_a_stop_before_the_start_takes_effect(seed: int) -> None:
    async def scenario() -> None:
        environment = Environment(seed, slow=1.0, tickets=False)
        process = started(environment)
        environment.stop.set()
        assert await process == INTERRUPTED
        assert environment.persistent == PersistentState()

    run(scenario(), seed)


def test_a_stop_ends_the_wait_for_an_acknowledgement() -> None:
    async def scenario() -> None:
        environment = Environment(tickets=False, linger=10_000)
        process = started(environment)
        await environment.listener.opened.wait()
        watcher = tasks.spawn(environment.listener.call(init_request()), "user")
        await until(lambda: environment.persistent.state)
        watcher.cancel()
        environment.stop.set()
        assert await process == FINISHED
        assert asyncio.get_running_loop().time() < 60

    run(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_a_cancelled_process_leaves_no_task(seed: int) -> None:
    """The event loop of the test fails if a task is left."""

    async def scenario() -> None:
        environment = Environment(seed, tickets=False, slow=1.0)
        process = started(environment)
        await environment.listener.opened.wait()
        user = tasks.spawn(environment.listener.call(init_request()), "user")
        await asyncio.sleep(seed / 4)
        await cancel_and_wait(user)
        await cancel_and_wait(process)

    run(scenario(), seed)


def test_an_internal_error_in_one_flow_ends_the_other_and_is_raised() -> None:
    environment = Environment(faults={"myself": [ZeroDivisionError("a defect")]})
    with pytest.raises(ZeroDivisionError):
        run(exit_code(environment))
    assert environment.persistent == PersistentState()
