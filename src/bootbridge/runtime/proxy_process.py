"""The start-up that both proxy processes share: logging, process settings, event loop, admin ports."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from bootbridge.runtime import event_loop, logs
from bootbridge.runtime.admin_http import AdminServer, Route
from bootbridge.runtime.process_tuning import raise_open_file_limit, reduce_memory_use


class LoggingFlags(Protocol):
    @property
    def log_format(self) -> str: ...
    @property
    def v(self) -> int: ...
    @property
    def log_file(self) -> str: ...
    @property
    def logtostderr(self) -> bool: ...


def run(program: str, flags: LoggingFlags, serve: Coroutine[Any, Any, int]) -> int:
    """Configures the process, runs ``serve`` and returns its exit code."""
    try:
        logs.configure(
            flags.log_format, flags.v, program, log_file=flags.log_file, logtostderr=flags.logtostderr
        )
    except BaseException:
        serve.close()
        raise
    reduce_memory_use()
    raise_open_file_limit()
    try:
        return event_loop.run(serve)
    finally:
        logs.flush()  # before an error message, which is written to stderr directly


@dataclass(frozen=True)
class AdminPort:
    """A port of the admin HTTP server; ``flag`` names it in errors."""

    flag: str
    host: str
    port: int
    routes: dict[str, Route]


async def open_admin_ports(
    stack: AsyncExitStack, *, admin: AdminPort, health: AdminPort, profiling: bool
) -> None:
    """Opens both ports; closing ``stack`` closes them."""
    if profiling:
        from bootbridge.runtime.profiling_routes import profiling_routes

        admin.routes.update(profiling_routes())
    # Health last: a probe that it answers shows that all ports are open.
    for port in (admin, health):
        server = AdminServer(port.routes)
        await server.start(port.host, port.port, subject=port.flag)
        stack.push_async_callback(server.close)
