"""The registry: the agent streams connected now, in order of arrival.

Every strategy looks agents up by something else, so the agent registry keeps one index per
strategy and a dial never walks all agents. An agent may hold several streams at
once, under one agent id: it reconnected before we noticed that the old stream is
dead, or two agents were given the same id. They count as one agent, and the streams
are told apart by identity, never by id; a stream class must therefore keep Python's
own equality.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Generic, Protocol, TypeVar

from bootbridge.tunnel.identifiers import AgentIdentifiers
from bootbridge.wire.addresses import IPAddress, IPNetwork, comparable_host


class Strategy(Enum):
    """How an agent may be found for a destination; the values are what operators write."""

    DEFAULT = "default"
    DEST_HOST = "destHost"
    DEFAULT_ROUTE = "defaultRoute"
    CIDR = "cidr"
    DIRECT = "direct"

    def __str__(self) -> str:
        return self.value


class AgentEntry(Protocol):
    """What the agent registry and the selection need to know of an agent stream."""

    @property
    def agent_id(self) -> str: ...

    @property
    def identifiers(self) -> AgentIdentifiers: ...

    @property
    def last_resort(self) -> bool:
        """Whether it is to be used only where no other can be."""

    @property
    def route_count(self) -> int: ...


Stream = TypeVar("Stream", bound=AgentEntry)


class AgentIndex(Generic[Stream]):
    """Streams grouped by agent id; ``ids`` allows a random draw in constant time."""

    __slots__ = ("_streams", "ids")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._streams: dict[str, list[Stream]] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def streams_of(self, agent_id: str) -> Sequence[Stream]:
        """The agent's streams, the oldest first."""
        return self._streams.get(agent_id, ())

    def add(self, agent_id: str, stream: Stream) -> None:
        if agent_id not in self._streams:
            self.ids.append(agent_id)
        _put(self._streams, agent_id, stream)

    def remove(self, agent_id: str, stream: Stream) -> None:
        _take(self._streams, agent_id, stream)
        if agent_id not in self._streams:
            self.ids.remove(agent_id)


class NetworkIndex(Generic[Stream]):
    """Streams by advertised network: one dict per prefix length, asked longest first."""

    __slots__ = ("_by_length",)

    def __init__(self) -> None:
        # (IP version, prefix length) -> prefix bits -> streams
        self._by_length: dict[tuple[int, int], dict[int, list[Stream]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_length.values()))

    def holding(self, ip: IPAddress) -> Iterator[Sequence[Stream]]:
        """The streams of each network that holds ``ip``, the longest prefix first."""
        number, bits = int(ip), ip.max_prefixlen
        for (version, length), networks in self._by_length.items():
            if version == ip.version:
                streams = networks.get(number >> (bits - length))
                if streams is not None:
                    yield streams

    def add(self, network: IPNetwork, stream: Stream) -> None:
        length, prefix = _keys(network)
        if length not in self._by_length:
            self._by_length[length] = {}
            self._by_length = dict(sorted(self._by_length.items(), reverse=True))
        _put(self._by_length[length], prefix, stream)

    def remove(self, network: IPNetwork, stream: Stream) -> None:
        length, prefix = _keys(network)
        networks = self._by_length[length]
        _take(networks, prefix, stream)
        if not networks:
            del self._by_length[length]


class AgentRegistry(Generic[Stream]):
    """All connected agent streams, indexed for every strategy."""

    def __init__(self) -> None:
        # Ids and identifiers as they were at arrival: what was indexed is what gets removed.
        self._members: dict[Stream, tuple[str, AgentIdentifiers]] = {}
        self._hosts: dict[str, list[Stream]] = {}
        self.agents: AgentIndex[Stream] = AgentIndex()
        self.default_route_agents: AgentIndex[Stream] = AgentIndex()
        self.networks: NetworkIndex[Stream] = NetworkIndex()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Stream]:
        return iter(tuple(self._members))

    def __contains__(self, stream: object) -> bool:
        return stream in self._members

    def __repr__(self) -> str:
        return f"<AgentRegistry {len(self.agents)} agents, {len(self)} streams>"

    def add(self, stream: Stream) -> None:
        """Let a stream take part; adding it twice changes nothing."""
        if stream in self._members:
            return
        agent_id, identifiers = stream.agent_id, stream.identifiers
        self._members[stream] = (agent_id, identifiers)
        self.agents.add(agent_id, stream)
        if identifiers.default_route:
            self.default_route_agents.add(agent_id, stream)
        for host in identifiers.comparable_hosts:
            _put(self._hosts, host, stream)
        for network in identifiers.networks:
            self.networks.add(network, stream)

    def remove(self, stream: Stream) -> bool:
        """Forget this one stream; False if it is not (or no longer) here."""
        member = self._members.pop(stream, None)
        if member is None:
            return False
        agent_id, identifiers = member
        self.agents.remove(agent_id, stream)
        if identifiers.default_route:
            self.default_route_agents.remove(agent_id, stream)
        for host in identifiers.comparable_hosts:
            _take(self._hosts, host, stream)
        for network in identifiers.networks:
            self.networks.remove(network, stream)
        return True

    def streams_of(self, agent_id: str) -> Sequence[Stream]:
        """The streams under one agent id, the oldest first."""
        return self.agents.streams_of(agent_id)

    def streams_for_host(self, host: str) -> Sequence[Stream]:
        """The streams whose agents advertise ``host``, the oldest first."""
        return self._hosts.get(comparable_host(host), ())

    def ready_count(self, strategy: Strategy) -> int:
        """What ``ready_backends`` shows: agents, or for destHost and cidr what they advertise."""
        match strategy:
            case Strategy.DEFAULT:
                return len(self.agents)
            case Strategy.DEST_HOST:
                return len(self._hosts)
            case Strategy.DEFAULT_ROUTE:
                return len(self.default_route_agents)
            case Strategy.CIDR:
                return len(self.networks)
            case Strategy.DIRECT:
                return 0


Key = TypeVar("Key")


def _put(index: dict[Key, list[Stream]], key: Key, stream: Stream) -> None:
    index.setdefault(key, []).append(stream)


def _take(index: dict[Key, list[Stream]], key: Key, stream: Stream) -> None:
    streams = index[key]
    streams.remove(stream)
    if not streams:
        del index[key]


def _keys(network: IPNetwork) -> tuple[tuple[int, int], int]:
    host_bits = network.max_prefixlen - network.prefixlen
    return (network.version, network.prefixlen), int(network.network_address) >> host_bits
