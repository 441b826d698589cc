"""``bootbridge node``: what runs on every new instance, and the user's side of making a cluster of them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from bootbridge.cli.command import Command, CommandGroup, ExitCode
from bootbridge.cli.install_flags import parse_seconds
from bootbridge.cli.output import print_error, print_output
from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.node.init.messages import INIT_PORT

DESCRIPTION = """\
Makes nodes of blank instances. `{program} run` runs on every instance and waits: either a user
calls it by `{program} init`, and a cluster begins there, or the join service of a cluster
lets it in. Which of the two it is, is decided once. An instance proves what it is before it is told
anything secret."""
EXAMPLES = """
{program} secret --out init-secret
{program} run --config /etc/bootbridge/node.yaml
{program} init 10.0.0.5 --spec cluster.yaml --policy policy.yaml --init-secret-file init-secret
{program} status
"""
CONFIGURATION = "/etc/bootbridge/node.yaml"


# --- run


def _run_flags(parser: argparse.ArgumentParser) -> None:
    _add_configuration(parser)
    parser.add_argument(
        "--log-format", default="text", choices=("text", "json"), help="how a log line is written (text)"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="say more")


def _add_configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", default=CONFIGURATION, help="this instance's node.yaml (%(default)s)"
    )


def _run(flags: argparse.Namespace) -> int:
    from bootbridge.node.configuration import read_configuration
    from bootbridge.node.run import run
    from bootbridge.runtime import logs

    logs.configure(flags.log_format, logs.DEBUG_VERBOSITY if flags.verbose else 0, "node")
    return run(read_configuration(Path(flags.config)))


# --- init


def _init_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("endpoint", metavar="ENDPOINT", help=f"the instance: host or host:port (port {INIT_PORT})")
    add("--spec", metavar="FILE", required=True, help="the cluster to make: kubernetesVersion, podSubnets, …")
    add("--policy", metavar="FILE", required=True, help="what instances must prove, and which may join")
    add("--init-secret-file", metavar="FILE", required=True, help="as `bootbridge node secret` wrote it")
    add(
        "--secrets",
        metavar="FILE",
        default="bootbridge-secrets.json",
        help="the master secret; made if missing",
    )
    add("--kubeconfig", metavar="FILE", default="admin.conf", help="where to write it (%(default)s)")
    add("--evidence", metavar="FILE", help="what this instance must prove, if not as the policy says")
    add("--tunnel", action="store_true", help="lay the tunnel until the pod network is reachable")
    add("--timeout", metavar="DURATION", default="15m", help="to reach the instance (default 15m)")
    add("--resume", metavar="ID", default="", help="watch the init with this ID, begun elsewhere")
    add("--json", action="store_true", help="each event as one line of JSON on stdout")


def _init(flags: argparse.Namespace) -> int:
    from bootbridge.common.progress import Progress
    from bootbridge.node.init.report import JsonReport, TextReport
    from bootbridge.node.init.session import InitOptions, InitSession

    host, port = _endpoint(flags.endpoint)
    options = InitOptions(
        host=host,
        port=port,
        spec=Path(flags.spec),
        policy=Path(flags.policy),
        init_secret=Path(flags.init_secret_file),
        secrets=Path(flags.secrets),
        kubeconfig=Path(flags.kubeconfig),
        evidence=Path(flags.evidence) if flags.evidence else None,
        tunnel=flags.tunnel,
        resume=flags.resume,
        reach_seconds=parse_seconds(flags.timeout, "--timeout"),
    )
    report = JsonReport(sys.stdout) if flags.json else TextReport(Progress(sys.stderr), sys.stdout)
    session = InitSession(options, report)
    try:
        return ExitCode.OK if asyncio.run(session.run()) else ExitCode.ERROR
    except KeyboardInterrupt:
        if not session.may_be_running:
            raise
        print_error(
            f"{flags.program}: interrupted; the init goes on on the instance: run the same command again to "
            f"watch it, or elsewhere add --resume {session.init_id}"
        )
        return ExitCode.INTERRUPTED


def _endpoint(text: str) -> tuple[str, int]:
    from bootbridge.node.join.endpoints import host_of

    host = host_of(text)
    port = text.rpartition(":")[2] if text not in (host, f"[{host}]") else str(INIT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        hint = "host, host:port or [IPv6]:port"
        raise OperatorError(f"{text!r} is no endpoint", subject="ENDPOINT", hint=hint)
    return host, int(port)


# --- secret


def _secret_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", metavar="FILE", default="init-secret", help="where to write the secret (%(default)s)")
    add("--json", action="store_true", help="for scripts")


def _secret(flags: argparse.Namespace) -> int:
    from bootbridge.common.secret_files import write_new_secret
    from bootbridge.trust import init_secret

    secret, hashed = init_secret.make()
    write_new_secret(Path(flags.out), secret + b"\n", "--out")
    if flags.json:
        return print_output(json.dumps({"secretFile": flags.out, "initSecretHash": hashed}) + "\n")
    print_error(f"{flags.program}: the secret is in {flags.out}; its hash, for the instance's metadata:")
    return print_output(f"{hashed}\n")


# --- status


def _status_flags(parser: argparse.ArgumentParser) -> None:
    _add_configuration(parser)
    parser.add_argument("--json", action="store_true", help="for scripts")


def _status(flags: argparse.Namespace) -> int:
    from bootbridge.node.configuration import read_configuration
    from bootbridge.node.status import read_status

    status = asyncio.run(read_status(read_configuration(Path(flags.config))))
    print_output(json.dumps(status.document, indent=2) + "\n" if flags.json else status.text)
    return ExitCode.OK if status.healthy else ExitCode.FINDINGS


# --- renew


def _renew_flags(parser: argparse.ArgumentParser) -> None:
    _add_configuration(parser)
    parser.add_argument("--timeout", metavar="DURATION", default="3m", help="to get one (default 3m)")


def _renew(flags: argparse.Namespace) -> int:
    from bootbridge.node.configuration import read_configuration
    from bootbridge.node.run import renew
    from bootbridge.runtime import logs

    logs.configure("text", program="node")
    configuration = read_configuration(Path(flags.config))
    return ExitCode.OK if renew(configuration, parse_seconds(flags.timeout, "--timeout")) else ExitCode.ERROR


# --- enrol


def _enrol_flags(parser: argparse.ArgumentParser) -> None:
    _add_configuration(parser)
    parser.add_argument("--json", action="store_true", help="for scripts")


def _enrol(flags: argparse.Namespace) -> int:
    from bootbridge.common.yaml_text import to_yaml
    from bootbridge.node.configuration import read_configuration
    from bootbridge.node.own_identity import evidence_identity, policy_entry

    configuration = read_configuration(Path(flags.config))

    async def entry() -> dict[str, object]:
        return policy_entry(
            await configuration.metadata.myself(), await evidence_identity(configuration.issuer)
        )

    try:
        found = asyncio.run(entry())
    except BootbridgeError as error:
        raise OperatorError(str(error)) from error
    return print_output(json.dumps(found) + "\n" if flags.json else to_yaml([found]).decode())


_RUN_DETAILS = """\
It waits for a user's `bootbridge node init` and, at the same time, asks the join services that its
metadata names. The first to succeed takes the node lock, which is measured into PCR 15 and cannot be
given back before a reboot; the other stops. The process ends when the instance is a node. After a
crash it goes on where it was; after a reboot it measures again and starts the kubelet. Run it as root,
restarted on failure.

SIGTERM before the lock stops it; after the lock, what is under way is finished first."""

_INIT_DETAILS = """\
The instance must prove what the policy asks for before anything is sent to it. Stages are shown as
they happen; a lost connection is made anew and nothing is missed. The same command again watches an
init that was left.

The master secret is made on first use (--secrets) and never leaves this machine: keep the file. If
the init fails, the instance's log is written beside the kubeconfig."""

_SECRET_DETAILS = """\
Whoever knows it may initialise the instance whose metadata holds its hash (initSecretHash), which is
printed. The file is for `bootbridge node init`; one that is there already is not overwritten."""

_STATUS_DETAILS = """\
Its phase in this boot, who holds the node lock, what the register says, which node it is, and while it
waits, what it was told last: why it was refused, or why there is no ticket yet. Changes nothing."""

_RENEW_DETAILS = """\
For a node that runs for long: asks a join service for a new serving certificate once two thirds of the
old one's life are over, and does nothing before. The kubelet takes it up by itself. Have a timer run it
once an hour; after a reboot `bootbridge node run` does the same."""

_ENROL_DETAILS = """\
Prints this instance as an element of `instances` in the policy: its name, role and addresses as its
metadata says, and the identity of the key that it proves itself with. Changes nothing. Run it on the
machine itself, or otherwise in a way that you trust: whoever is listed is let in."""

_INIT_EXAMPLES = """
{program} 10.0.0.5 --spec cluster.yaml --policy policy.yaml --init-secret-file init-secret
{program} lb.example --spec c.yaml --policy p.yaml --init-secret-file s --tunnel --json
"""

_COMMANDS = {
    "run": Command(
        _run,
        _RUN_DETAILS,
        "{program}\n{program} --config /etc/bootbridge/node.yaml --log-format json",
        _run_flags,
        {
            ExitCode.OK: "the instance is a node",
            ExitCode.ERROR: "it cannot become a node; the reason and the fix are on stderr",
            ExitCode.INTERRUPTED: "stopped before",
        },
        "make this instance a node, by init or join",
    ),
    "init": Command(
        _init,
        _INIT_DETAILS,
        _INIT_EXAMPLES,
        _init_flags,
        {
            ExitCode.OK: "the cluster is initialised",
            ExitCode.ERROR: "it is not; the reason and the fix are on stderr",
            ExitCode.INTERRUPTED: "interrupted; the init continues on the instance",
        },
        "initialise a cluster, starting with one instance",
    ),
    "secret": Command(
        _secret,
        _SECRET_DETAILS,
        "{program} --out cluster-1.secret",
        _secret_flags,
        summary="create an init secret",
    ),
    "enrol": Command(
        _enrol,
        _ENROL_DETAILS,
        "{program} >> policy.yaml",
        _enrol_flags,
        summary="print this instance as an entry of a policy",
    ),
    "renew": Command(
        _renew,
        _RENEW_DETAILS,
        "{program}",
        _renew_flags,
        {
            ExitCode.OK: "the certificate is valid",
            ExitCode.ERROR: "it is due and could not be renewed; the reason is on stderr",
        },
        "renew the kubelet's serving certificate, if it is due",
    ),
    "status": Command(
        _status,
        _STATUS_DETAILS,
        "{program}\n{program} --json",
        _status_flags,
        {
            ExitCode.OK: "it is a node, or in progress",
            ExitCode.ERROR: "the status could not be read",
            ExitCode.FINDINGS: "it failed and needs an operator",
        },
        "show the state of this instance",
    ),
}
COMMAND = CommandGroup(DESCRIPTION, {"Commands": _COMMANDS}, EXAMPLES)
