"""Runs the exchange of evidence over asyncio's streams, with deadlines and named errors."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from bootbridge.errors import BootbridgeError
from bootbridge.trust.attested.exchange import (
    FRAME_BYTES_MAX,
    Exchange,
    ExchangeFailed,
    ExchangeStep,
    ProduceEvidence,
    ReceiveFrame,
    SendFrame,
)
from bootbridge.trust.attested.session_key import ALPN
from bootbridge.trust.evidence import (
    AttestedPeer,
    EvidenceRefused,
    EvidenceUnavailable,
    Issuer,
    Requester,
)

# How long our own evidence may wait for its device while the deadline of the handshake is stopped.
DEVICE_WAIT_SECONDS_MAX: Final = 120.0
# For the peer to read our last message and close.
CLOSE_SECONDS_MAX: Final = 1.0
_SIZE_BYTES: Final = 4


class ChannelFailed(BootbridgeError):
    """The handshake failed for a reason other than evidence: network, TLS, protocol or timeout."""


class StepDeadline:
    """A deadline that stops while our own evidence waits for its device: others cause that, not this peer."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._left: float | None = None

    def pause(self) -> None:
        """Until `resume`, or for DEVICE_WAIT_SECONDS_MAX."""
        when = self._timeout.when()
        if self._left is None and when is not None and not self._timeout.expired():
            self._left = when - self._loop.time()
            self._timeout.reschedule(when + DEVICE_WAIT_SECONDS_MAX)

    def resume(self) -> None:
        """Idempotent."""
        if self._left is not None and not self._timeout.expired():
            self._timeout.reschedule(self._loop.time() + self._left)
        self._left = None


@asynccontextmanager
async def handshake_step(name: str, deadline: float) -> AsyncIterator[StepDeadline]:
    """Turns errors of the network, TLS and the protocol into ChannelFailed with the step's name."""
    try:
        async with asyncio.timeout_at(deadline) as timeout:
            yield StepDeadline(timeout)
    except TimeoutError as error:
        raise ChannelFailed(f"{name}: timed out") from error
    except asyncio.IncompleteReadError as error:
        raise ChannelFailed(f"{name}: connection closed by peer") from error
    except ssl.SSLError as error:
        raise ChannelFailed(f"{name}: {(error.reason or str(error)).lower().replace('_', ' ')}") from error
    except OSError as error:
        raise ChannelFailed(f"{name}: {os_error_text(error)}") from error
    except (ExchangeFailed, ValueError) as error:
        raise ChannelFailed(f"{name}: {error}") from error


def os_error_text(error: OSError) -> str:
    """Returns strerror(3)'s text: asyncio's `strerror` names an address, getaddrinfo's errno is negative."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


def tls_session(writer: asyncio.StreamWriter) -> ssl.SSLObject:
    """Raises ValueError unless ALPN selected our protocol."""
    session: ssl.SSLObject = writer.get_extra_info("ssl_object")
    if session.selected_alpn_protocol() != ALPN:
        raise ValueError(f"peer does not support ALPN protocol {ALPN}")
    return session


@dataclass(frozen=True)
class EvidenceSource:
    """Our own evidence for one exchange: its issuer, the source of the peer, and the deadline of the step."""

    issuer: Issuer | None
    source: str
    deadline: StepDeadline


async def run_exchange(
    exchange: Exchange, own: EvidenceSource, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AttestedPeer | None:
    """Drives one side of the exchange over a connection; returns what the peer proved."""
    # Consecutive frames share one write: one TLS record and one wake-up of the peer.
    unsent = bytearray()
    try:
        due = next(exchange)
        while True:
            match due:
                case SendFrame(frame):
                    unsent += len(frame).to_bytes(_SIZE_BYTES, "big") + frame
                    due = next(exchange)
                case ReceiveFrame():
                    await _send(writer, unsent)
                    due = exchange.send(await _frame(reader))
                case ProduceEvidence():
                    due = await _produce(exchange, own, due)
    except StopIteration as end:
        found: AttestedPeer | None = end.value
    except BaseException:
        writer.write(bytes(unsent))  # the reason, for the peer
        raise
    await _send(writer, unsent)
    return found


async def _send(writer: asyncio.StreamWriter, unsent: bytearray) -> None:
    writer.write(bytes(unsent))
    unsent.clear()
    await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(_SIZE_BYTES), "big")
    if size > FRAME_BYTES_MAX:
        raise ExchangeFailed(f"frame too large: {size} bytes (at most {FRAME_BYTES_MAX})")
    return await reader.readexactly(size)


async def _produce(exchange: Exchange, own: EvidenceSource, wanted: ProduceEvidence) -> ExchangeStep:
    issuer = own.issuer
    assert issuer is not None, "only a side with an issuer produces evidence"
    requester = Requester(own.source, own.deadline.pause, own.deadline.resume)
    try:
        if wanted.challenge is None:
            document = await issuer.issue(wanted.binding, requester)
        else:
            document = await issuer.answer(wanted.binding, wanted.challenge, requester)
    except (EvidenceUnavailable, EvidenceRefused) as error:
        return exchange.throw(error)
    except Exception as error:
        # An OSError of a TPM device must not be taken for a network error.
        failed = EvidenceUnavailable(f"{issuer.kind} evidence failed: {type(error).__name__}: {error}")
        failed.__cause__ = error
        return exchange.throw(failed)
    finally:
        own.deadline.resume()
    return exchange.send(document)


async def close_gracefully(writer: asyncio.StreamWriter) -> None:
    """Flushes, closes, and aborts after CLOSE_SECONDS_MAX."""
    writer.close()
    closed = False
    try:
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            await writer.wait_closed()
        closed = True
    except TimeoutError:
        pass
    except OSError:
        closed = True
    finally:
        if not closed:  # abort() of a closed transport raises on Debian 12's asyncio
            writer.transport.abort()
