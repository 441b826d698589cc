"""gRPC calls on an open connection: `GrpcClient` makes them, `serve` answers them.

For services with few clients and small messages (init, join): asyncio streams transfer the same HTTP/2 as
in the tunnel. A method is a path and bytes; `wire/proto.py` encodes the messages.
"""

from __future__ import annotations

from bootbridge.runtime.grpc.client import GrpcClient
from bootbridge.runtime.grpc.errors import RpcError
from bootbridge.runtime.grpc.server import Handler, Send, serve

__all__ = ["GrpcClient", "Handler", "RpcError", "Send", "serve"]
