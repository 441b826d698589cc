"""The agent registry: the agent streams that are connected now, in order of arrival.

Each strategy looks agents up by another key, so the registry has one index per strategy, and a dial
never iterates over all agents. One agent id may have several streams: the agent reconnected before
the server noticed that the old stream is dead, or two agents have the same id. They count as one
agent. Streams are distinguished by identity, never by id, so a stream class must not define equality.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, islice
from typing import Generic, Protocol, TypeVar

from bootbridge.tunnel.identifiers import AgentIdentifiers
from bootbridge.wire.addresses import IPAddress, IPNetwork, comparable_host

# An agent with many streams must not make the search for another agent's claims long.
OVERLAP_CANDIDATES_MAX = 64


class Strategy(Enum):
    """How an agent is found for a destination; the values are those of the flag."""

    DEFAULT = "default"
    DEST_HOST = "destHost"
    DEFAULT_ROUTE = "defaultRoute"
    CIDR = "cidr"
    DIRECT = "direct"

    def __str__(self) -> str:
        return self.value


class AgentEntry(Protocol):
    """What registry and backend selection need of an agent stream."""

    @property
    def agent_id(self) -> str: ...

    @property
    def identifiers(self) -> AgentIdentifiers: ...

    @property
    def last_resort(self) -> bool:
        """Whether to use it only if no other agent can take the dial."""

    @property
    def route_count(self) -> int: ...


Stream = TypeVar("Stream", bound=AgentEntry)


class AgentIndex(Generic[Stream]):
    """Streams by agent id; ``ids`` permits a random choice in constant time."""

    __slots__ = ("_streams", "ids")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._streams: dict[str, list[Stream]] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def streams_of(self, agent_id: str) -> Sequence[Stream]:
        """Returns the agent's streams, the oldest first."""
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
    """Streams by advertised network: one dict per prefix length, the longest first."""

    __slots__ = ("_by_length", "_sorted")

    def __init__(self) -> None:
        # (IP version, prefix length) -> prefix bits -> streams
        self._by_length: dict[tuple[int, int], dict[int, list[Stream]]] = {}
        # (IP version, first address, prefix length) of each network, so that nested ones follow each other
        self._sorted: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return sum(map(len, self._by_length.values()))

    def holding(self, ip: IPAddress) -> Iterator[Sequence[Stream]]:
        """Yields the streams of each network that contains ``ip``, the longest prefix first."""
        number, bits = int(ip), ip.max_prefixlen
        for (version, length), networks in self._by_length.items():
            if version == ip.version:
                streams = networks.get(number >> (bits - length))
                if streams is not None:
                    yield streams

    def overlapping(self, network: IPNetwork) -> Iterator[Sequence[Stream]]:
        """Yields the streams of each network that contains ``network`` or lies inside it, or equals it."""
        (version, length), prefix = _keys(network)
        for (other_version, other_length), networks in self._by_length.items():
            if other_version == version and other_length <= length:
                streams = networks.get(prefix >> (length - other_length))
                if streams is not None:
                    yield streams
        bits, last = network.max_prefixlen, int(network.broadcast_address)
        at = bisect_left(self._sorted, (version, int(network.network_address), length + 1))
        while at < len(self._sorted):
            inner_version, first, inner_length = self._sorted[at]
            if inner_version != version or first > last:
                return
            if inner_length > length:
                yield self._by_length[version, inner_length][first >> (bits - inner_length)]
            at += 1

    def add(self, network: IPNetwork, stream: Stream) -> None:
        length, prefix = _keys(network)
        if length not in self._by_length:
            self._by_length[length] = {}
            self._by_length = dict(sorted(self._by_length.items(), reverse=True))
        if prefix not in self._by_length[length]:
            insort(self._sorted, _position(network))
        _put(self._by_length[length], prefix, stream)

    def remove(self, network: IPNetwork, stream: Stream) -> None:
        length, prefix = _keys(network)
        networks = self._by_length[length]
        _take(networks, prefix, stream)
        if prefix not in networks:
            del self._sorted[bisect_left(self._sorted, _position(network))]
        if not networks:
            del self._by_length[length]


class AgentRegistry(Generic[Stream]):
    """All connected agent streams, indexed for every strategy."""

    def __init__(self) -> None:
        # Ids and identifiers at arrival, so that exactly the indexed ones are removed.
        self._members: dict[Stream, tuple[str, AgentIdentifiers] | None] = {}
        self._hosts: dict[str, list[Stream]] = {}
        self.agents: AgentIndex[Stream] = AgentIndex()
        self.default_route_agents: AgentIndex[Stream] = AgentIndex()
        self.networks: NetworkIndex[Stream] = NetworkIndex()
        self.changes = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Stream]:
        return iter(tuple(self._members))

    def __contains__(self, stream: object) -> bool:
        return stream in self._members

    def __repr__(self) -> str:
        return f"<AgentRegistry {len(self.agents)} agents, {len(self)} streams>"

    def add(self, stream: Stream) -> None:
        """Adds a stream; adding it twice has no effect."""
        if stream in self._members:
            return
        self.changes += 1
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
        """Removes this stream; False if it is not registered."""
        if stream not in self._members:
            return False
        self.withdraw(stream)
        self.changes += 1  # also if it was withdrawn before
        del self._members[stream]
        return True

    def withdraw(self, stream: Stream) -> None:
        """Removes this stream from every index, so that it gets no dials. It stays registered."""
        member = self._members[stream]
        if member is None:
            return
        self.changes += 1
        self._members[stream] = None
        agent_id, identifiers = member
        self.agents.remove(agent_id, stream)
        if identifiers.default_route:
            self.default_route_agents.remove(agent_id, stream)
        for host in identifiers.comparable_hosts:
            _take(self._hosts, host, stream)
        for network in identifiers.networks:
            self.networks.remove(network, stream)

    def streams_of(self, agent_id: str) -> Sequence[Stream]:
        """Returns the streams of one agent id, the oldest first."""
        return self.agents.streams_of(agent_id)

    def streams_for_host(self, host: str) -> Sequence[Stream]:
        """Returns the streams whose agents advertise ``host``, the oldest first."""
        return self._hosts.get(comparable_host(host), ())

    def overlaps(self, stream: Stream) -> Iterator[tuple[str, str]]:
        """Yields what ``stream`` and another agent advertise both: ``key=value``, and the other's id.

        Each identifier at most once, although several agents may overlap with it.
        """
        for host in stream.identifiers.comparable_hosts:
            if (other := _another_agent(stream, (self._hosts.get(host, ()),))) is not None:
                yield f"host={host}", other.agent_id
        for network in stream.identifiers.networks:
            if (other := _another_agent(stream, self.networks.overlapping(network))) is not None:
                yield f"cidr={network}", other.agent_id

    def ready_count(self, strategy: Strategy) -> int:
        """Returns the value of ``ready_backends``: agents, or the hosts or CIDRs that they advertise."""
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


def _another_agent(stream: Stream, found: Iterable[Sequence[Stream]]) -> Stream | None:
    """Returns the first stream with another agent id, of a bounded number of candidates."""
    candidates = chain.from_iterable(found)
    for other in islice(candidates, OVERLAP_CANDIDATES_MAX):
        if other.agent_id != stream.agent_id:
            return other
    return None


def _position(network: IPNetwork) -> tuple[int, int, int]:
    return network.version, int(network.network_address), network.prefixlen


def _keys(network: IPNetwork) -> tuple[tuple[int, int], int]:
    host_bits = network.max_prefixlen - network.prefixlen
    return (network.version, network.prefixlen), int(network.network_address) >> host_bits
