"""Backend selection: chooses the agent stream for a destination.

The strategies are tried in the operator's order, and the first that finds an agent decides. They are
tried twice: first without agents that are a last resort (they are draining, or have just left a dial
unanswered), then with all agents. So a draining agent gets a new dial only if no other can take it,
even by a later strategy. With ``destHost,default`` any other agent precedes a node's own draining
agent: a connection through a neighbour is better than one that is cut when the agent exits.

Agents that advertise the same thing share the load. Of two drawn at random, the one with fewer routes
gets the dial, which is close to the best choice without comparing all. destHost takes the oldest
stream: agents that advertise one host are one agent that reconnected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from bootbridge.tunnel.agent_registry import AgentIndex, AgentRegistry, Stream
from bootbridge.tunnel.agent_registry import Strategy as Strategy
from bootbridge.wire.addresses import IPNetwork, host_of, parse_ip

if TYPE_CHECKING:
    from random import Random

NO_AGENT = "No agent available"  # on the wire; Go clients and their tests search for this text

_HOST_SHOWN_MAX = 253  # the longest DNS name; a caller may send anything


class AgentBackend(Generic[Stream]):
    """The dial goes to this agent stream, which ``strategy`` has found."""

    __slots__ = ("strategy", "stream")

    def __init__(self, stream: Stream, strategy: Strategy) -> None:
        self.stream = stream
        self.strategy = strategy


@dataclass(frozen=True, slots=True)
class DirectBackend:
    """The server itself dials."""


@dataclass(frozen=True, slots=True)
class NoBackend:
    """No agent can take the dial: ``reason`` is for the caller, ``detail`` for the log."""

    reason: str
    detail: str


def parse_strategies(text: str) -> tuple[Strategy, ...]:
    """Parses a comma-separated list; skips empty items. Raises ValueError for an unknown strategy."""
    strategies = tuple(_strategy(name) for name in text.split(",") if name)
    if not strategies:
        raise ValueError("proxy strategies cannot be empty")
    return strategies


def _strategy(name: str) -> Strategy:
    try:
        return Strategy(name)
    except ValueError:
        raise ValueError(f"unknown proxy strategy: {name}") from None


def ready(registry: AgentRegistry[Stream], strategies: Sequence[Strategy]) -> bool:
    """Whether a strategy can find an agent. ``direct`` counts only if it is the only strategy.

    With others, ``direct`` serves only its CIDRs, so it does not make a server ready that still
    waits for its first agent.
    """
    through_agents = [strategy for strategy in strategies if strategy is not Strategy.DIRECT]
    return not through_agents or any(map(registry.ready_count, through_agents))


def select_backend(
    address: str,
    registry: AgentRegistry[Stream],
    strategies: Sequence[Strategy],
    rng: Random,
    direct_cidrs: Sequence[IPNetwork] = (),
    exclude: Collection[Stream] = frozenset(),
) -> AgentBackend[Stream] | DirectBackend | NoBackend:
    """Chooses the backend for ``address``; ``exclude`` has the streams that already failed this dial."""
    search = _Search(host_of(address), registry, rng, exclude)
    for accept_last_resort in (False, True):
        search.accept_last_resort = accept_last_resort
        for strategy in strategies:
            if strategy is Strategy.DIRECT:
                if search.lies_in(direct_cidrs):
                    return DirectBackend()
            elif (stream := search.find(strategy)) is not None:
                return AgentBackend(stream, strategy)
    return NoBackend(NO_AGENT, "; ".join(search.why_not(strategy) for strategy in dict.fromkeys(strategies)))


class _Search(Generic[Stream]):
    __slots__ = ("_exclude", "_host", "_registry", "_rng", "accept_last_resort")

    def __init__(
        self, host: str, registry: AgentRegistry[Stream], rng: Random, exclude: Collection[Stream]
    ) -> None:
        self._host = host
        self._registry = registry
        self._rng = rng
        self._exclude = exclude
        self.accept_last_resort = False

    def find(self, strategy: Strategy) -> Stream | None:
        match strategy:
            case Strategy.DEFAULT:
                return self._least_loaded_agent(self._registry.agents)
            case Strategy.DEST_HOST:
                return self._oldest(self._registry.streams_for_host(self._host))
            case Strategy.DEFAULT_ROUTE:
                return self._least_loaded_agent(self._registry.default_route_agents)
            case Strategy.CIDR:
                return self._by_longest_prefix()
            case Strategy.DIRECT:
                return None

    def lies_in(self, networks: Sequence[IPNetwork]) -> bool:
        ip = parse_ip(self._host)
        return ip is not None and any(ip in network for network in networks)

    def _by_longest_prefix(self) -> Stream | None:
        ip = parse_ip(self._host)
        if ip is None:
            return None
        for streams in self._registry.networks.holding(ip):
            stream = self._least_loaded(streams, self._if_usable)
            if stream is not None:
                return stream
        return None

    def _least_loaded_agent(self, agents: AgentIndex[Stream]) -> Stream | None:
        return self._least_loaded(agents.ids, lambda agent_id: self._oldest(agents.streams_of(agent_id)))

    def _least_loaded(self, of: Sequence[T], stream_of: Callable[[T], Stream | None]) -> Stream | None:
        """Returns the less loaded of two drawn at random; tries all if one of the two cannot be used."""
        if len(of) > 1:
            one, other = map(stream_of, _draw_two(of, self._rng))
            if one is not None and other is not None:
                return _less_loaded(one, other)
        usable = [stream for stream in map(stream_of, of) if stream is not None]
        if len(usable) > 1:
            return _less_loaded(*_draw_two(usable, self._rng))
        return usable[0] if usable else None

    def _oldest(self, streams: Sequence[Stream]) -> Stream | None:
        for stream in streams:
            if self._if_usable(stream) is not None:
                return stream
        return None

    def _if_usable(self, stream: Stream) -> Stream | None:
        if (stream.last_resort and not self.accept_last_resort) or stream in self._exclude:
            return None
        return stream

    def why_not(self, strategy: Strategy) -> str:
        """Returns why this strategy found no agent."""
        return f"{strategy}: {self._why_not(strategy)}"

    def _why_not(self, strategy: Strategy) -> str:
        host = repr(self._host[:_HOST_SHOWN_MAX])
        match strategy:
            case Strategy.DIRECT:
                return self._needs_ip(host) or f"{host} is outside --direct-cidrs"
            case Strategy.CIDR:
                fact = self._needs_ip(host) or f"no agent advertises a CIDR with {host}"
            case Strategy.DEST_HOST:
                fact = f"no agent advertises {host}"
            case Strategy.DEFAULT_ROUTE:
                fact = "no agent advertises default-route=true"
            case Strategy.DEFAULT:
                fact = "no agent is connected"
        if self._finds_when_all_may_be_used(strategy):
            return "every matching agent has already failed this dial"
        return fact

    def _needs_ip(self, host: str) -> str:
        return "" if parse_ip(self._host) else f"{host} is not an IP address"

    def _finds_when_all_may_be_used(self, strategy: Strategy) -> bool:
        unrestricted = _Search[Stream](self._host, self._registry, self._rng, ())
        unrestricted.accept_last_resort = True
        return unrestricted.find(strategy) is not None


T = TypeVar("T")


def _draw_two(items: Sequence[T], rng: Random) -> tuple[T, T]:
    """Draws two different items; all pairs are equally likely."""
    first = int(rng.random() * len(items))
    second = int(rng.random() * (len(items) - 1))
    return items[first], items[second + (second >= first)]


def _less_loaded(one: Stream, other: Stream) -> Stream:
    return other if other.route_count < one.route_count else one
