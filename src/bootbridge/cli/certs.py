"""``bootbridge certs``: certificates for a tunnel that `bootbridge up` does not install."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from datetime import timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path

from bootbridge.cli.certs_report import DEFAULT_DIRECTORY, again, report
from bootbridge.cli.command import Command, CommandGroup, ExitCode
from bootbridge.cli.values import parse_duration
from bootbridge.errors import OperatorError
from bootbridge.trust.authority import KeyKind
from bootbridge.trust.certificate_directory import (
    CA_VALIDITY,
    VALIDITY,
    CertificateAction,
    CertificateDirectory,
    CertificateRequest,
    CertificateResult,
)
from bootbridge.trust.stored_certificate import AGENT, AGENT_PREFIX, FRONTEND, SERVER

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
KEY_KINDS: tuple[KeyKind, ...] = ("ecdsa-p256", "rsa-2048")
_VALIDITY_MIN, _VALIDITY_MAX = timedelta(minutes=1), timedelta(days=36500)

_DESCRIPTION = """\
Certificates for a tunnel that you start yourself. `bootbridge up`, `inject` and `render` have their own.

Without a command it creates what is missing in --dir:

  ca.crt, ca.key           the CA of server and agents. The key signs; keep it away from the nodes
  server.crt, server.key   for proxy-server: --cluster-cert, --cluster-key
  agent.crt, agent.key     for proxy-agent: --agent-cert, --agent-key. With --agent NAME instead
                           agent-NAME.crt and agent-NAME.key, one pair for each node
  frontend-ca.*, frontend.*
                           with --frontend: for callers over TCP, and their own CA (--server-ca-cert)

Keys have mode 0600 and are never overwritten. A renewed certificate keeps its key: only the .crt file
changes, and proxy-server and proxy-agent load it without a restart. For a new key, move both files away and
create them again."""

_CREATE = """\
Creates the CA, and the certificates of server and agents that --dir lacks. Existing files stay as they are,
so that it can be run again. If it is interrupted, nothing is left."""

_SHOW = """\
Shows names, remaining time and state of each: valid, expiring (less than 1/4 of its time is left), expired,
not-yet-valid, or invalid with the reason."""

_RENEW = """\
Renews certificates with less than 1/4 of their time left, for the same names and with the same keys. It needs
the CA's key, but no other: copy the new .crt file to its node, and the program loads it without a restart.
Run it by a timer."""

_EXAMPLES = """
{program}
{program} create --server-name bootstrap.example --server-name 192.0.2.10 --server-name fd00::10
{program} create --agent worker-1=192.0.2.11,10.128.1.0/24 --agent worker-2=192.0.2.12,10.128.2.0/24
{program} show --dir /etc/bootbridge/certs
{program} renew
"""


def _group_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir", metavar="DIR", default=DEFAULT_DIRECTORY, help="directory of the files (default certs)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


# --- create


def _create_flags(parser: argparse.ArgumentParser) -> None:
    _group_flags(parser)
    add = parser.add_argument
    add(
        "--server-name",
        metavar="HOST",
        action="append",
        default=[],
        help="DNS name or IP address by which agents reach the server, repeatable; localhost, 127.0.0.1 and "
        "::1 are always included. A certificate that lacks one is issued again, with the same key",
    )
    add(
        "--agent",
        metavar="NAME[=ID,…]",
        action="append",
        default=[],
        help="a certificate for this agent alone, repeatable. IDs are names, addresses and networks (CIDR) "
        "that proxy-server --agent-identifier-proof=certificate accepts from it",
    )
    add("--frontend", action="store_true", help="also a client certificate for callers over TCP")
    add(
        "--validity",
        metavar="DURATION",
        default="",
        help="of certificates, such as 720h or 90d (default 365d)",
    )
    add("--ca-validity", metavar="DURATION", default="", help="of a new CA (default 3650d)")
    add("--key", choices=list(KEY_KINDS), default=KEY_KINDS[0], help="type of new keys (default ecdsa-p256)")


def _create(flags: argparse.Namespace) -> int:
    directory = CertificateDirectory(Path(flags.dir))
    results = directory.create(
        _requests(flags),
        validity=_validity(flags.validity, "--validity") or VALIDITY,
        ca_validity=_validity(flags.ca_validity, "--ca-validity") or CA_VALIDITY,
        key_kind=flags.key,
    )
    return report(flags, results, "create")


def _requests(flags: argparse.Namespace) -> list[CertificateRequest]:
    names = dict.fromkeys([*LOOPBACK_NAMES, *(_host(text, "--server-name") for text in flags.server_name)])
    requests = [CertificateRequest(SERVER, "proxy-server", tuple(names))]
    agents = [_agent(text) for text in flags.agent]
    if not agents and not any(Path(flags.dir).glob(f"{AGENT_PREFIX}*.crt")):
        agents = [CertificateRequest(AGENT, "proxy-agent")]
    if flags.frontend:
        requests.append(CertificateRequest(FRONTEND, "frontend"))
    return [*requests, *agents]


_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DNS_NAME = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")


def _host(text: str, flag: str) -> str:
    """A DNS name or an IP address, in the form that certificates have."""
    try:
        return str(ip_address(text.strip("[]")))
    except ValueError:
        pass
    looks_like_address = text.replace(".", "").isdigit()
    if looks_like_address or len(text) > 253 or not _DNS_NAME.fullmatch(text):
        hint = "a DNS name or an IP address without scheme and port, for example proxy.example or fd00::5"
        raise OperatorError(f"invalid host {text!r}", subject=flag, hint=hint)
    return text.lower()


def _agent(text: str) -> CertificateRequest:
    """Parses `NAME` or `NAME=ID,ID`; the name becomes part of a file name."""
    name, given, rest = text.partition("=")
    name = _host(name, "--agent")
    if ":" in name or "*" in name:
        hint = "the name of a node; its addresses follow after '=', for example worker-1=192.0.2.11"
        raise OperatorError(f"invalid name {name!r}", subject="--agent", hint=hint)
    identifiers = [_identifier(each) for each in rest.split(",")] if given else []
    return CertificateRequest(f"{AGENT_PREFIX}{name}", name, tuple(dict.fromkeys([name, *identifiers])))


def _identifier(text: str) -> str:
    if "/" not in text:
        return _host(text, "--agent")
    try:
        return f"cidr:{ip_network(text)}"
    except ValueError as error:
        hint = "for example 10.128.1.0/24 or fd01::/64"
        raise OperatorError(f"invalid CIDR {text!r}: {error}", subject="--agent", hint=hint) from None


def _validity(text: str, flag: str) -> timedelta | None:
    if not text:
        return None
    hint = "for example 720h or 90d"
    try:
        days = text.removesuffix("d")
        seconds = int(days) * 86400.0 if text != days and days.isdecimal() else parse_duration(text)
    except ValueError:
        raise OperatorError(f"invalid duration {text!r}", subject=flag, hint=hint) from None
    if not _VALIDITY_MIN.total_seconds() <= seconds <= _VALIDITY_MAX.total_seconds():
        raise OperatorError(f"out of range: {text}", subject=flag, hint="1m to 36500d")
    return timedelta(seconds=seconds)


# --- show, renew


def _show(flags: argparse.Namespace) -> int:
    found = CertificateDirectory(Path(flags.dir)).stored()
    if not found:
        hint = f"create them with `{again(flags, 'create')}`"
        raise OperatorError("no certificates of a tunnel found", subject=flags.dir, hint=hint)
    return report(flags, [CertificateResult(each, CertificateAction.UNCHANGED) for each in found], "show")


def _renew_flags(parser: argparse.ArgumentParser) -> None:
    _group_flags(parser)
    add = parser.add_argument
    add(
        "--force", action="store_true", help="renew all, not only those with less than 1/4 of their time left"
    )
    add(
        "--ca",
        action="store_true",
        help="renew the CA certificates instead, with the same keys: issued certificates stay valid. Then "
        "copy ca.crt to the server and every agent",
    )
    add("--validity", metavar="DURATION", default="", help="such as 720h or 90d (default: as before)")


def _renew(flags: argparse.Namespace) -> int:
    results = CertificateDirectory(Path(flags.dir)).renew(
        validity=_validity(flags.validity, "--validity"), force=flags.force, ca=flags.ca
    )
    return report(flags, results, "renew")


_CODES: Mapping[int, str] = {
    ExitCode.ERROR: "files do not belong together, cannot be written, or the CA's key is missing",
    ExitCode.FINDINGS: "a certificate has expired or cannot be used",
}

COMMAND = CommandGroup(
    _DESCRIPTION,
    {
        "Commands": {
            "create": Command(
                _create,
                _CREATE,
                """
                {program}
                {program} --server-name bootstrap.example --server-name fd00::10
                {program} --agent worker-1=192.0.2.11,10.128.1.0/24 --frontend
                """,
                _create_flags,
                _CODES,
                summary="create certificates that are missing (default)",
            ),
            "show": Command(
                _show,
                _SHOW,
                "{program}\n{program} --dir /etc/bootbridge/certs --json",
                _group_flags,
                _CODES,
                summary="show what exists, for which names, until when",
            ),
            "renew": Command(
                _renew,
                _RENEW,
                "{program}\n{program} --force --validity 90d\n{program} --ca",
                _renew_flags,
                _CODES,
                summary="renew certificates that expire soon, keeping their keys",
            ),
        }
    },
    _EXAMPLES,
    _group_flags,
    default="create",
)
