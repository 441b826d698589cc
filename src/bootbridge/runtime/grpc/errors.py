"""How a call fails: a gRPC status that is not OK, whoever it came from."""

from __future__ import annotations

from bootbridge.errors import BootbridgeError
from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as grpc

# What a reset says in gRPC's terms; all others are a fault inside the peer.
_MEANING_OF_RESET = {
    f.REFUSED_STREAM: grpc.UNAVAILABLE,
    f.CANCEL: grpc.CANCELLED,
    f.ENHANCE_YOUR_CALM: grpc.RESOURCE_EXHAUSTED,
}


class RpcError(BootbridgeError):
    """``code`` is one of the statuses in `wire/grpc_messages.py`; ``message`` is told to the caller."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def code_name(self) -> str:
        known = grpc.STATUS_NAMES
        return known[self.code] if 0 <= self.code < len(known) else f"Code({self.code})"

    def __str__(self) -> str:
        return f"{self.code_name}: {self.message}"


def rpc_error_from_reset(code: int, reason: str) -> RpcError:
    return RpcError(_MEANING_OF_RESET.get(code, grpc.INTERNAL), reason)
