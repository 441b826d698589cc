"""Failed calls: a gRPC status other than OK, from the peer or from us."""

from __future__ import annotations

from bootbridge.errors import BootbridgeError
from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as grpc

# The gRPC status of an HTTP/2 reset; all other codes are INTERNAL.
_STATUS_OF_RESET = {
    f.REFUSED_STREAM: grpc.UNAVAILABLE,
    f.CANCEL: grpc.CANCELLED,
    f.ENHANCE_YOUR_CALM: grpc.RESOURCE_EXHAUSTED,
}


class RpcError(BootbridgeError):
    """``code`` is one of the statuses in `wire/grpc_messages.py`; ``message`` is sent to the client."""

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
    return RpcError(_STATUS_OF_RESET.get(code, grpc.INTERNAL), reason)
