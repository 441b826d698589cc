"""Where join services may be reached: the load balancer, and every control plane by its own addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from bootbridge.common.failures import MetadataUnavailable
from bootbridge.join_api.instance import Instance, Metadata, Role
from bootbridge.join_api.messages import JOIN_PORT
from bootbridge.runtime import logs

Endpoint = tuple[str, int]


async def join_endpoints(metadata: Metadata, port: int = JOIN_PORT, *, own: bool = False) -> list[Endpoint]:
    """The load balancer first, then the control planes; with `own`, a control plane's own join service, too.

    All are asked independently, and one that does not answer leaves the others' endpoints;
    MetadataUnavailable is raised only if all fail.
    """
    answers = await asyncio.gather(
        _asked(partial(_balanced, metadata)),
        _asked(partial(_control_planes, metadata.peers)),
        *([_asked(partial(_control_planes, partial(_itself, metadata)))] if own else []),
    )
    failures = [answer for answer in answers if isinstance(answer, MetadataUnavailable)]
    if len(failures) == len(answers):
        raise MetadataUnavailable("; ".join(str(failure) for failure in failures))
    for failure in failures:
        logs.event("metadata", logs.WARNING, "some endpoints are unknown", why=str(failure))
    hosts = [host for answer in answers if isinstance(answer, list) for host in answer]
    return [(host, port) for host in dict.fromkeys(hosts)]


def host_of(endpoint: str) -> str:
    """The host of `host`, `host:port`, `[v6]:port` or a bare IPv6 address; the port is the API server's."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    host, colon, port = endpoint.rpartition(":")
    return host if colon and port.isdecimal() and ":" not in host else endpoint


async def _asked(question: Callable[[], Awaitable[list[str]]]) -> list[str] | MetadataUnavailable:
    try:
        return await question()
    except MetadataUnavailable as error:
        return error


async def _balanced(metadata: Metadata) -> list[str]:
    """Nothing rather than an empty host, which would be dialled as this very machine."""
    host = host_of(await metadata.load_balancer())
    return [host] if host else []


async def _control_planes(instances: Callable[[], Awaitable[tuple[Instance, ...]]]) -> list[str]:
    return [
        str(address)
        for each in await instances()
        if each.role is Role.CONTROL_PLANE
        for address in each.addresses
    ]


async def _itself(metadata: Metadata) -> tuple[Instance, ...]:
    return (await metadata.myself(),)
