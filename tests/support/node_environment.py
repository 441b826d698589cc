"""A simulated environment of one instance: disk, tmpfs, register, kubeadm, join service and client.

Every call takes a random time and may be the point at which the process crashes. A crash keeps the disk and,
until the next boot, the tmpfs and the register.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from ipaddress import ip_address
from random import Random
from typing import Any

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import MetadataUnavailable, Transient
from bootbridge.errors import OperatorError
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.components import Component
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.kubeadm_defaults import CONTROL_PLANE_FILES
from bootbridge.join_api.messages import (
    ControlPlaneFile,
    RejoinRequest,
    RejoinTicket,
    Ticket,
    TicketRequest,
)
from bootbridge.node.init.events import InitEvent
from bootbridge.node.init.flow import InitFlow
from bootbridge.node.init.listener import HandlersFor
from bootbridge.node.init.log_buffer import LogBuffer
from bootbridge.node.init.messages import ACKNOWLEDGE, INIT, InitRequest, StageEvent
from bootbridge.node.init.server import InitServer, InitSources
from bootbridge.node.join.client import JoinClient
from bootbridge.node.join.endpoints import Address
from bootbridge.node.join.flow import JoinFlow
from bootbridge.node.join.rejoin import Rejoin
from bootbridge.node.join.serving_renewal import ServingRenewal
from bootbridge.node.join.sources import JoinSources
from bootbridge.node.kubelet_csr import KeyAndCsr
from bootbridge.node.lock.bootstrap_record import BootstrapRecord
from bootbridge.node.lock.node_lock import ZERO, NodeLock
from bootbridge.node.lock.node_state import NodeState
from bootbridge.node.machine import JoinServiceSetup
from bootbridge.node.stages import ProgressCallback
from bootbridge.node.supervisor import FINISHED, Supervisor
from bootbridge.runtime import tasks
from bootbridge.runtime.concurrency import Turn
from bootbridge.runtime.grpc import RpcError
from bootbridge.trust import key_hierarchy
from bootbridge.trust.measurement import after_event
from bootbridge.wire import grpc_messages as grpc
from tests.support import deterministic_loop

SECRET = b"the init secret of this instance"
INIT_MEASUREMENT = (b"\x01" * 32, b"\x02" * 32)
JOIN_MEASUREMENT = (b"\x03" * 32, b"\x04" * 32)
SPEC = ClusterSpec("v1.36.3").dump()
INSTANCE = Instance("node-7", Role.CONTROL_PLANE, (ip_address("10.0.0.7"),))


@cache
def cluster_of(measurement: tuple[bytes, bytes]) -> bytes:
    return key_hierarchy.cluster_id(*measurement)


class CrashError(BaseException):
    """Simulates a crash; no code of the process may catch it."""


@dataclass
class PersistentState:
    """The state that survives a crash."""

    # Until the next boot
    record: BootstrapRecord | None = None
    register: bytes = ZERO
    extensions: int = 0
    kubelet_runs: bool = False
    # Across reboots
    state: NodeState | None = None
    files: bool = False
    kubeadm: str = ""  # "", "half" or "whole"
    member_of: bytes = b""
    join_service_deployed: bool = False

    def reboot(self) -> None:
        self.record, self.register, self.extensions, self.kubelet_runs = None, ZERO, 0, False


@dataclass
class Environment:
    """One process on one instance; `again()` returns the next process on the same instance."""

    seed: int = 0
    persistent: PersistentState = field(default_factory=PersistentState)
    instance: Instance = INSTANCE
    secret_hash: str = "hash"
    slow: float = 0.0  # seconds that a port call may take at most
    crash_at: int = -1  # the point at which the process dies
    faults: dict[str, list[Exception]] = field(default_factory=dict)  # exceptions of the next calls, by name
    tickets: bool = True
    addresses: tuple[Address, ...] = (("10.0.0.1", 30090),)
    ticket_changes: dict[str, Any] = field(default_factory=dict)
    now: datetime = datetime(2026, 11, 16, tzinfo=UTC)
    booted_before: float = 0.0  # seconds of this boot when the process starts
    linger: float = 120.0
    calls: list[str] = field(default_factory=list)
    points: int = 0
    dead: bool = False

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self.violations: list[str] = []

    def again(self, **changes: Any) -> Environment:
        return replace(self, calls=[], points=0, dead=False, crash_at=-1, **changes)

    # --- time, chance, faults

    def point(self, what: str) -> None:
        """A point at which the process may crash."""
        if self.dead:
            raise CrashError
        if self.points == self.crash_at:
            self.dead = True
            self.gone.set()
            raise CrashError(what)
        self.points += 1

    async def call(self, what: str) -> None:
        """Starts a simulated call: crashes before it, waits, or raises an injected fault."""
        self.point(f"before {what}")
        self.calls.append(what)
        if self.slow:
            await asyncio.sleep(self.chance.choice((0.0, 0.0, self.chance.uniform(0.0, self.slow))))
        if self.dead:
            raise CrashError
        if self.faults.get(what):
            raise self.faults[what].pop(0)

    # --- the process

    def assemble(self) -> Supervisor:
        self.gone = asyncio.Event()
        random = Random(self.seed)
        self.lock = NodeLock(FakeRecordStore(self), FakeRegister(self))
        self.machine = FakeMachine(self)
        self.metadata = FakeMetadata(self)
        self.listener = FakeInitListener(self)
        self.service = FakeJoinService(self)
        self.log_buffer = LogBuffer()
        state_store = FakeNodeStateStore(self)
        join_sources = JoinSources(self.metadata, self.endpoints, self.service, self.new_request)
        init_sources = InitSources(
            self.metadata, self.secret_matches, check_policy, self.listener.open, self.log_buffer
        )
        waits = lambda: Backoff(random)  # noqa: E731
        init_flow = InitFlow(self.lock, self.machine, state_store, waits)
        join_flow = JoinFlow(self.lock, self.machine, state_store, waits, clock=self.uptime)
        self.init_server = InitServer(self.lock, init_sources, init_flow, random, self.linger)
        self.join_client = JoinClient(self.lock, join_sources, join_flow, random, clock=self.uptime)
        renewal = ServingRenewal(self.machine, join_sources, random, lambda: self.now)
        rejoin = Rejoin(self.lock, self.machine, renewal, random)
        self.stop = asyncio.Event()
        return Supervisor(self.lock, state_store, self.init_server, self.join_client, join_flow, rejoin)

    def uptime(self) -> float:
        return self.booted_before + asyncio.get_running_loop().time()

    async def endpoints(self) -> tuple[Address, ...]:
        await self.call("endpoints")
        return self.addresses

    def new_request(self, name: str) -> KeyAndCsr:
        return KeyAndCsr(f"key {len(self.calls)}".encode(), f"request of {name}".encode())

    def secret_matches(self, secret: bytes, secret_hash: str) -> bool:
        self.calls.append("secret")
        return secret == SECRET and secret_hash == self.secret_hash

    def ticket(self) -> Ticket:
        control_plane = self.instance.role is Role.CONTROL_PLANE
        names = CONTROL_PLANE_FILES if control_plane else ()
        ticket = Ticket(
            node_name=self.instance.name,
            control_plane=control_plane,
            kubernetes_version="v1.36.3",
            api_server_endpoint="10.0.0.1:6443",
            token="abcdef.0123456789abcdef",
            token_seconds=900,
            turn_seconds=600 if control_plane else 0,
            ca_certificate_hashes=("sha256:" + "0" * 64,),
            kubelet_certificate=b"certificate",
            control_plane_files=tuple(ControlPlaneFile(name, b"data") for name in names),
            measurement_secret=JOIN_MEASUREMENT[0],
            measurement_salt=JOIN_MEASUREMENT[1],
        )
        return replace(ticket, **self.ticket_changes)


def check_policy(policy: bytes) -> None:
    if policy != b"{}":
        raise OperatorError("is not a policy", subject="join policy")


@dataclass
class FakeRecordStore:
    environment: Environment

    def load(self) -> BootstrapRecord | None:
        self.environment.point("before reading the phase")
        return self.environment.persistent.record

    def save(self, record: BootstrapRecord) -> None:
        self.environment.point(f"before phase {record.phase}")
        self.environment.persistent.record = record
        self.environment.point(f"after phase {record.phase}")


@dataclass
class FakeNodeStateStore:
    environment: Environment

    def load(self) -> NodeState | None:
        self.environment.point("before reading the state")
        return self.environment.persistent.state

    def save(self, state: NodeState) -> None:
        self.environment.point("before the state")
        if self.environment.faults.get("state"):
            raise self.environment.faults["state"].pop(0)
        self.environment.persistent.state = state
        self.environment.point("after the state")


@dataclass
class FakeRegister:
    environment: Environment

    async def read(self) -> bytes:
        await self.environment.call("register read")
        return self.environment.persistent.register

    async def extend(self, data: bytes) -> None:
        await self.environment.call("register extend")
        self.environment.persistent.register = after_event(self.environment.persistent.register, data)
        self.environment.persistent.extensions += 1
        self.environment.point("after the register")


@dataclass
class FakeMetadata:
    environment: Environment

    async def myself(self) -> Instance:
        await self.environment.call("myself")
        return self.environment.instance

    async def peers(self) -> tuple[Instance, ...]:
        raise MetadataUnavailable("not simulated")

    async def load_balancer(self) -> str:
        raise MetadataUnavailable("not simulated")

    async def init_secret_hash(self) -> str:
        await self.environment.call("init secret hash")
        return self.environment.secret_hash


@dataclass
class FakeJoinService:
    environment: Environment
    asked: int = 0
    answered: int = 0

    async def request_ticket(self, address: Address, request: TicketRequest, turn: Turn) -> Ticket:
        await turn()
        self.asked += 1
        await self.environment.call("ticket")
        if not self.environment.tickets:
            raise Transient("no cluster yet")
        self.answered += 1
        return self.environment.ticket()

    async def request_rejoin_ticket(
        self, address: Address, request: RejoinRequest, turn: Turn
    ) -> RejoinTicket:
        await turn()
        await self.environment.call("rejoin ticket")
        return RejoinTicket(request.node_name, b"renewed certificate")


@dataclass
class FakeMachine:
    """Like kubeadm, it fails on a machine that is not blank, and a crash leaves a half-joined node."""

    environment: Environment

    async def install_components(self, components: tuple[Component, ...], progress: ProgressCallback) -> None:
        await self.environment.call("install")

    async def has_kubeadm_traces(self) -> bool:
        await self.environment.call("kubeadm traces")
        return bool(self.environment.persistent.kubeadm)

    async def reset(self, cri_socket: str, progress: ProgressCallback) -> None:
        await self.environment.call("reset")
        persistent = self.environment.persistent
        persistent.kubeadm, persistent.member_of, persistent.join_service_deployed = "half", b"", False
        persistent.kubelet_runs = persistent.files = False
        self.environment.point("amid reset")
        persistent.kubeadm = ""
        self.environment.point("after reset")

    async def reset_best_effort(self, cri_socket: str, progress: ProgressCallback) -> None:
        await self.reset(cri_socket, progress)

    async def init(
        self, spec: ClusterSpec, instance: Instance, certificate_days: int, progress: ProgressCallback
    ) -> bytes:
        progress(StageEvent("kubeadm init", "started"))
        await self._kubeadm("init", cluster_of(INIT_MEASUREMENT))
        progress(StageEvent("kubeadm init", "done"))
        return b"kubeconfig"

    async def set_up_join_service(self, setup: JoinServiceSetup, progress: ProgressCallback) -> None:
        await self.environment.call("join service")
        assert self.environment.persistent.kubeadm == "whole", "join service set up without an API server"
        self.environment.persistent.join_service_deployed = True
        self.environment.point("after the join service")

    async def write_ticket_files(self, ticket: Ticket, kubelet_key: bytes) -> None:
        await self.environment.call("ticket files")
        self.environment.persistent.files = True
        self.environment.point("after the files")

    async def join(self, ticket: Ticket, progress: ProgressCallback) -> None:
        if not self.environment.persistent.files:
            self.environment.violations.append("kubeadm join without the ticket's files")
        await self._kubeadm("join", cluster_of(JOIN_MEASUREMENT))

    async def _kubeadm(self, verb: str, cluster: bytes) -> None:
        persistent = self.environment.persistent
        self.environment.point(f"before {verb}")
        if persistent.kubeadm:
            self.environment.violations.append(f"kubeadm {verb} on a machine that is not blank")
        persistent.kubeadm = "half"
        await self.environment.call(verb)
        persistent.kubeadm, persistent.member_of, persistent.kubelet_runs = "whole", cluster, True
        self.environment.point(f"after {verb}")

    async def is_kubelet_configured(self) -> bool:
        await self.environment.call("kubelet configured")
        return self.environment.persistent.kubeadm == "whole"

    async def start_kubelet(self) -> None:
        await self.environment.call("start kubelet")
        if self.environment.persistent.kubeadm != "whole":
            self.environment.violations.append("the kubelet was started without its configuration")
        self.environment.persistent.kubelet_runs = True
        self.environment.point("after the kubelet")

    async def read_serving_certificate(self) -> bytes:
        await self.environment.call("serving pair")
        return b""

    async def write_serving_certificate(self, certificate: bytes, kubelet_key: bytes) -> None:
        await self.environment.call("renew serving")


# The source address of a user.
USER = "192.0.2.7"


class FakeInitListener:
    """An in-memory init listener."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.handlers: HandlersFor = lambda source, admitted: {}
        self.admitted = 0
        self.handshakes = 0
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self._running: set[asyncio.Task[Any]] = set()

    async def open(self, handlers: HandlersFor) -> FakeInitListener:
        await self.environment.call("open listener")
        self.handlers = handlers
        self.opened.set()
        return self

    async def stop(self) -> None:
        self.closed.set()
        if running := set(self._running):
            _, late = await asyncio.wait(running, timeout=10.0)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    @property
    def connections(self) -> int:
        return self.handshakes + len(self._running)

    async def call(
        self, request: InitRequest, source: str = USER, *, acknowledge: bool = False
    ) -> list[InitEvent]:
        """Returns the events that a client receives; raises RpcError if the listener is closed."""
        events: list[InitEvent] = []
        await self.call_into(request, events, source, acknowledge=acknowledge)
        return events

    async def call_into(
        self, request: InitRequest, events: list[InitEvent], source: str = USER, *, acknowledge: bool = False
    ) -> None:
        """Without `acknowledge` the connection is lost after the last event."""
        if not self.opened.is_set() or self.closed.is_set():
            raise RpcError(grpc.UNAVAILABLE, "connection refused")

        async def send(body: bytes) -> None:
            await asyncio.sleep(0)
            events.append(InitEvent.decode(body))

        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            connection = self.handlers(source, self._admit)
            await connection[INIT](request.encode(), send)
            if acknowledge:
                await connection[ACKNOWLEDGE](b"", _nothing)
        finally:
            self._running.discard(task)

    def _admit(self) -> None:
        self.admitted += 1


async def _nothing(body: bytes) -> None:
    assert not body


def init_request(init_id: str = "one", **changes: Any) -> InitRequest:
    secret, salt = INIT_MEASUREMENT
    return replace(InitRequest(init_id, SECRET, secret, salt, SPEC, b"{}"), **changes)


@contextmanager
def quiet() -> Iterator[None]:
    """Disables logging during thousands of runs."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


async def until(true: Callable[[], object]) -> None:
    while not true():  # noqa: ASYNC110 -- the time that passes is virtual
        await asyncio.sleep(0.01)


def started(environment: Environment) -> asyncio.Task[int]:
    """Starts the process; the result of the task is its exit code."""
    return tasks.spawn(environment.assemble().run(environment.stop), "process")


async def exit_code(environment: Environment) -> int:
    return await started(environment)


def joins(environment: Environment) -> None:
    assert deterministic_loop.run(exit_code(environment)) == FINISHED
    assert environment.persistent.member_of == cluster_of(JOIN_MEASUREMENT)
