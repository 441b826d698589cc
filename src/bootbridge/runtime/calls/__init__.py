"""gRPC calls on an open connection: `Caller` asks, `serve` answers.

For services with few callers and small messages (init, join), where the tunnel's turns would be too
much: plain asyncio streams carry the same HTTP/2 http2. A method is a path and bytes; what the bytes
mean is the business of the messages (`wire/proto.py`).
"""

from __future__ import annotations

from bootbridge.runtime.calls.caller import Caller
from bootbridge.runtime.calls.failure import CallFailed
from bootbridge.runtime.calls.service import Handler, Send, serve

__all__ = ["CallFailed", "Caller", "Handler", "Send", "serve"]
