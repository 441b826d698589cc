"""The steps to a channel over asyncio's streams: each has a name, one deadline, and errors of ours only."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from bootbridge.errors import BootbridgeError
from bootbridge.trust.attested.exchange import (
    FRAME_BYTES_MAX,
    Exchange,
    ExchangeFailed,
    Hear,
    Prove,
    Say,
    Step,
)
from bootbridge.trust.attested.session_key import ALPN
from bootbridge.trust.evidence import Attested, EvidenceRefused, EvidenceUnavailable, Issuer

# How long a peer may take to take leave.
FAREWELL_SECONDS: Final = 1.0
_SIZE_BYTES: Final = 4


class ChannelFailed(BootbridgeError):
    """No channel came about, for a reason that says nothing about anybody's evidence."""


@asynccontextmanager
async def step(name: str, deadline: float) -> AsyncIterator[None]:
    """Whatever the network, TLS or the peer's bytes do wrong becomes a ChannelFailed that names the step."""
    try:
        async with asyncio.timeout_at(deadline) as limit:
            yield
    except TimeoutError as error:
        text = "it was not done in time" if limit.expired() else "timed out"
        raise ChannelFailed(f"{name}: {text}") from error
    except asyncio.IncompleteReadError as error:
        raise ChannelFailed(f"{name}: the peer closed the connection") from error
    except ssl.SSLError as error:
        raise ChannelFailed(f"{name}: {(error.reason or str(error)).lower().replace('_', ' ')}") from error
    except OSError as error:
        raise ChannelFailed(f"{name}: {why(error)}") from error
    except (ExchangeFailed, ValueError) as error:
        raise ChannelFailed(f"{name}: {error}") from error


def why(error: OSError) -> str:
    """In the system's words: asyncio puts an address in their place; getaddrinfo has errors of its own."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


def session_of(writer: asyncio.StreamWriter) -> ssl.SSLObject:
    """The TLS session, if it was made for this protocol and for no other; raises ValueError."""
    session: ssl.SSLObject = writer.get_extra_info("ssl_object")
    if session.selected_alpn_protocol() != ALPN:
        raise ValueError(f"the peer does not speak {ALPN}")
    return session


async def converse(
    exchange: Exchange, issuer: Issuer | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Attested | None:
    """Drive one side of the exchange over a connection; returns what the peer proved."""
    # What is said in one breath travels together: a record and a wake-up less for each side.
    unsent = bytearray()
    try:
        due = next(exchange)
        while True:
            match due:
                case Say(frame):
                    unsent += len(frame).to_bytes(_SIZE_BYTES, "big") + frame
                    due = next(exchange)
                case Hear():
                    await _send(writer, unsent)
                    due = exchange.send(await _frame(reader))
                case Prove():
                    due = await _proved(exchange, issuer, due)
    except StopIteration as end:
        found: Attested | None = end.value
    except BaseException:
        writer.write(bytes(unsent))  # the peer is told why
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
        raise ExchangeFailed(f"the peer announced a frame of {size} bytes")
    return await reader.readexactly(size)


async def _proved(exchange: Exchange, issuer: Issuer | None, wanted: Prove) -> Step:
    assert issuer is not None, "nothing is to be proved by a side that shows nothing"
    try:
        if wanted.challenge is None:
            document = await issuer.issue(wanted.statement)
        else:
            document = await issuer.answer(wanted.statement, wanted.challenge)
    except (EvidenceUnavailable, EvidenceRefused) as error:
        return exchange.throw(error)
    except Exception as error:
        # A device's OSError must not look like one of the network.
        failed = EvidenceUnavailable(f"our {issuer.kind} evidence failed: {type(error).__name__}: {error}")
        failed.__cause__ = error
        return exchange.throw(failed)
    return exchange.send(document)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close, with what was written before on its way; not for longer than a moment."""
    writer.close()
    closed = False
    try:
        async with asyncio.timeout(FAREWELL_SECONDS):
            await writer.wait_closed()
        closed = True
    except TimeoutError:
        pass
    except OSError:
        closed = True
    finally:
        if not closed:  # else there is nothing to abort, and Debian 12's asyncio stumbles over that
            writer.transport.abort()
