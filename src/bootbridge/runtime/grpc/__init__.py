"""gRPC calls on an open connection: `GrpcClient` asks, `serve` answers.

For services with few callers and small messages (init, join), where the tunnel's turns would be too
much: plain asyncio streams carry the same HTTP/2 http2. A method is a path and bytes; what the bytes
mean is the business of the messages (`wire/proto.py`).
"""

from __future__ import annotations

from bootbridge.runtime.grpc.client import GrpcClient
from bootbridge.runtime.grpc.errors import RpcError
from bootbridge.runtime.grpc.server import Handler, Send, serve

__all__ = ["GrpcClient", "Handler", "RpcError", "Send", "serve"]
