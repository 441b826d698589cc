"""Peers from DNS: every address of one name is a control plane. The rest comes from another source."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from typing import Final

from bootbridge.common.failures import MetadataUnavailable
from bootbridge.join_api.instance import Instance, Metadata, Role
from bootbridge.runtime.lookup import Found, look_up

LOOKUP_SECONDS: Final = 10.0


class DnsMetadata:
    """Resolves the name at every call; `own` provides everything but the peers."""

    def __init__(self, control_planes: str, own: Metadata, *, lookup_seconds: float = LOOKUP_SECONDS) -> None:
        self._control_planes = control_planes
        self._own = own
        self._lookup_seconds = lookup_seconds

    async def myself(self) -> Instance:
        return await self._own.myself()

    async def peers(self) -> tuple[Instance, ...]:
        try:
            async with asyncio.timeout(self._lookup_seconds):
                found = await look_up(self._control_planes, 0)
        except TimeoutError:
            raise MetadataUnavailable(
                f"{self._control_planes}: DNS lookup timed out after {self._lookup_seconds:g}s"
            ) from None
        except (OSError, UnicodeError) as error:
            raise MetadataUnavailable(f"{self._control_planes}: {error}") from error
        return _control_planes(found)

    async def load_balancer(self) -> str:
        return await self._own.load_balancer()

    async def init_secret_hash(self) -> str:
        return await self._own.init_secret_hash()


def _control_planes(found: Found) -> tuple[Instance, ...]:
    """DNS has no instance names, so each is named by its address."""
    addresses = dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found)
    return tuple(Instance(text, Role.CONTROL_PLANE, (ip_address(text),)) for text in addresses)
