"""The instances that may join, from the policy or a metadata service, and which of them is calling."""

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
from bootbridge.trust.identity import KINDS_WITH_KEY

# A thousand instances that arrive at once cause a few requests to the metadata service, not a thousand.
SNAPSHOT_SECONDS_MAX: Final = 5.0


@dataclass(frozen=True)
class InventorySnapshot:
    by_name: dict[str, Instance]
    by_identity: dict[str, Instance]

    @classmethod
    def of(cls, instances: Iterable[Instance]) -> InventorySnapshot:
        """A name or key that two instances share identifies neither."""
        listed = tuple(instances)
        return cls(
            _unique((each.name, each) for each in listed),
            _unique((each.identity, each) for each in listed if each.identity),
        )

    def find_caller(self, attested: AttestedPeer, name: str, address: str) -> Instance:
        """By kind and key of the evidence; an instance without a key, by name. Raises JoinRefused.

        A name must call from one of its addresses, and so must a token, which others may know.
        """
        found = self.by_identity.get(attested.identity)
        if found is not None and attested.kind in KINDS_WITH_KEY:
            return found
        instance = found or self.by_name.get(name)
        if instance is None:
            raise JoinRefused(f"{name}: not in the inventory, by name or by the evidence's key")
        if instance.identity and found is None:
            raise JoinRefused(
                f"{name}: the inventory has another key than the evidence's "
                f"({instance.identity}, but the caller is {attested.identity})"
            )
        source = source_address(address)
        if source not in instance.addresses:
            listed = ", ".join(map(str, instance.addresses)) or "none"
            raise JoinRefused(
                f"{name}: call from address {source or address}, but the inventory's addresses are: {listed}"
            )
        return instance


def _unique(keyed: Iterable[tuple[str, Instance]]) -> dict[str, Instance]:
    pairs = tuple(keyed)
    counts = Counter(key for key, _ in pairs)
    return {key: each for key, each in pairs if counts[key] == 1}


class Inventory(Protocol):
    async def snapshot(self) -> InventorySnapshot:
        """Raises RetryLater while the metadata service is unavailable."""
        ...

    def has_identity(self, identity: str) -> bool:
        """Whether the last snapshot has an instance with this key; does no I/O."""
        ...


class StaticInventory:
    def __init__(self, instances: Iterable[Instance]) -> None:
        self._snapshot = InventorySnapshot.of(instances)

    async def snapshot(self) -> InventorySnapshot:
        return self._snapshot

    def has_identity(self, identity: str) -> bool:
        return identity in self._snapshot.by_identity


class MetadataInventory:
    """Caches the metadata service's answer for SNAPSHOT_SECONDS_MAX."""

    def __init__(self, metadata: Metadata, clock: Callable[[], float]) -> None:
        self._metadata = metadata
        self._clock = clock
        self._lock = asyncio.Lock()
        self._last: InventorySnapshot | None = None
        self._taken_at = 0.0

    async def snapshot(self) -> InventorySnapshot:
        async with self._lock:  # concurrent callers share one request
            if self._last is None or self._clock() - self._taken_at >= SNAPSHOT_SECONDS_MAX:
                try:
                    self._last = InventorySnapshot.of(await self._metadata.peers())
                except MetadataUnavailable as error:
                    raise RetryLater(f"inventory unavailable: {error}") from error
                self._taken_at = self._clock()
            return self._last

    def has_identity(self, identity: str) -> bool:
        """Needs a periodic `snapshot`: evidence is verified without I/O."""
        return self._last is not None and identity in self._last.by_identity


def source_address(text: str) -> IPAddress | None:
    """Parses `10.0.0.5`, `10.0.0.5:4711`, `fd00::5`, `[fd00::5]:4711` and `::ffff:10.0.0.5`."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    # A dual-stack socket reports IPv4 peers as mapped addresses.
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
