"""Admission of agents: bounds what they advertise, and ends connections whose credentials have ended.

An agent is *retired* when its certificate or token is no longer valid, or when it has reached the maximum
age. It gets no more dials, and its open connections may finish within a bound. Our own agents are notified by
GOAWAY and reconnect at once, with their present credentials. A Go agent would close its connections on
GOAWAY; it reconnects when its stream ends.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from bootbridge.ports.event_log import EventLog
from bootbridge.ports.timers import Timers
from bootbridge.tunnel.agent_credentials import REVOKED_TEXT
from bootbridge.tunnel.agent_registry import AgentRegistry
from bootbridge.tunnel.agent_stream import AgentStream
from bootbridge.tunnel.allowed_identifiers import AllowedIdentifiers, admit
from bootbridge.tunnel.server_metrics import ServerMetrics
from bootbridge.wire import grpc_messages as grpc

# How long open connections of a retired agent may continue.
RETIRED_SECONDS_MAX: Final = 60.0
MAX_AGE_TEXT: Final = "maximum age reached"
# Characters of identifiers in one log line.
_IDENTIFIERS_SHOWN_MAX: Final = 200
# Overlaps in /status, and overlaps that are logged.
_OVERLAPS_SHOWN_MAX: Final = 100
_OVERLAPS_LOGGED_MAX: Final = 1000


class AgentAdmission:
    def __init__(
        self,
        registry: AgentRegistry[AgentStream],
        metrics: ServerMetrics,
        event_log: EventLog,
        timers: Timers,
        age_seconds_max: float,
        allowed: AllowedIdentifiers | None,
    ) -> None:
        """``allowed``: the allow-list for all agents; None allows everything. An age of 0: no maximum."""
        self._registry = registry
        self._metrics = metrics
        self._event_log = event_log
        self._timers = timers
        self._age_seconds_max = age_seconds_max
        self._allowed = allowed
        self._overlaps_logged: set[str] = set()
        self._overlaps: list[dict[str, str]] = []
        self._overlaps_of = 0  # the registry's changes that they are of

    def bound_identifiers(self, agent: AgentStream) -> None:
        """Removes the identifiers that the allow-list or one of the agent's credentials does not allow."""
        rules = [self._allowed, *(each.allowed for each in agent.credentials)]
        found = admit(agent.identifiers, tuple(rule for rule in rules if rule is not None))
        agent.identifiers, agent.ignored_identifiers = found.identifiers, found.ignored

    def report_identifiers(self, agent: AgentStream) -> None:
        """Logs and counts what is ignored, invalid, or overlaps with another agent's identifiers."""
        if ignored := agent.ignored_identifiers:
            self._metrics.ignored_identifiers_total.value += len(ignored)
            self._event_log.warning(
                "agent identifiers ignored",
                agent=agent.agent_id,
                identifiers=",".join(ignored)[:_IDENTIFIERS_SHOWN_MAX],
                reason="not allowed by its credentials, --agent-cidrs or --agent-hosts",
            )
        if unusable := agent.identifiers.invalid_cidrs:
            self._event_log.warning(
                "agent advertises an invalid CIDR",
                agent=agent.agent_id,
                cidr=",".join(unusable)[:_IDENTIFIERS_SHOWN_MAX],
            )
        for identifier, other in self._registry.overlaps(agent):
            self._metrics.overlapping_identifiers_total.value += 1
            # Once per identifier: agents may share a network on purpose.
            if identifier in self._overlaps_logged or len(self._overlaps_logged) >= _OVERLAPS_LOGGED_MAX:
                continue
            self._overlaps_logged.add(identifier)
            self._event_log.warning(
                "agent identifiers overlap", agent=agent.agent_id, other=other, identifier=identifier
            )

    def recheck(self) -> None:
        """Retires agents whose credentials have ended, and disconnects retired ones that are idle or late."""
        for agent in self._registry:
            if not agent.retired:
                problem = agent.credential_problem() or self._too_old(agent)
                if problem:
                    self._retire(agent, problem)
            if agent.retired and (
                not agent.route_count
                or agent.retirement_reason == REVOKED_TEXT
                or self._timers.now() >= agent.retired_at + RETIRED_SECONDS_MAX
            ):
                agent.fail(grpc.UNAUTHENTICATED, agent.retirement_reason)
                agent.stream.connection.go_away()

    def _too_old(self, agent: AgentStream) -> str:
        age = self._timers.now() - agent.connected_at
        return MAX_AGE_TEXT if self._age_seconds_max and age >= self._age_seconds_max else ""

    def _retire(self, agent: AgentStream, problem: str) -> None:
        self._metrics.retired_agents_total.labels(problem).value += 1
        self._event_log.warning(
            "agent credentials ended", agent=agent.agent_id, reason=problem, routes=len(agent.routes)
        )
        agent.retire(self._timers.now(), problem)
        self._registry.withdraw(agent)

    def overlaps(self) -> list[dict[str, str]]:
        """Returns what two agents advertise both, for ``/status``. Computed when the registry has changed:
        with a thousand agents it takes 7 ms."""
        if self._overlaps_of == self._registry.changes:
            return self._overlaps
        found = (
            {"identifier": identifier, "agent": agent.agent_id, "other": other}
            for agent in self._registry
            for identifier, other in self._registry.overlaps(agent)
        )
        self._overlaps = list(islice(found, _OVERLAPS_SHOWN_MAX))
        self._overlaps_of = self._registry.changes
        return self._overlaps
