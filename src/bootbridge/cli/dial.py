"""``bootbridge dial``: one connection through the tunnel, on stdin and stdout."""

from __future__ import annotations

import argparse
import asyncio

from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.durations import parse_seconds
from bootbridge.cli.frontend_flags import (
    add_frontend_flags,
    destination_from,
    frontend_from,
)
from bootbridge.cli.output import print_problem
from bootbridge.errors import OperatorError
from bootbridge.frontend_client.call import DialError
from bootbridge.frontend_client.dial_problem import explain_dial_error
from bootbridge.frontend_client.frontend import FrontendAddress
from bootbridge.frontend_client.relay import (
    LINGER_BEFORE_END_SECONDS,
    LINGER_SECONDS,
    Relay,
    StandardStreams,
)
from bootbridge.frontend_client.tunnel_stream import ConnectionCutError, open_tunnel

_DESCRIPTION = """\
Asks a running server to connect to HOST:PORT, as the kube-apiserver does, and copies stdin to the connection
and the connection to stdout, as nc does. An agent resolves the name and connects. It works with our server
and with Konnectivity's, in both modes.

It ends when the destination has closed the connection. At the end of stdin it waits until the destination was
silent for --linger. Then the destination is sent the end as well, if the frontend is a unix socket in mode
http-connect; the others have no half-close, so the connection is closed."""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("destination", metavar="HOST:PORT", help="address that an agent connects to")
    add_frontend_flags(parser)
    parser.add_argument(
        "--check", action="store_true", help="only connect: print nothing and close, if it succeeds"
    )
    parser.add_argument("--timeout", metavar="DURATION", default="10s", help="of the dial (default 10s)")
    parser.add_argument(
        "--linger",
        metavar="DURATION",
        default="",
        help="see above (default 1s before the end is sent, 10s before the connection is closed)",
    )


def _run(flags: argparse.Namespace) -> int:
    address, frontend = destination_from(flags.destination), frontend_from(flags)
    limit = parse_seconds(flags.timeout, "--timeout")
    linger = parse_seconds(flags.linger, "--linger") if flags.linger else None
    try:
        asyncio.run(_dial(frontend, address, limit, linger, check=flags.check))
    except DialError as error:
        print_problem(f"{flags.program}: {explain_dial_error(address, str(error))}")
        return ExitCode.FINDINGS
    except ConnectionCutError as error:
        raise OperatorError(f"connection cut: {error}", subject=address) from error
    return ExitCode.OK


async def _dial(
    frontend: FrontendAddress, address: str, limit: float, linger: float | None, *, check: bool
) -> None:
    tunnel = await open_tunnel(frontend, address, limit)
    if check:
        await tunnel.close()
        return
    if linger is None:
        linger = LINGER_BEFORE_END_SECONDS if tunnel.half_closes else LINGER_SECONDS
    await Relay(StandardStreams(), tunnel, linger).run(until_answered=True)


COMMAND = Command(
    _run,
    _DESCRIPTION,
    """
    {program} --socket bootbridge.sock 10.128.0.7:8443 --check && echo reachable
    printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' | {program} --socket bootbridge.sock 10.128.0.7:8080
    {program} --frontend proxy.example:8090 --certs certs [fd01::7]:22
    ssh -o ProxyCommand='{program} --socket bootbridge.sock %h:%p' 10.128.0.7
    """,
    _add_flags,
    exit_codes={
        ExitCode.OK: "connected; the destination closed the connection in order",
        ExitCode.ERROR: "no connection to the server, or the connection was cut",
        ExitCode.FINDINGS: "the dial failed: no agent, no route, refused, forbidden, timed out",
        ExitCode.INTERRUPTED: "ended by ctrl-c",
    },
)
