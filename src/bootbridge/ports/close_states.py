"""How connections open, half-close and close: every state, every event, one table for each kind of object.

A tunnelled connection is a chain of objects, one per hop: byte stream ↔ frontend ↔ route ↔ packet stream
↔ endpoint ↔ byte stream. Bytes from the caller to the endpoint are the *upload*, bytes to the caller the
*download*. Each object holds exactly one state, and events move it through the table of its kind.

Three rules explain the tables:

1. **Each direction ends once.** A half-close ends one direction and leaves the other open. So an open
   connection has four states: open, upload ended, download ended, both ended. An end that a peer repeats
   changes nothing.
2. **Closing differs from closed where something must still be sent.** A route sends the rest of the upload
   and waits for the agent's CLOSE_RSP. An endpoint sends the rest of the download, then CLOSE_RSP. A byte
   stream writes its backlog. A direct route owns both of its byte streams and leaves this to them, so it
   closes at once.
3. **A loss never looks like an end.** Only the events called *ends* and *closed* lead to an orderly close.
   After a loss, an overrun or a stop the other side is reset or receives an error text.

An event that is listed with the state itself has no effect there: it is late or repeated. An event that is
not listed is a defect of ours and raises ``IllegalTransition``; packets of a misbehaving peer never do.
DATA is not an event: a transition decides where bytes go, and DATA then needs no lookup.

HTTP/2 streams are not in here: `wire.http2_stream` has the two flags of RFC 9113, section 5.1. Pending dials
are not either: a dial is answered once, and it is the frontend that is in the state *dialling* meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from bootbridge.errors import LocalError


class State(StrEnum):
    NEW = "new"
    DIALLING = "dialling"
    DIALLING_UPLOAD_ENDED = "dialling, upload ended"
    OPEN = "open"
    UPLOAD_ENDED = "upload ended"
    DOWNLOAD_ENDED = "download ended"
    BOTH_ENDED = "both ended"
    READ_ENDED = "read ended"
    WRITE_ENDED = "write ended"
    WRITE_BROKEN = "write broken"
    ENDED = "ended"
    CLOSING = "closing"
    CLOSING_READ_ENDED = "closing, read ended"
    LINGERING = "lingering"
    CLOSED = "closed"


class Event(StrEnum):
    REQUEST = "request"  # the caller asked for an address
    ESTABLISHED = "established"  # its dial succeeded
    REFUSED = "refused"  # its request or dial failed
    CALLER_ENDS = "caller ends"  # half-close: no more upload
    CALLER_GONE = "caller gone"  # closed, reset or cancelled
    ENDPOINT_ENDS = "endpoint ends"  # half-close: no more download
    ENDPOINT_CLOSED = "endpoint closed"  # and it reads no more, or no peer on the path supports half-close
    ENDPOINT_LOST = "endpoint lost"  # reset, or unreachable
    STREAM_LOST = "stream lost"  # the packet stream that carries the connection is over
    CLOSE_REQUESTED = "close requested"  # CLOSE_REQ
    RESET_REQUESTED = "reset requested"  # RESET: the rest of the upload was dropped
    OVERRUN = "overrun"  # a receiver has too many bytes waiting for it
    IDLE = "idle"  # half-closed, and without a byte for too long
    TIMED_OUT = "timed out"  # closing takes too long
    PEER_ENDS = "peer ends"  # end of file, END_STREAM or reset
    WRITE_FAILS = "write fails"  # the peer accepts no more, but its last bytes may still be unread
    FINISH = "finish"  # half-close by the owner
    FLUSHED = "flushed"  # everything that was accepted is sent
    CLOSE = "close"  # by the owner
    RELEASE = "release"  # delivered, aborted or lost: nothing is left to wait for


class IllegalTransition(LocalError):
    """An event that cannot happen in this state: a defect of ours."""


class CloseTable:
    """The states of one kind of object. The first state is the one in which it begins."""

    __slots__ = ("kind", "transitions")

    def __init__(self, kind: str, transitions: Mapping[State, Mapping[Event, State]]) -> None:
        self.kind = kind
        self.transitions = transitions

    def after(self, state: State, event: Event) -> State:
        following = self.transitions[state].get(event)
        if following is None:
            raise IllegalTransition(f"{self.kind}: event {event!r} in state {state!r}")
        return following


# A caller on the API server's side, by HTTP CONNECT or gRPC. A gRPC caller knows no half-close, so it never
# ends; one that closes, cancels or mixes up connection ids is gone. After HTTP CONNECT an end while the dial
# is pending is kept, and passed on when the route is established.
FRONTEND: Final = CloseTable(
    "frontend",
    {
        State.NEW: {
            Event.REQUEST: State.DIALLING,
            Event.REFUSED: State.CLOSED,
            Event.CALLER_ENDS: State.CLOSED,  # in the middle of its request
            Event.CALLER_GONE: State.CLOSED,
            Event.CLOSE: State.CLOSED,
        },
        State.DIALLING: {
            Event.ESTABLISHED: State.OPEN,
            Event.REFUSED: State.CLOSED,
            Event.CALLER_ENDS: State.DIALLING_UPLOAD_ENDED,
            Event.CALLER_GONE: State.CLOSED,
        },
        State.DIALLING_UPLOAD_ENDED: {
            Event.ESTABLISHED: State.OPEN,
            Event.REFUSED: State.CLOSED,
            Event.CALLER_GONE: State.CLOSED,
        },
        State.OPEN: {
            Event.CALLER_ENDS: State.OPEN,  # the route keeps account of directions
            Event.CALLER_GONE: State.CLOSED,
            Event.CLOSE: State.CLOSED,
        },
        State.CLOSED: {
            Event.CALLER_GONE: State.CLOSED,
            Event.CLOSE: State.CLOSED,
        },
    },
)

# A connection through an agent, in the server. Both directions may have ended while the agent's CLOSE_RSP is
# still on its way. Releasing the first bytes of an endpoint may close the route in the middle of another
# event, so a closed route ignores the ends and losses of that moment; also an agent's second CLOSE_RSP or its
# END behind one, which are held with the first bytes like the packet that closed it.
AGENT_ROUTE: Final = CloseTable(
    "agent route",
    {
        State.OPEN: {
            Event.CALLER_ENDS: State.UPLOAD_ENDED,
            Event.ENDPOINT_ENDS: State.DOWNLOAD_ENDED,
            Event.CALLER_GONE: State.CLOSING,
            Event.OVERRUN: State.CLOSING,
            Event.ENDPOINT_CLOSED: State.CLOSED,
            Event.STREAM_LOST: State.CLOSED,
        },
        State.UPLOAD_ENDED: {
            Event.CALLER_ENDS: State.UPLOAD_ENDED,
            Event.ENDPOINT_ENDS: State.BOTH_ENDED,
            Event.CALLER_GONE: State.CLOSING,
            Event.OVERRUN: State.CLOSING,
            Event.IDLE: State.CLOSING,
            Event.ENDPOINT_CLOSED: State.CLOSED,
            Event.STREAM_LOST: State.CLOSED,
        },
        State.DOWNLOAD_ENDED: {
            Event.CALLER_ENDS: State.BOTH_ENDED,
            Event.ENDPOINT_ENDS: State.DOWNLOAD_ENDED,
            Event.CALLER_GONE: State.CLOSING,
            Event.OVERRUN: State.CLOSING,
            Event.IDLE: State.CLOSING,
            Event.ENDPOINT_CLOSED: State.CLOSED,
            Event.STREAM_LOST: State.CLOSED,
        },
        State.BOTH_ENDED: {
            Event.CALLER_ENDS: State.BOTH_ENDED,
            Event.ENDPOINT_ENDS: State.BOTH_ENDED,
            Event.CALLER_GONE: State.CLOSING,
            Event.OVERRUN: State.CLOSING,
            Event.IDLE: State.CLOSING,
            Event.ENDPOINT_CLOSED: State.CLOSED,
            Event.STREAM_LOST: State.CLOSED,
        },
        State.CLOSING: {
            Event.CALLER_ENDS: State.CLOSING,
            Event.CALLER_GONE: State.CLOSING,
            Event.ENDPOINT_ENDS: State.CLOSING,
            Event.ENDPOINT_CLOSED: State.CLOSED,
            Event.STREAM_LOST: State.CLOSED,
            Event.TIMED_OUT: State.CLOSED,
        },
        State.CLOSED: {
            Event.CALLER_ENDS: State.CLOSED,
            Event.ENDPOINT_ENDS: State.CLOSED,
            Event.ENDPOINT_CLOSED: State.CLOSED,
            Event.STREAM_LOST: State.CLOSED,
        },
    },
)

# A connection that the server dialled itself. When both directions have ended, nothing is left to wait for.
DIRECT_ROUTE: Final = CloseTable(
    "direct route",
    {
        State.OPEN: {
            Event.CALLER_ENDS: State.UPLOAD_ENDED,
            Event.ENDPOINT_ENDS: State.DOWNLOAD_ENDED,
            Event.CALLER_GONE: State.CLOSED,
            Event.ENDPOINT_CLOSED: State.CLOSED,
            Event.ENDPOINT_LOST: State.CLOSED,
            Event.CLOSE: State.CLOSED,
        },
        State.UPLOAD_ENDED: {
            Event.ENDPOINT_ENDS: State.CLOSED,
            Event.CALLER_GONE: State.CLOSED,
            Event.ENDPOINT_CLOSED: State.CLOSED,
            Event.ENDPOINT_LOST: State.CLOSED,
            Event.IDLE: State.CLOSED,
            Event.CLOSE: State.CLOSED,
        },
        State.DOWNLOAD_ENDED: {
            Event.CALLER_ENDS: State.CLOSED,
            Event.CALLER_GONE: State.CLOSED,
            Event.ENDPOINT_LOST: State.CLOSED,
            Event.IDLE: State.CLOSED,
            Event.CLOSE: State.CLOSED,
        },
        State.CLOSED: {
            Event.CALLER_ENDS: State.CLOSED,
            Event.ENDPOINT_LOST: State.CLOSED,
        },
    },
)

# The TCP connection that an agent made, and its part of the server's packet stream. It is closed when its
# CLOSE_RSP is sent or cannot be received any more. END, CLOSE_REQ and RESET may come at any time.
ENDPOINT: Final = CloseTable(
    "endpoint",
    {
        State.OPEN: {
            Event.CALLER_ENDS: State.UPLOAD_ENDED,
            Event.ENDPOINT_ENDS: State.DOWNLOAD_ENDED,
            Event.ENDPOINT_CLOSED: State.CLOSING,
            Event.ENDPOINT_LOST: State.CLOSING,
            Event.OVERRUN: State.CLOSING,
            Event.CLOSE_REQUESTED: State.CLOSED,
            Event.RESET_REQUESTED: State.CLOSED,
            Event.STREAM_LOST: State.CLOSED,
        },
        State.UPLOAD_ENDED: {
            Event.CALLER_ENDS: State.UPLOAD_ENDED,
            Event.ENDPOINT_ENDS: State.CLOSING,
            Event.ENDPOINT_CLOSED: State.CLOSING,
            Event.ENDPOINT_LOST: State.CLOSING,
            Event.OVERRUN: State.CLOSING,
            Event.CLOSE_REQUESTED: State.CLOSED,
            Event.RESET_REQUESTED: State.CLOSED,
            Event.STREAM_LOST: State.CLOSED,
        },
        State.DOWNLOAD_ENDED: {
            Event.CALLER_ENDS: State.CLOSING,
            Event.ENDPOINT_LOST: State.CLOSING,
            Event.OVERRUN: State.CLOSING,
            Event.CLOSE_REQUESTED: State.CLOSED,
            Event.RESET_REQUESTED: State.CLOSED,
            Event.STREAM_LOST: State.CLOSED,
        },
        State.CLOSING: {
            Event.CALLER_ENDS: State.CLOSING,
            Event.FLUSHED: State.CLOSED,
            Event.CLOSE_REQUESTED: State.CLOSED,
            Event.RESET_REQUESTED: State.CLOSED,
            Event.STREAM_LOST: State.CLOSED,
        },
        State.CLOSED: {},
    },
)

# One gRPC stream of packets. The server ends its half with trailers, behind everything that it accepted; an
# agent resets the stream instead and stays in *ended*.
PACKET_STREAM: Final = CloseTable(
    "packet stream",
    {
        State.OPEN: {Event.PEER_ENDS: State.ENDED, Event.CLOSE: State.ENDED},
        State.ENDED: {
            Event.FINISH: State.CLOSING,
            Event.PEER_ENDS: State.ENDED,
            Event.CLOSE: State.ENDED,
        },
        State.CLOSING: {
            Event.FLUSHED: State.CLOSED,
            Event.FINISH: State.CLOSING,
            Event.PEER_ENDS: State.CLOSING,
            Event.CLOSE: State.CLOSING,
        },
        State.CLOSED: {
            Event.FINISH: State.CLOSED,
            Event.PEER_ENDS: State.CLOSED,
            Event.CLOSE: State.CLOSED,
        },
    },
)

# A socket, plain or TLS. Reading and writing end separately. After a failed write the peer's last bytes are
# still read, since they may say why. Closing writes the backlog, and drops what the peer still sends; then a
# TCP stream lingers until the peer's kernel has acknowledged everything. TLS knows no half-close: it never
# finishes, and a peer that ends is closed by the owner. TLS may report one end twice, by alert and by FIN.
BYTE_STREAM: Final = CloseTable(
    "byte stream",
    {
        State.OPEN: {
            Event.PEER_ENDS: State.READ_ENDED,
            Event.FINISH: State.WRITE_ENDED,
            Event.WRITE_FAILS: State.WRITE_BROKEN,
            Event.CLOSE: State.CLOSING,
            Event.RELEASE: State.CLOSED,
        },
        State.READ_ENDED: {
            Event.PEER_ENDS: State.READ_ENDED,
            Event.FINISH: State.BOTH_ENDED,
            Event.WRITE_FAILS: State.CLOSED,
            Event.CLOSE: State.CLOSING_READ_ENDED,
            Event.RELEASE: State.CLOSED,
        },
        State.WRITE_ENDED: {
            Event.PEER_ENDS: State.BOTH_ENDED,
            Event.FINISH: State.WRITE_ENDED,
            Event.WRITE_FAILS: State.WRITE_BROKEN,
            Event.CLOSE: State.CLOSING,
            Event.RELEASE: State.CLOSED,
        },
        State.BOTH_ENDED: {
            Event.FINISH: State.BOTH_ENDED,
            Event.WRITE_FAILS: State.CLOSED,
            Event.CLOSE: State.CLOSING_READ_ENDED,
            Event.RELEASE: State.CLOSED,
        },
        State.WRITE_BROKEN: {
            Event.PEER_ENDS: State.CLOSED,
            Event.FINISH: State.WRITE_BROKEN,
            Event.CLOSE: State.CLOSING,
            Event.RELEASE: State.CLOSED,
        },
        State.CLOSING: {
            Event.PEER_ENDS: State.CLOSING_READ_ENDED,
            Event.FLUSHED: State.LINGERING,
            Event.WRITE_FAILS: State.CLOSED,
            Event.CLOSE: State.CLOSING,
            Event.RELEASE: State.CLOSED,
        },
        State.CLOSING_READ_ENDED: {
            Event.PEER_ENDS: State.CLOSING_READ_ENDED,
            Event.FLUSHED: State.LINGERING,
            Event.WRITE_FAILS: State.CLOSED,
            Event.CLOSE: State.CLOSING_READ_ENDED,
            Event.RELEASE: State.CLOSED,
        },
        State.LINGERING: {
            Event.PEER_ENDS: State.LINGERING,
            Event.CLOSE: State.LINGERING,
            Event.RELEASE: State.CLOSED,
        },
        State.CLOSED: {
            Event.PEER_ENDS: State.CLOSED,
            Event.CLOSE: State.CLOSED,
            Event.RELEASE: State.CLOSED,
        },
    },
)

TABLES: Final = (FRONTEND, AGENT_ROUTE, DIRECT_ROUTE, ENDPOINT, PACKET_STREAM, BYTE_STREAM)
