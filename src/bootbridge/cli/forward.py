"""``bootbridge forward``: a local TCP port that leads through the tunnel."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
from ipaddress import ip_address

from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.durations import parse_seconds
from bootbridge.cli.frontend_flags import (
    add_frontend_flags,
    destination_from,
    frontend_from,
)
from bootbridge.cli.output import (
    print_error,
    print_output,
    print_problem,
    print_warnings,
    result_terminal,
)
from bootbridge.cli.parser import add_json_flag
from bootbridge.common.terminal.figures import counted
from bootbridge.errors import OperatorError
from bootbridge.frontend_client.call import DialError
from bootbridge.frontend_client.dial_problem import explain_dial_error
from bootbridge.frontend_client.port_forward import ForwardedConnection, PortForward

LOOPBACK = ("127.0.0.1", "::1")

_DESCRIPTION = """\
Listens on a local port, and connects each client through the tunnel to HOST:PORT, which an agent dials: for
curl, kubectl, a browser, anything that cannot use the server's unix socket. It works with our server and with
Konnectivity's, in both modes. Ctrl-C ends it.

LOCAL is PORT, or ADDRESS:PORT to listen on another address than loopback; port 0 is a free one, which is
printed. A client whose dial fails is reset, and the reason is on stderr."""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("local", metavar="LOCAL", help="[ADDRESS:]PORT to listen on, for example 9000")
    parser.add_argument("destination", metavar="HOST:PORT", help="address that an agent connects to")
    add_frontend_flags(parser)
    parser.add_argument("--timeout", metavar="DURATION", default="10s", help="of each dial (default 10s)")
    parser.add_argument(
        "--linger",
        metavar="DURATION",
        default="10s",
        help="without half-close (TCP, or mode grpc): a client that has ended its direction is closed when "
        "the destination was silent for that long (default 10s)",
    )
    add_json_flag(parser)


def _run(flags: argparse.Namespace) -> int:
    address, frontend = destination_from(flags.destination), frontend_from(flags)
    hosts, port = _local(flags.local)

    def report(failed: ForwardedConnection) -> None:
        reason = failed.reason
        shown = explain_dial_error(address, str(reason)) if isinstance(reason, DialError) else reason
        print_problem(f"{flags.program}: connection of {failed.client}: {shown}")

    limit, linger = parse_seconds(flags.timeout, "--timeout"), parse_seconds(flags.linger, "--linger")
    forward = PortForward(frontend, address, limit, linger, report)
    return asyncio.run(_forward(flags, forward, hosts, port, f"{address}, through {frontend}"))


async def _forward(
    flags: argparse.Namespace, forward: PortForward, hosts: list[str], port: int, where: str
) -> int:
    stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _stop, stopped, number)
    try:
        listening = await forward.listen(hosts, port)
        if flags.json:
            print_output(json.dumps({"listening": listening, "destination": flags.destination}) + "\n")
        else:
            text = f"listening on {' and '.join(listening)}, for {where}; ctrl-c ends it"
            result_terminal().line(text)
        if not all(ip_address(host).is_loopback for host in hosts):
            print_warnings(flags.program, "every machine that reaches this port can use it")
        ended_by = await stopped
    finally:
        await forward.close()
    print_error(f"{flags.program}: stopped, {counted(forward.accepted, 'connection')} forwarded")
    return ExitCode.OK if ended_by == signal.SIGINT else 128 + ended_by


def _stop(stopped: asyncio.Future[int], number: int) -> None:
    if not stopped.done():
        stopped.set_result(number)


def _local(text: str) -> tuple[list[str], int]:
    """Returns the addresses and the port to listen on."""
    host, colon, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise _invalid(text)
    if not colon:
        return _loopback(), int(port)
    host = host.strip("[]")
    if host == "localhost":
        return _loopback(), int(port)
    try:
        return [str(ip_address(host))], int(port)
    except ValueError:
        raise _invalid(text) from None


def _invalid(text: str) -> OperatorError:
    hint = "for example 9000, 0 for a free port, 0.0.0.0:9000 or [::1]:9000"
    return OperatorError(f"invalid [ADDRESS:]PORT {text!r}", subject="LOCAL", hint=hint)


def _loopback() -> list[str]:
    """Both families, or IPv4 alone on a machine without IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((LOOPBACK[1], 0))
    except OSError:
        return [LOOPBACK[0]]
    return list(LOOPBACK)


COMMAND = Command(
    _run,
    _DESCRIPTION,
    """
    {program} --socket bootbridge.sock 9000 10.128.0.7:8080 &
    curl http://127.0.0.1:9000/healthz
    {program} --frontend proxy.example:8090 --certs certs 0 name.example:443
    """,
    _add_flags,
    exit_codes={
        ExitCode.OK: "ended by ctrl-c",
        ExitCode.ERROR: "it cannot listen on the port",
        128 + signal.SIGTERM: "ended by SIGTERM",
    },
)
