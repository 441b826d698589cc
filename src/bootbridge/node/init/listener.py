"""The port that `bootbridge node init` connects to: attested TLS, with limits for unauthenticated peers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from bootbridge.node.init.messages import INIT_LABEL
from bootbridge.runtime import grpc, logs
from bootbridge.runtime.grpc import Handler
from bootbridge.trust.attested.channel import AdmissionLimits, Attestation, AttestedChannel, AttestedListener
from bootbridge.trust.evidence import Issuer
from bootbridge.wire.addresses import source_of

# Each handshake costs a TPM quote, and the join client needs the same TPM: few at a time.
INIT_LIMITS: Final = AdmissionLimits(handshakes=8, channels=32, waiting=64, share=0.25)
INIT_CALLS_MAX: Final = 2
# For a client that has not sent the init secret. Longer than the queue of guesses before its own attempt,
# even if all of them come from the same address.
UNAUTHENTICATED_SECONDS_MAX: Final = 90.0

# Called when a client has sent the init secret: removes the time limit of its connection.
Admitted = Callable[[], None]
# Returns the handlers of one connection by path, given its source address.
HandlersFor = Callable[[str, Admitted], Mapping[str, Handler]]


class InitListener(Protocol):
    @property
    def connections(self) -> int:
        """The number of connections, including those still in the handshake."""
        ...

    async def stop(self) -> None:
        """Stops accepting; running calls may finish within a limit."""
        ...


OpenInitListener = Callable[[HandlersFor], Awaitable[InitListener]]


async def open_init_listener(issuer: Issuer, host: str, port: int, handlers: HandlersFor) -> InitListener:
    """The instance proves itself by its evidence, the client by the init secret."""

    async def handle(channel: AttestedChannel) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(UNAUTHENTICATED_SECONDS_MAX) as limit:
                await grpc.serve(
                    channel.reader,
                    channel.writer,
                    handlers(source_of(channel.peer_address), partial(_remove_limit, limit)),
                    concurrent_max=INIT_CALLS_MAX,
                    stopping=channel.stopping,
                )

    listener = await AttestedListener.open(
        host,
        port,
        label=INIT_LABEL,
        attestation=lambda: Attestation(issuer),
        handle=handle,
        limits=INIT_LIMITS,
    )
    logs.event("node", logs.INFO, "init listener started", port=listener.port)
    return listener


def _remove_limit(limit: asyncio.Timeout) -> None:
    # An expired timeout cannot be rescheduled.
    if not limit.expired():
        limit.reschedule(None)
