"""Flags that say where the frontend of a running server is, for `dial`, `forward` and `doctor`."""

from __future__ import annotations

import argparse
from pathlib import Path

from bootbridge.bootstrap.plan.plan import PATHS
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from bootbridge.frontend_client.call import FrontendMode
from bootbridge.frontend_client.dial_problem import DialProblem, problem_of
from bootbridge.frontend_client.frontend import FrontendAddress, TcpFrontend, UnixFrontend
from bootbridge.wire.addresses import join_host_port, split_host_port

_TLS_FLAGS = ("ca_cert", "cert", "key")


def add_frontend_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the server")
    add = group.add_argument
    add(
        "--socket",
        metavar="PATH",
        default="",
        help="unix socket, the server's --uds-name (default: that of the tunnel installed on this node)",
    )
    add("--frontend", metavar="HOST:PORT", default="", help="instead: the server's --server-port, over TCP")
    add(
        "--certs",
        metavar="DIR",
        default="",
        help="with --frontend: ca.crt, frontend.crt and frontend.key of `bootbridge certs --frontend`",
    )
    add("--ca-cert", metavar="FILE", default="", help="with --frontend, instead: CA of the server")
    add("--cert", metavar="FILE", default="", help="with --frontend: client certificate")
    add("--key", metavar="FILE", default="", help="with --frontend: its key")
    add(
        "--mode",
        choices=list(map(str, FrontendMode)),
        default="",
        help="protocol of the frontend, the server's --mode (default: it is detected)",
    )


def frontend_from(flags: argparse.Namespace) -> FrontendAddress:
    mode = FrontendMode(flags.mode) if flags.mode else None
    if flags.socket and flags.frontend:
        raise OperatorError("cannot be combined with --socket", subject="--frontend")
    if flags.frontend:
        return TcpFrontend(*parse_address(flags.frontend, "--frontend"), *_tls_files(flags), mode)
    for name in ("certs", *_TLS_FLAGS):
        if getattr(flags, name):
            raise OperatorError("requires --frontend", subject=f"--{name.replace('_', '-')}")
    return UnixFrontend(Path(flags.socket) if flags.socket else _installed_socket(), mode)


def _tls_files(flags: argparse.Namespace) -> tuple[str, str, str]:
    directory = Path(flags.certs) if flags.certs else None
    defaults = ("ca.crt", "frontend.crt", "frontend.key")
    found = [
        getattr(flags, name) or (str(directory / default) if directory else "")
        for name, default in zip(_TLS_FLAGS, defaults, strict=True)
    ]
    for name, path in zip(_TLS_FLAGS, found, strict=True):
        if not path:
            hint = "give --certs DIR, or --ca-cert, --cert and --key"
            raise OperatorError("required with --frontend", subject=f"--{name.replace('_', '-')}", hint=hint)
    ca, cert, key = found
    return ca, cert, key


def _installed_socket() -> Path:
    from bootbridge.bootstrap.plan import record  # costs 100 ms, and only this needs it

    host = Host()
    for paths in PATHS.values():
        try:
            data = host.read(paths.plan_record)
            if data is not None:
                return host.path(record.load(data, paths.plan_record).paths.socket)
        except OperatorError:
            continue  # not readable by this user
    hint = "give --socket PATH, the server's --uds-name, or --frontend HOST:PORT"
    raise OperatorError("no tunnel is installed on this node", subject="--socket", hint=hint)


def parse_address(text: str, subject: str) -> tuple[str, int]:
    """Parses `HOST:PORT`; an IPv6 address is in brackets."""
    try:
        return split_host_port(text)
    except ValueError:
        hint = "for example 10.128.0.7:8443, [fd01::7]:8443 or name.example:443"
        raise OperatorError(f"invalid HOST:PORT {text!r}", subject=subject, hint=hint) from None


def destination_from(text: str) -> str:
    return join_host_port(*parse_address(text, "HOST:PORT"))


# The hop that failed, and the fix.
_EXPLANATIONS = {
    DialProblem.NO_AGENT: (
        "server, no agent",
        "is an agent connected? `bootbridge top`; the server's log has the reason of each strategy",
    ),
    DialProblem.NO_ROUTE: ("agent to endpoint", "the agent's machine has no route to it"),
    DialProblem.REFUSED: ("agent to endpoint", "nothing listens on that port"),
    DialProblem.FORBIDDEN: (
        "agent",
        "allow it with proxy-agent --allow-destinations; loopback and link-local must be listed",
    ),
    DialProblem.NAME_NOT_FOUND: (
        "agent",
        "the agent resolves the name: give one that it knows, or an address",
    ),
    DialProblem.TIMED_OUT: (
        "agent to endpoint",
        "a firewall drops the packets, or the agent is overloaded",
    ),
    DialProblem.OTHER: ("server", "the logs of server and agent have more"),
}


def explain_dial_error(address: str, reason: str) -> OperatorError:
    """Returns the error of a failed dial, with its hop and the fix."""
    hop, hint = _EXPLANATIONS[problem_of(reason)]
    return OperatorError(f"dial failed ({hop}): {reason}", subject=f"{address}", hint=hint)
