"""`--server URL`: a server that was started by hand, for `status`, `doctor` and `check`."""

from __future__ import annotations

import argparse

from bootbridge.bootstrap.diagnose.running_server import RunningServer
from bootbridge.cli.frontend_flags import add_frontend_flags, destination_from, frontend_from
from bootbridge.errors import OperatorError
from bootbridge.top.fetch import ProgramUrl

_FRONTEND_FLAGS = ("socket", "frontend", "certs", "ca_cert", "cert", "key", "mode")


def add_server_flag(parser: argparse.ArgumentParser, instead: str) -> None:
    parser.add_argument(
        "--server",
        metavar="URL",
        default="",
        help=f"{instead} of a server that you started yourself: its admin port, for example "
        "http://127.0.0.1:8095; no installation is needed. Also of Konnectivity's Go server",
    )


def add_server_frontend_flags(parser: argparse.ArgumentParser) -> None:
    default = "the one that the server names, if it is found here"
    add_frontend_flags(parser, "with --server: where callers connect", default)


def running_server_from(
    flags: argparse.Namespace, destination: str = "", seconds: float = 10.0
) -> RunningServer:
    """Returns the server of `--server`; raises OperatorError for an invalid URL."""
    try:
        url = ProgramUrl.parse(flags.server)
    except OperatorError as error:
        raise OperatorError(error.args[0], subject="--server", hint=error.hint) from None
    given = any(getattr(flags, name, "") for name in _FRONTEND_FLAGS)
    frontend = frontend_from(flags) if given else None
    return RunningServer(url, frontend, destination_from(destination) if destination else "", seconds)


def require_server(flags: argparse.Namespace) -> None:
    """Raises OperatorError if a flag is given that has no effect without --server."""
    for name in _FRONTEND_FLAGS:
        if getattr(flags, name, ""):
            raise OperatorError("requires --server", subject=f"--{name.replace('_', '-')}")
