"""The state of an instance for `bootbridge node status`; reads only, and contains no secret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bootbridge.common.failures import Fatal
from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.node.configuration import NodeConfiguration
from bootbridge.node.join.last_error import LastJoinError
from bootbridge.node.lock import bootstrap_record
from bootbridge.node.lock.bootstrap_record import BootstrapRecord, Phase
from bootbridge.node.lock.node_state import FileNodeStateStore, NodeState
from bootbridge.trust.measurement import ZERO, lock_value

_NO_REGISTER = "on a machine without a TPM, set `register: /run/bootbridge-node/register` in node.yaml"


@dataclass(frozen=True)
class NodeStatus:
    """`record` is that of this boot; `remembered` is the node state, which survives reboots.

    `last_join_error` is why an instance that waits has no ticket.
    """

    record: BootstrapRecord | None
    remembered: NodeState | None
    register: bytes | None
    register_error: str = ""
    last_join_error: str = ""

    @property
    def phase(self) -> str:
        return self.record.phase if self.record else "waiting"

    @property
    def lock(self) -> str:
        """The flow that holds the lock, as far as record and register agree."""
        if self.record is not None:
            return self.record.flow
        if self.register is None:
            return "unknown"
        if self.register == ZERO:
            return "free"
        return "this node" if self.healthy else "measured without a bootstrap record"

    @property
    def healthy(self) -> bool:
        if self.register is None or (self.record and self.record.phase is Phase.FAILED):
            return False
        return self.register in self._expected

    @property
    def _expected(self) -> tuple[bytes, ...]:
        if self.record is None:
            return (ZERO, lock_value(self.remembered.cluster_id)) if self.remembered else (ZERO,)
        value = lock_value(self.record.cluster_id)
        return (ZERO, value) if self.record.phase is Phase.LOCKING else (value,)

    @property
    def document(self) -> dict[str, Any]:
        record, node = self.record, self.remembered
        return {
            "version": 1,
            "phase": self.phase,
            "lock": self.lock,
            "register": self.register.hex() if self.register is not None else "",
            "registerError": self.register_error,
            "clusterID": record.cluster_id.hex() if record else node.cluster_id.hex() if node else "",
            "node": {"name": node.name, "role": node.role} if node else None,
            "resumed": record.resumed if record else 0,
            "reason": record.reason if record else self.last_join_error,
            "advice": record.advice if record else _NO_REGISTER if self.register is None else "",
            "healthy": self.healthy,
        }

    @property
    def facts(self) -> dict[str, str]:
        """What an operator reads, by name."""
        seen = self.document
        node = f"{seen['node']['name']} ({seen['node']['role']})" if seen["node"] else "none"
        rows = {
            "phase": self.phase,
            "lock": self.lock,
            "register": seen["register"] or f"unknown: {self.register_error}",
            "cluster": seen["clusterID"] or "none",
            "node": node,
            "failed" if self.record else "last error": seen["reason"],
            "what to do": seen["advice"],
        }
        return {name: value for name, value in rows.items() if value}


async def read_status(configuration: NodeConfiguration) -> NodeStatus:
    """Raises OperatorError if a file cannot be read; an unreadable register is part of the status."""
    try:
        record, boot = bootstrap_record.read_record(configuration.settings.run)
        if boot and boot != bootstrap_record.BOOT_ID.read_text().strip():
            record = None
        remembered = FileNodeStateStore(configuration.settings.state).load()
        last_error = LastJoinError(configuration.settings.run).read()
    except Fatal as error:
        raise OperatorError(str(error)) from None
    except OSError as error:
        raise OperatorError(str(error.strerror), subject=str(error.filename), hint="run it as root") from None
    try:
        return NodeStatus(record, remembered, await configuration.register.read(), last_join_error=last_error)
    except BootbridgeError as error:
        return NodeStatus(record, remembered, None, str(error), last_error)
