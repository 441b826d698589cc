"""Keeps the agent connected to every server: finds them, connects, and reconnects after a loss."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Final

from bootbridge.proxy_agent.connect_failures import ConnectFailures
from bootbridge.proxy_agent.options import AgentOptions
from bootbridge.proxy_agent.server_connection import NotConnected, ServerConnection
from bootbridge.runtime.lookup import look_up
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.tasks import spawn
from bootbridge.runtime.tls_files import TlsFiles
from bootbridge.tunnel.agent_core import AgentCore, ServerStream
from bootbridge.tunnel.server_set import Admission, CountSource, ServerSet, SyncOutcome, best_of
from bootbridge.wire.addresses import join_host_port, parse_ip

LOOKUP_SECONDS_MAX: Final = 5.0


class Target:
    """A configured host at one of its addresses."""

    __slots__ = ("address", "host")

    def __init__(self, host: str, address: str) -> None:
        self.host = host
        self.address = address

    @property
    def key(self) -> str:
        return self.host if self.host == self.address else f"{self.host} {self.address}"


@dataclass(frozen=True, slots=True)
class ServerState:
    """A server that is connected, or an address that is tried or will be."""

    address: str
    state: str  # connected, draining, connecting or waiting
    stream: ServerStream | None = None
    last_error: str = ""
    next_attempt_seconds: float | None = None


class ServerSync:
    def __init__(self, options: AgentOptions, pump: Pump, core: AgentCore, tls: TlsFiles) -> None:
        self._options = options
        self._pump = pump
        self._core = core
        self._tls = tls
        self._hosts = [host.strip("[]") for host in options.proxy_server_host]
        self._wake = asyncio.Event()
        self._in_flight: set[str] = set()
        self._targets_found: dict[str, Target] = {}
        self._next_round_at: float | None = None  # None: one is running
        # Includes connections to servers that are shutting down: their tunnelled connections continue.
        self._connections: set[ServerConnection] = set()
        self._failures = ConnectFailures(core.event_log, pump.timers.now)
        self.servers: ServerSet[ServerConnection] = ServerSet(
            random.Random(),
            sync_interval=options.sync_interval,
            sync_interval_cap=options.sync_interval_cap,
            sync_forever=options.sync_forever,
            count_leases=options.count_server_leases,
            count_source=CountSource(options.server_count_source or "default"),
            hosts=len(self._hosts),
        )
        core.metrics.known_server_count.set_function(lambda: self.servers.wanted)
        # Not all open streams: a duplicate is closed at once.
        core.metrics.open_server_connections.set_function(lambda: len(self.servers))

    def on_lease_count(self, count: int) -> None:
        if self.servers.on_lease_count(count):
            self._wake.set()

    def start_draining(self) -> None:
        self.servers.start_draining()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            self._next_round_at = None
            outcome = await self._round()
            delay = self.servers.next_delay(outcome)
            self._next_round_at = self._pump.loop.time() + delay
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _round(self) -> SyncOutcome:
        targets = {target.key: target for target in await self._targets()}
        self._targets_found = targets
        self._failures.forget_others([*self._hosts, *targets])
        wanted = self.servers.attempts(list(targets), self._in_flight)
        if not wanted:
            return SyncOutcome.IDLE if targets else SyncOutcome.FAILED
        attempts = [spawn(self._attempt(targets[key]), f"connect to {key}") for key in wanted]
        await self._first_of(attempts)
        return best_of([_outcome(task) for task in attempts if task.done()] or [SyncOutcome.FAILED])

    async def _first_of(self, attempts: list[asyncio.Task[SyncOutcome]]) -> None:
        """Waits for all attempts, at most until the sync interval cap or until another server is lost.
        Slow attempts then continue in the background."""
        woken = spawn(self._wake.wait(), "wait for a lost server")
        over = spawn(asyncio.wait(attempts), "wait for attempts")
        try:
            cap = self._options.sync_interval_cap
            await asyncio.wait((over, woken), timeout=cap, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            woken.cancel()

    async def _targets(self) -> list[Target]:
        found = await asyncio.gather(*map(self._addresses, self._hosts))
        return [target for targets in found for target in targets]

    async def _addresses(self, host: str) -> list[Target]:
        if parse_ip(host) is not None:
            return [Target(host, host)]
        port = self._options.proxy_server_port
        try:
            async with asyncio.timeout(LOOKUP_SECONDS_MAX):
                entries = await look_up(host, port)
        except TimeoutError:
            self._failures.failed(host, f"lookup of {host} timed out")
            return []
        except (OSError, UnicodeError) as error:
            self._failures.failed(host, f"lookup of {host} failed: {getattr(error, 'strerror', '') or error}")
            return []
        self._failures.succeeded(host)
        return [Target(host, str(address)) for address in dict.fromkeys(entry[4][0] for entry in entries)]

    async def _attempt(self, target: Target) -> SyncOutcome:
        self._in_flight.add(target.key)
        connection = ServerConnection(self._pump, self._core, self._options.keepalive_time)
        try:
            token = self._token()
            server = await connection.open(
                target.host, target.address, self._options.proxy_server_port, self._tls, token
            )
        except NotConnected as error:
            self._failures.failed(target.key, str(error))
            return SyncOutcome.FAILED
        finally:
            self._in_flight.discard(target.key)
        self._failures.succeeded(target.key)
        admission = self.servers.on_connected(
            server.server_id, connection, server_count=server.server_count, address=target.key
        )
        if admission is not Admission.KEEP:
            connection.close("duplicate connection")
            return SyncOutcome.DUPLICATE
        self._connections.add(connection)
        connection.on_lost = self._on_lost
        connection.on_leaving(lambda: self._on_leaving(connection))
        self._core.event_log.info(
            "server connected",
            server=server.server_id,
            address=target.address,
            extension="credit" if server.extension else "none",
            servers=f"{len(self.servers)}/{self.servers.wanted}",
        )
        return SyncOutcome.CONNECTED

    def _token(self) -> str | None:
        path = self._options.service_account_token_path
        if not path:
            return None
        try:
            with open(path, encoding="utf-8") as file:
                return file.read().strip()
        except (OSError, UnicodeError) as error:
            raise NotConnected(f"--service-account-token-path: cannot read {path}: {error}") from error

    def _on_lost(self, connection: ServerConnection, reason: str) -> None:
        if self.servers.on_closed(connection):
            self._core.event_log.warning("server connection lost", reason=reason, servers=len(self.servers))
            self._wake.set()
        elif connection in self._connections:
            self.servers.on_server_over()
            self._wake.set()
        self._connections.discard(connection)

    def _on_leaving(self, connection: ServerConnection) -> None:
        """Tunnelled connections may finish; the agent looks for another server at once."""
        if self.servers.on_closed(connection):
            self._core.event_log.info("server is shutting down", servers=len(self.servers))
            self._wake.set()

    def states(self) -> list[ServerState]:
        """Returns every connection, then every address that none of them covers."""
        found = [
            ServerState(
                self._shown(connection.address),
                "connected" if self.servers.holds(connection) else "draining",
                connection.stream,
            )
            for connection in self._connections
        ]
        for key, target in self._targets_found.items():
            if not self.servers.covers(key):
                found.append(self._unconnected(key, target.address))
        resolved = {target.host for target in self._targets_found.values()}
        return found + [self._unconnected(host, host) for host in self._hosts if host not in resolved]

    def _unconnected(self, key: str, address: str) -> ServerState:
        connecting = key in self._in_flight
        due = None if connecting or self._next_round_at is None else self._next_round_at
        return ServerState(
            self._shown(address),
            "connecting" if connecting else "waiting",
            last_error=self._failures.last(key),
            next_attempt_seconds=None if due is None else round(max(0.0, due - self._pump.loop.time()), 3),
        )

    def _shown(self, address: str) -> str:
        return join_host_port(address, self._options.proxy_server_port)

    @property
    def has_unsent(self) -> bool:
        return any(connection.has_unsent for connection in self._connections)

    def close(self) -> None:
        for connection in list(self._connections):
            connection.close("agent stopped")


def _outcome(task: asyncio.Task[SyncOutcome]) -> SyncOutcome:
    """A bug in one attempt was logged when its task ended; the sync continues."""
    return SyncOutcome.FAILED if task.cancelled() or task.exception() is not None else task.result()
