"""The addresses of join services: the load balancer, then every control plane."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from bootbridge.common.failures import MetadataUnavailable
from bootbridge.join_api.instance import Instance, Metadata, Role
from bootbridge.join_api.messages import JOIN_PORT
from bootbridge.runtime import logs

Address = tuple[str, int]


async def join_endpoints(metadata: Metadata, port: int = JOIN_PORT, *, own: bool = False) -> list[Address]:
    """Returns the load balancer, then the control planes; `own` adds this instance if it is one.

    Sources are queried independently; MetadataUnavailable is raised only if all of them fail.
    """
    answers = await asyncio.gather(
        _query(partial(_load_balancer, metadata)),
        _query(partial(_control_planes, metadata.peers)),
        *([_query(partial(_control_planes, partial(_this_instance, metadata)))] if own else []),
    )
    failures = [answer for answer in answers if isinstance(answer, MetadataUnavailable)]
    if len(failures) == len(answers):
        raise MetadataUnavailable("; ".join(str(failure) for failure in failures))
    for failure in failures:
        logs.event("metadata", logs.WARNING, "metadata source failed", error=str(failure))
    hosts = [host for answer in answers if isinstance(answer, list) for host in answer]
    return [(host, port) for host in dict.fromkeys(hosts)]


def host_of(endpoint: str) -> str:
    """Returns the host of `host`, `host:port`, `[IPv6]:port` or a bare IPv6 address."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    host, colon, port = endpoint.rpartition(":")
    return host if colon and port.isdecimal() and ":" not in host else endpoint


def format_address(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _query(source: Callable[[], Awaitable[list[str]]]) -> list[str] | MetadataUnavailable:
    try:
        return await source()
    except MetadataUnavailable as error:
        return error


async def _load_balancer(metadata: Metadata) -> list[str]:
    """Omits an empty host, which would be dialled as localhost."""
    host = host_of(await metadata.load_balancer())
    return [host] if host else []


async def _control_planes(instances: Callable[[], Awaitable[tuple[Instance, ...]]]) -> list[str]:
    return [
        str(address)
        for each in await instances()
        if each.role is Role.CONTROL_PLANE
        for address in each.addresses
    ]


async def _this_instance(metadata: Metadata) -> tuple[Instance, ...]:
    return (await metadata.myself(),)
