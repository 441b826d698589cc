"""The whole process: what it finds at its start, what it ends with, and what it tells the operator."""

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
    """A node's disk, after a reboot."""
    return PersistentState(state=STATE, kubeadm="whole", member_of=CLUSTER)


def serving(environment: Environment, pair: bytes) -> None:
    async def given() -> bytes:
        return pair

    environment.machine.read_serving_certificate = given  # type: ignore[method-assign]


def certificate(life: timedelta) -> tuple[bytes, datetime]:
    """One for that long, with its key, and when it was made."""
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


def test_a_rebooted_node_neither_joins_nor_can_be_initialised() -> None:
    environment = Environment(persistent=rebooted())
    assert run(exit_code(environment)) == FINISHED
    assert not {"ticket", "open the door", "join", "reset"} & set(environment.calls)


def test_a_node_whose_configuration_is_gone_is_not_started_and_not_measured() -> None:
    environment = Environment(persistent=PersistentState(state=STATE))
    assert run(exit_code(environment)) == FATAL
    assert environment.persistent.register == ZERO
    assert "start kubelet" not in environment.calls


def test_a_kubelet_that_does_not_start_is_tried_again_and_then_fatal() -> None:
    environment = Environment(
        persistent=rebooted(), faults={"start kubelet": [Transient("systemd is busy")] * 2}
    )
    assert run(exit_code(environment)) == FINISHED
    environment = Environment(persistent=rebooted(), faults={"start kubelet": [Transient("masked")] * 100})
    assert run(exit_code(environment)) == FATAL
    again = environment.again(faults={})
    assert run(exit_code(again)) == FINISHED, "this failure can be mended without a reboot"
    assert again.persistent.extensions == 1


def test_a_finished_node_whose_process_is_started_again_only_sees_to_its_kubelet() -> None:
    environment = Environment()
    assert run(exit_code(environment)) == FINISHED
    environment.persistent.kubelet_runs = False
    again = environment.again()
    assert run(exit_code(again)) == FINISHED
    assert environment.persistent.kubelet_runs
    assert not {"ticket", "open the door", "join", "register extend"} & set(again.calls)


def started_again_when_due(environment: Environment) -> tuple[asyncio.Task[int], Environment]:
    """The process of a node that has been one since it booted, and whose serving certificate is due."""
    pem, made = certificate(timedelta(days=300))
    again = environment.again(now=made + timedelta(days=201))
    process = started(again)
    serving(again, pem)
    return process, again


def test_a_node_that_was_not_rebooted_renews_what_is_due_when_its_process_is_started_again() -> None:
    """Hazard 19: it would serve with a certificate that has run out, for as long as it is not rebooted."""

    async def scenario() -> None:
        environment = Environment()
        assert await exit_code(environment) == FINISHED
        process, again = started_again_when_due(environment)
        assert await process == FINISHED
        assert again.calls.index("start kubelet") < again.calls.index("renew serving")
        assert not {"ticket", "open the door", "join", "register extend"} & set(again.calls)

    run(scenario())


def test_a_renewal_does_not_keep_a_node_s_process_from_being_stopped() -> None:
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


def test_a_finished_node_whose_configuration_is_gone_is_not_started() -> None:
    environment = Environment()
    assert run(exit_code(environment)) == FINISHED
    environment.persistent.kubeadm = "half"
    again = environment.again()
    assert run(exit_code(again)) == FATAL
    assert "start kubelet" not in again.calls


def test_a_serving_certificate_is_renewed_when_two_thirds_of_its_life_are_over() -> None:
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


def test_a_renewal_that_fails_does_not_keep_the_node_from_starting() -> None:
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


def test_a_lone_control_plane_is_renewed_once_its_own_join_service_is_up() -> None:
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


def test_a_stop_while_a_renewal_is_tried_is_obeyed_and_nothing_is_begun() -> None:
    """An unmeasured node must not run its kubelet."""
    pem, made = certificate(timedelta(days=300))

    async def scenario() -> None:
        environment = Environment(persistent=rebooted(), now=made + timedelta(days=299))
        environment.faults["rejoin ticket"] = [Transient("nobody there")] * 1000
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


def test_where_there_is_no_certificate_of_ours_none_is_asked_for() -> None:
    assert renewals_of(b"") == 0


def test_a_pair_that_a_kubelet_cannot_serve_with_is_due_at_once() -> None:
    """However long it would have lasted."""
    one, other = (certificate(timedelta(days=300))[0] for _ in range(2))
    begins = b"-----BEGIN"
    (of_one, key), (_, of_other) = (
        (pair[: pair.rindex(begins)], pair[pair.rindex(begins) :]) for pair in (one, other)
    )
    assert renewals_of(of_one + key) == 0
    assert [renewals_of(each) for each in (of_one + of_other, of_one, key, b"garbage")] == [1, 1, 1, 1]


# --- what is told


def test_a_fatal_end_is_logged_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    environment = Environment(persistent=PersistentState(register=lock_value(b"\xcc" * 32)))
    assert run(exit_code(environment)) == FATAL
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "measured" in line.message
    assert "reboot" in vars(line)["fields"]["advice"]


def test_a_record_that_cannot_be_written_is_told_and_ends_the_process() -> None:
    async def scenario() -> int:
        environment = Environment(persistent=rebooted())
        process = started(environment)
        full = OperatorError("cannot write bootstrap-record.json: No space left on device")

        def save(record: BootstrapRecord) -> None:
            raise full

        environment.lock._records.save = save  # type: ignore[method-assign]
        return await process

    assert run(scenario()) == FATAL


def test_a_rejoin_whose_memory_is_gone_says_so() -> None:
    record = BootstrapRecord(Phase.LOCKED, Flow.REJOIN, CLUSTER)
    environment = Environment(persistent=PersistentState(record=record, register=lock_value(CLUSTER)))
    assert run(exit_code(environment)) == FATAL
    assert "start kubelet" not in environment.calls


def test_a_stop_before_the_lock_ends_both_at_once_and_nothing_was_begun() -> None:
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
def test_a_stop_that_came_before_the_start_is_heard(seed: int) -> None:
    async def scenario() -> None:
        environment = Environment(seed, slow=1.0, tickets=False)
        process = started(environment)
        environment.stop.set()
        assert await process == INTERRUPTED
        assert environment.persistent == PersistentState()

    run(scenario(), seed)


def test_a_stop_cuts_the_wait_for_a_watcher_short() -> None:
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
def test_a_process_that_is_torn_down_leaves_no_task(seed: int) -> None:
    """Whatever it was doing; the loop below complains about those that are left."""

    async def scenario() -> None:
        environment = Environment(seed, tickets=False, slow=1.0)
        process = started(environment)
        await environment.listener.opened.wait()
        user = tasks.spawn(environment.listener.call(init_request()), "user")
        await asyncio.sleep(seed / 4)
        await cancel_and_wait(user)
        await cancel_and_wait(process)

    run(scenario(), seed)


def test_a_defect_in_one_flow_ends_the_other_and_is_not_hidden() -> None:
    environment = Environment(faults={"myself": [ZeroDivisionError("a defect")]})
    with pytest.raises(ZeroDivisionError):
        run(exit_code(environment))
    assert environment.persistent == PersistentState()
