"""A world for one instance: a disk, a tmpfs, a register, kubeadm, a join service, a user; chance and crashes.

Every port call waits for a random while and may be the one at which the process dies. What a crash leaves is
what a real one leaves: the disk, and until the next boot the tmpfs and the register.
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
from bootbridge.join_api.kubelet_certificate_request import CertificateRequest
from bootbridge.join_api.messages import (
    CONTROL_PLANE_FILES,
    ControlPlaneFile,
    RejoinRequest,
    RejoinTicket,
    Ticket,
    TicketRequest,
)
from bootbridge.node.init.events import InitEvent
from bootbridge.node.init.flow import InitFlow
from bootbridge.node.init.log_buffer import Logbook
from bootbridge.node.init.messages import FETCHED, INIT, InitRequest, StageEvent
from bootbridge.node.init.server import InitServer, InitSources
from bootbridge.node.join.client import JoinClient, JoinSources
from bootbridge.node.join.flow import JoinFlow
from bootbridge.node.join.rejoin import Rejoin
from bootbridge.node.join.serving_renewal import ServingRenewal
from bootbridge.node.lock.node_lock import ZERO, NodeLock
from bootbridge.node.lock.node_state import NodeState
from bootbridge.node.lock.phases import Record
from bootbridge.node.ports import Address, Founding, HandlersFor, Say
from bootbridge.node.supervisor import Supervisor
from bootbridge.runtime import tasks
from bootbridge.runtime.calls import CallFailed
from bootbridge.runtime.concurrency import Turn
from bootbridge.trust import key_hierarchy
from bootbridge.trust.measurement import after_event
from bootbridge.wire import grpc_messages as grpc

SECRET = b"the init secret of this instance"
INIT_MEASUREMENT = (b"\x01" * 32, b"\x02" * 32)
JOIN_MEASUREMENT = (b"\x03" * 32, b"\x04" * 32)
SPEC = ClusterSpec("v1.36.3").dump()
INSTANCE = Instance("node-7", Role.CONTROL_PLANE, (ip_address("10.0.0.7"),))


@cache
def cluster_of(measurement: tuple[bytes, bytes]) -> bytes:
    return key_hierarchy.cluster_id(*measurement)


class CrashError(BaseException):
    """The process is gone; nothing in it may catch this."""


@dataclass
class Lasting:
    """What outlives the process."""

    # Until the next boot
    record: Record | None = None
    register: bytes = ZERO
    extensions: int = 0
    kubelet_runs: bool = False
    # For ever
    state: NodeState | None = None
    files: bool = False
    kubeadm: str = ""  # "", "half" or "whole"
    member_of: bytes = b""
    founded: bool = False

    def reboot(self) -> None:
        self.record, self.register, self.extensions, self.kubelet_runs = None, ZERO, 0, False


@dataclass
class World:
    """One process on one instance; `again()` is the next process on the same one."""

    seed: int = 0
    lasting: Lasting = field(default_factory=Lasting)
    instance: Instance = INSTANCE
    secret_hash: str = "hash"
    slow: float = 0.0  # seconds that a port call may take at most
    crash_at: int = -1  # the point at which the process dies
    faults: dict[str, list[Exception]] = field(default_factory=dict)  # by port call: what the next ones raise
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

    def again(self, **changes: Any) -> World:
        return replace(self, calls=[], points=0, dead=False, crash_at=-1, **changes)

    # --- time, chance, faults

    def point(self, what: str) -> None:
        """A place where the process may die."""
        if self.dead:
            raise CrashError
        if self.points == self.crash_at:
            self.dead = True
            self.gone.set()
            raise CrashError(what)
        self.points += 1

    async def call(self, what: str) -> None:
        """The beginning of a port call: it may die before it, take its time, or fail."""
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
        self.lock = NodeLock(WorldPhases(self), WorldRegister(self))
        self.machine = WorldMachine(self)
        self.metadata = WorldMetadata(self)
        self.door = WorldDoor(self)
        self.service = WorldJoinService(self)
        self.logbook = Logbook()
        states = WorldStates(self)
        join_sources = JoinSources(self.metadata, self.endpoints, self.service, self.new_request)
        init_sources = InitSources(
            self.metadata, self.secret_matches, check_policy, self.door.open, self.logbook
        )
        waits = lambda: Backoff(random)  # noqa: E731
        init_flow = InitFlow(self.lock, self.machine, states, waits)
        join_flow = JoinFlow(self.lock, self.machine, states, waits, clock=self.uptime)
        self.init_server = InitServer(self.lock, init_sources, init_flow, random, self.linger)
        self.join_client = JoinClient(self.lock, join_sources, join_flow, random, clock=self.uptime)
        renewal = ServingRenewal(self.machine, join_sources, random, lambda: self.now)
        rejoin = Rejoin(self.lock, self.machine, renewal, random)
        self.stop = asyncio.Event()
        return Supervisor(self.lock, states, self.init_server, self.join_client, join_flow, rejoin)

    def uptime(self) -> float:
        return self.booted_before + asyncio.get_running_loop().time()

    async def endpoints(self) -> tuple[Address, ...]:
        await self.call("endpoints")
        return self.addresses

    def new_request(self, name: str) -> CertificateRequest:
        return CertificateRequest(f"key {len(self.calls)}".encode(), f"request of {name}".encode())

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
class WorldPhases:
    world: World

    def load(self) -> Record | None:
        self.world.point("before reading the phase")
        return self.world.lasting.record

    def save(self, record: Record) -> None:
        self.world.point(f"before phase {record.phase}")
        self.world.lasting.record = record
        self.world.point(f"after phase {record.phase}")


@dataclass
class WorldStates:
    world: World

    def load(self) -> NodeState | None:
        self.world.point("before reading the state")
        return self.world.lasting.state

    def save(self, state: NodeState) -> None:
        self.world.point("before the state")
        if self.world.faults.get("state"):
            raise self.world.faults["state"].pop(0)
        self.world.lasting.state = state
        self.world.point("after the state")


@dataclass
class WorldRegister:
    world: World

    async def read(self) -> bytes:
        await self.world.call("register read")
        return self.world.lasting.register

    async def extend(self, data: bytes) -> None:
        await self.world.call("register extend")
        self.world.lasting.register = after_event(self.world.lasting.register, data)
        self.world.lasting.extensions += 1
        self.world.point("after the register")


@dataclass
class WorldMetadata:
    world: World

    async def myself(self) -> Instance:
        await self.world.call("myself")
        return self.world.instance

    async def peers(self) -> tuple[Instance, ...]:
        raise MetadataUnavailable("nobody asks")

    async def load_balancer(self) -> str:
        raise MetadataUnavailable("nobody asks")

    async def init_secret_hash(self) -> str:
        await self.world.call("init secret hash")
        return self.world.secret_hash


@dataclass
class WorldJoinService:
    world: World
    asked: int = 0
    answered: int = 0

    async def ticket(self, address: Address, request: TicketRequest, turn: Turn) -> Ticket:
        await turn()
        self.asked += 1
        await self.world.call("ticket")
        if not self.world.tickets:
            raise Transient("there is no cluster yet")
        self.answered += 1
        return self.world.ticket()

    async def rejoin_ticket(self, address: Address, request: RejoinRequest, turn: Turn) -> RejoinTicket:
        await turn()
        await self.world.call("rejoin ticket")
        return RejoinTicket(request.node_name, b"renewed certificate")


@dataclass
class WorldMachine:
    """kubeadm as it is: it refuses a machine that is not blank, and a kill leaves half a node."""

    world: World

    async def install(self, components: tuple[Component, ...], say: Say) -> None:
        await self.world.call("install")

    async def leftovers(self) -> bool:
        await self.world.call("leftovers")
        return bool(self.world.lasting.kubeadm)

    async def reset(self, cri_socket: str, say: Say) -> None:
        await self.world.call("reset")
        lasting = self.world.lasting
        lasting.kubeadm, lasting.member_of, lasting.founded = "half", b"", False
        lasting.kubelet_runs = lasting.files = False
        self.world.point("amid reset")
        lasting.kubeadm = ""
        self.world.point("after reset")

    async def clear(self, cri_socket: str, say: Say) -> None:
        await self.reset(cri_socket, say)

    async def init(self, spec: ClusterSpec, instance: Instance, certificate_days: int, say: Say) -> bytes:
        say(StageEvent("kubeadm init", "started"))
        await self._kubeadm("init", cluster_of(INIT_MEASUREMENT))
        say(StageEvent("kubeadm init", "done"))
        return b"kubeconfig"

    async def found(self, founding: Founding, say: Say) -> None:
        await self.world.call("found")
        assert self.world.lasting.kubeadm == "whole", "founded without an API server"
        self.world.lasting.founded = True
        self.world.point("after founding")

    async def take(self, ticket: Ticket, kubelet_key: bytes) -> None:
        await self.world.call("take")
        self.world.lasting.files = True
        self.world.point("after the files")

    async def join(self, ticket: Ticket, say: Say) -> None:
        if not self.world.lasting.files:
            self.world.violations.append("kubeadm join without the ticket's files")
        await self._kubeadm("join", cluster_of(JOIN_MEASUREMENT))

    async def _kubeadm(self, verb: str, cluster: bytes) -> None:
        lasting = self.world.lasting
        self.world.point(f"before {verb}")
        if lasting.kubeadm:
            self.world.violations.append(f"kubeadm {verb} on a machine that is not blank")
        lasting.kubeadm = "half"
        await self.world.call(verb)
        lasting.kubeadm, lasting.member_of, lasting.kubelet_runs = "whole", cluster, True
        self.world.point(f"after {verb}")

    async def kubelet_configured(self) -> bool:
        await self.world.call("kubelet configured")
        return self.world.lasting.kubeadm == "whole"

    async def start_kubelet(self) -> None:
        await self.world.call("start kubelet")
        if self.world.lasting.kubeadm != "whole":
            self.world.violations.append("the kubelet was started without its configuration")
        self.world.lasting.kubelet_runs = True
        self.world.point("after the kubelet")

    async def serving_pair(self) -> bytes:
        await self.world.call("serving pair")
        return b""

    async def renew_serving(self, certificate: bytes, kubelet_key: bytes) -> None:
        await self.world.call("renew serving")


# Where a user calls from.
USER = "192.0.2.7"


class WorldDoor:
    """The port that users call: open or not, and closed gracefully."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.handlers: HandlersFor = lambda source, admitted: {}
        self.admitted = 0
        self.handshakes = 0
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self._running: set[asyncio.Task[Any]] = set()

    async def open(self, handlers: HandlersFor) -> WorldDoor:
        await self.world.call("open the door")
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

    async def call(self, request: InitRequest, source: str = USER, *, fetch: bool = False) -> list[InitEvent]:
        """What a user is sent; raises CallFailed, as a real caller does, when there is nobody."""
        events: list[InitEvent] = []
        await self.call_into(request, events, source, fetch=fetch)
        return events

    async def call_into(
        self, request: InitRequest, events: list[InitEvent], source: str = USER, *, fetch: bool = False
    ) -> None:
        """With `fetch` the user says in the end that it is kept; else the line is cut after the last word."""
        if not self.opened.is_set() or self.closed.is_set():
            raise CallFailed(grpc.UNAVAILABLE, "connection refused")

        async def send(body: bytes) -> None:
            await asyncio.sleep(0)
            events.append(InitEvent.decode(body))

        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            connection = self.handlers(source, self._let_in)
            await connection[INIT](request.encode(), send)
            if fetch:
                await connection[FETCHED](b"", _nothing)
        finally:
            self._running.discard(task)

    def _let_in(self) -> None:
        self.admitted += 1


async def _nothing(body: bytes) -> None:
    assert not body


def init_request(init_id: str = "one", **changes: Any) -> InitRequest:
    secret, salt = INIT_MEASUREMENT
    return replace(InitRequest(init_id, SECRET, secret, salt, SPEC, b"{}"), **changes)


@contextmanager
def quiet() -> Iterator[None]:
    """Thousands of runs log more than anybody reads."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


async def until(true: Callable[[], object]) -> None:
    while not true():  # noqa: ASYNC110 -- the time that passes is virtual
        await asyncio.sleep(0.01)


def started(world: World) -> asyncio.Task[int]:
    """The process; its result is the exit code."""
    return tasks.spawn(world.assemble().run(world.stop), "process")


async def exit_code(world: World) -> int:
    return await started(world)
