"""Which instances there are, by the policy itself or a metadata service, and which of them is calling."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

from bootbridge.common.failures import MetadataUnavailable
from bootbridge.join_api.errors import JoinRefused, RetryLater
from bootbridge.join_api.instance import Instance, IPAddress, Metadata
from bootbridge.trust.evidence import AttestedPeer

# A thousand instances that arrive at once are a few questions to the infrastructure, not a thousand.
SNAPSHOT_SECONDS_MAX: Final = 5.0


@dataclass(frozen=True)
class InventorySnapshot:
    """The instances of a moment, found by name and by key."""

    by_name: dict[str, Instance]
    by_identity: dict[str, Instance]

    @classmethod
    def of(cls, instances: Iterable[Instance]) -> InventorySnapshot:
        """Where two share a name or a key, nobody is recognised by it."""
        listed = tuple(instances)
        return cls(
            _unshared((each.name, each) for each in listed),
            _unshared((each.identity, each) for each in listed if each.identity),
        )

    def caller(self, attested: AttestedPeer, name: str, address: str) -> Instance:
        """By the key its evidence was made with; where the inventory knows none, by name and address."""
        if attested.identity and (found := self.by_identity.get(attested.identity)):
            return found
        instance = self.by_name.get(name)
        if instance is None:
            raise JoinRefused(f"no instance is named {name!r}, and none is known by the key of this evidence")
        if instance.identity:
            raise JoinRefused(
                f"{name} is listed with another key than the one that this evidence was made with"
            )
        source = source_address(address)
        if source not in instance.addresses:
            listed = ", ".join(map(str, instance.addresses)) or "no address"
            raise JoinRefused(f"{name} is listed at {listed}, and this call comes from {source or address}")
        return instance


def _unshared(keyed: Iterable[tuple[str, Instance]]) -> dict[str, Instance]:
    pairs = tuple(keyed)
    times = Counter(key for key, _ in pairs)
    return {key: each for key, each in pairs if times[key] == 1}


class Inventory(Protocol):
    async def listed(self) -> InventorySnapshot:
        """Raises RetryLater while the infrastructure does not answer."""
        ...

    def knows(self, identity: str) -> bool:
        """Whether an instance is listed with this key, as far as is known without asking anybody."""
        ...


class StaticInventory:
    def __init__(self, instances: Iterable[Instance]) -> None:
        self._listed = InventorySnapshot.of(instances)

    async def listed(self) -> InventorySnapshot:
        return self._listed

    def knows(self, identity: str) -> bool:
        return identity in self._listed.by_identity


class MetadataInventory:
    """What a metadata service lists, asked again once its last answer has grown old."""

    def __init__(self, metadata: Metadata, clock: Callable[[], float]) -> None:
        self._metadata = metadata
        self._clock = clock
        self._asking = asyncio.Lock()
        self._last: InventorySnapshot | None = None
        self._asked_at = 0.0

    async def listed(self) -> InventorySnapshot:
        async with self._asking:  # the others wait for the answer to the first
            if self._last is None or self._clock() - self._asked_at >= SNAPSHOT_SECONDS_MAX:
                try:
                    self._last = InventorySnapshot.of(await self._metadata.peers())
                except MetadataUnavailable as error:
                    raise RetryLater(f"the inventory cannot be read: {error}") from error
                self._asked_at = self._clock()
            return self._last

    def knows(self, identity: str) -> bool:
        """Needs somebody who asks for the list now and then: evidence is judged without waiting."""
        return self._last is not None and identity in self._last.by_identity


def source_address(text: str) -> IPAddress | None:
    """The address in `10.0.0.5`, `10.0.0.5:4711`, `fd00::5`, `[fd00::5]:4711`, `::ffff:10.0.0.5`."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    # A socket of both families shows IPv4 callers so.
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
