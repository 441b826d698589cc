"""The audit trail (`--audit-log`): one JSON line for each dial, when nothing more of it can follow."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Final, Literal

from bootbridge.common.field_names import camel_case
from bootbridge.errors import OperatorError
from bootbridge.runtime.rotated_file import RotatedFile
from bootbridge.runtime.status_query import timestamp
from bootbridge.tunnel.dial_record import DialRecord
from bootbridge.wire.addresses import host_of, parse_ip

STDOUT: Final = "-"
# Lines that wait for a slow disk: those of ten thousand connections that end at once.
QUEUE_BYTES_MAX: Final = 8 * 1024 * 1024

Outcome = Literal["established", "no agent", "refused", "agent lost", "timed out", "cancelled"]
ClosedBy = Literal["", "caller", "endpoint", "both ends", "agent lost", "server"]


@dataclass
class AuditLine:
    """One dial to the end of its connection, written by `proxy-server --audit-log`."""

    # As common.documents.CONFIG, which this process must not import.
    __pydantic_config__ = {  # noqa: RUF012
        "extra": "forbid",
        "strict": True,
        "alias_generator": camel_case,
        "use_attribute_docstrings": True,
    }

    time: str
    """When the caller asked, in UTC with milliseconds."""
    server_id: str
    """The server (`--server-id`)."""
    id: int
    """The dial's number, from 1 at the start of the server. `/status` shows the same one."""
    caller: str
    """Address of the caller, or `unix`."""
    protocol: Literal["http-connect", "grpc"]
    """The caller's protocol."""
    destination: str
    """`host:port` that the caller asked for. Not trusted: up to 512 characters of any kind."""
    name: str
    """The host name in `destination`; empty if that is an IP address."""
    strategy: str
    """The strategy that selected the agent, or `direct`; empty if none did."""
    agent: str
    """ID of the last agent that was asked; empty if the server dialled itself, or found none."""
    tried_agents: list[str]
    """IDs of all agents that were asked, in this order."""
    outcome: Outcome
    """How the dial was answered. The metric `dial_failure_count` counts the same."""
    hop: str
    """The hop that failed; empty for an established or cancelled dial."""
    reason: str
    """Why the dial failed. Not trusted: up to 300 characters of an agent's text."""
    connect_seconds: float
    """From the request to the answer."""
    open_seconds: float
    """From the answer until the connection was closed; 0 if it was not established."""
    bytes_up: int
    """Payload bytes sent to the agent, or with `direct` to the endpoint."""
    bytes_down: int
    """Payload bytes received from there. A caller that has left may not have taken the last of them."""
    closed_by: ClosedBy
    """Who closed the connection or cancelled the dial; empty if the dial was answered with an error."""
    close_reason: str
    """Why the connection was closed. The metric `closed_connections_total` counts the part before a colon."""


_KEYS: Final = tuple((field.name, camel_case(field.name)) for field in fields(AuditLine))


class AuditTrail:
    """Writes lines to a file or stdout. Never waits for either: lines that do not fit are counted."""

    def __init__(self, target: str, server_id: str) -> None:
        self._server_id = server_id
        try:
            self._file = RotatedFile(
                "" if target == STDOUT else target, "audit lines dropped", bytes_max=QUEUE_BYTES_MAX
            )
        except OSError as error:
            raise OperatorError(
                f"cannot write {target}: {error.strerror}",
                subject="--audit-log",
                hint="use a file in a writable directory, or - for stdout",
            ) from error

    @property
    def dropped(self) -> int:
        return self._file.dropped

    @property
    def waiting_bytes(self) -> int:
        return self._file.waiting_bytes

    @property
    def waiting_bytes_max(self) -> int:
        return QUEUE_BYTES_MAX

    def write(self, record: DialRecord) -> None:
        line = audit_line(record, self._server_id)
        document = {key: getattr(line, field) for field, key in _KEYS}
        self._file.write(json.dumps(document).encode() + b"\n")

    def reopen(self) -> None:
        self._file.reopen()

    def close(self) -> None:
        self._file.close()


def audit_line(record: DialRecord, server_id: str) -> AuditLine:
    host = host_of(record.destination)
    return AuditLine(
        time=timestamp(record.time) or "",
        server_id=server_id,
        id=record.id,
        caller=record.caller,
        protocol=record.protocol,  # type: ignore[arg-type]
        destination=record.destination,
        name="" if parse_ip(host) else host,
        strategy=record.strategy,
        agent=record.agent,
        tried_agents=list(record.tried_agents),
        outcome=record.outcome,  # type: ignore[arg-type]
        hop=record.hop,
        reason=record.reason,
        connect_seconds=round(record.connect_seconds, 6),
        open_seconds=round(record.open_seconds, 6),
        bytes_up=record.bytes_up,
        bytes_down=record.bytes_down,
        closed_by=record.closed_by,  # type: ignore[arg-type]
        close_reason=record.close_reason,
    )
