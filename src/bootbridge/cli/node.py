"""``bootbridge node``: the bootstrapper on every instance, and the operator's commands for it."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bootbridge.cli.command import Command, CommandGroup, ExitCode
from bootbridge.cli.durations import parse_seconds
from bootbridge.cli.output import hint_terminal, print_error, print_output, result_terminal
from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.node.init.messages import INIT_PORT

if TYPE_CHECKING:
    from bootbridge.common.terminal.terminal import Terminal
    from bootbridge.join_service.eviction import Eviction
    from bootbridge.node.status import NodeStatus

DESCRIPTION = """\
Turns blank instances into Kubernetes nodes. `{program} run` runs on every instance and waits until
an operator initialises a cluster on it with `{program} init`, or until the join service of a
cluster issues a ticket. The decision between the two is final until the next reboot. An instance must prove
its identity before it receives a secret."""
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
        "--log-format", default="text", choices=("text", "json"), help="log format (%(default)s)"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log debug messages")


def _add_configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=CONFIGURATION,
        help="configuration file of this instance (%(default)s)",
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
    add(
        "endpoint",
        metavar="ENDPOINT",
        help=f"address of the instance: host or host:port (default port {INIT_PORT})",
    )
    add("--spec", metavar="FILE", required=True, help="cluster spec: kubernetesVersion, podSubnets, …")
    add(
        "--policy",
        metavar="FILE",
        required=True,
        help="join policy: required evidence, and instances that may join",
    )
    add(
        "--init-secret-file",
        metavar="FILE",
        required=True,
        help="init secret, as written by `bootbridge node secret`",
    )
    add(
        "--secrets",
        metavar="FILE",
        default="bootbridge-secrets.json",
        help="master secret; created if missing (%(default)s)",
    )
    add(
        "--kubeconfig",
        metavar="FILE",
        default="admin.conf",
        help="output file for the admin kubeconfig (%(default)s)",
    )
    add(
        "--evidence", metavar="FILE", help="evidence required of this instance, instead of that in the policy"
    )
    add("--tunnel", action="store_true", help="install the tunnel until the pod network is reachable")
    add("--timeout", metavar="DURATION", default="15m", help="time limit to reach the instance (%(default)s)")
    add("--resume", metavar="ID", default="", help="watch the init with this ID, which was started elsewhere")
    add("--json", action="store_true", help="print each event as one line of JSON")


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
            f"{flags.program}: interrupted; the init continues on the instance (run the same command again "
            f"to watch it, or add --resume {session.init_id} on another machine)"
        )
        return ExitCode.INTERRUPTED


def _endpoint(text: str) -> tuple[str, int]:
    from bootbridge.node.join.endpoints import host_of

    host = host_of(text)
    port = text.rpartition(":")[2] if text not in (host, f"[{host}]") else str(INIT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        hint = "use host, host:port or [IPv6]:port"
        raise OperatorError(f"invalid address {text!r}", subject="ENDPOINT", hint=hint)
    return host, int(port)


# --- secret


def _secret_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", metavar="FILE", default="init-secret", help="output file (%(default)s)")
    add("--json", action="store_true", help="print JSON")


def _secret(flags: argparse.Namespace) -> int:
    from bootbridge.common.secret_files import write_new_secret
    from bootbridge.trust import init_secret

    secret, hashed = init_secret.make()
    write_new_secret(Path(flags.out), secret + b"\n", "--out")
    if flags.json:
        return print_output(json.dumps({"secretFile": flags.out, "initSecretHash": hashed}) + "\n")
    print_error(f"{flags.program}: secret written to {flags.out}; initSecretHash for the instance metadata:")
    print_output(f"{hashed}\n")
    file = shlex.quote(flags.out)
    init = f"bootbridge node init ADDRESS --spec cluster.yaml --policy policy.yaml --init-secret-file {file}"
    hint_terminal().next_steps([(init, "initialise a cluster, when the instance runs with this hash")])
    return ExitCode.OK


# --- status


def _status_flags(parser: argparse.ArgumentParser) -> None:
    _add_configuration(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _status(flags: argparse.Namespace) -> int:
    from bootbridge.node.configuration import read_configuration
    from bootbridge.node.status import read_status

    status = asyncio.run(read_status(read_configuration(Path(flags.config))))
    if flags.json:
        print_output(json.dumps(status.document, indent=2) + "\n")
    else:
        _show_status(status, result_terminal())
    return ExitCode.OK if status.healthy else ExitCode.FINDINGS


def _show_status(status: NodeStatus, terminal: Terminal) -> None:
    from bootbridge.common.terminal.terminal import Mark

    terminal.facts(status.facts)
    if not status.healthy:
        terminal.summary(Mark.BAD, "This instance needs an operator.")
    elif status.remembered is None and status.record is None:
        steps = [("bootbridge node init ADDRESS …", "initialise a cluster on it, from your machine")]
        terminal.summary(Mark.GOOD, "This instance waits for an init or a ticket.", next_steps=steps)


# --- renew


def _renew_flags(parser: argparse.ArgumentParser) -> None:
    _add_configuration(parser)
    parser.add_argument(
        "--timeout", metavar="DURATION", default="3m", help="time limit for the renewal (%(default)s)"
    )


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
    parser.add_argument("--json", action="store_true", help="print JSON")


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


# --- evict


def _evict_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="name of the node")
    add("--kubeconfig", metavar="FILE", required=True, help="admin kubeconfig of the cluster")
    add("--undo", action="store_true", help="permit the name again")
    add("--dry-run", action="store_true", help="show what would change, and change nothing")
    add("--json", action="store_true", help="print JSON")


def _evict(flags: argparse.Namespace) -> int:
    from bootbridge.join_service.eviction import Evictor
    from bootbridge.kube.client import KubeClient
    from bootbridge.kube.errors import KubeError, KubeUnreachable
    from bootbridge.kube.kubeconfig import load_kubeconfig

    async def run() -> Eviction:
        client = KubeClient(load_kubeconfig(Path(flags.kubeconfig)), qps=-1)
        try:
            evictor = Evictor(client, dry_run=flags.dry_run)
            return await (evictor.release if flags.undo else evictor.evict)(flags.name)
        finally:
            await client.aclose()

    try:
        eviction = asyncio.run(run())
    except (KubeError, KubeUnreachable) as error:
        raise OperatorError(str(error), hint="fix this and run the same command again") from error
    if flags.json:
        print_output(json.dumps(eviction.document(), indent=2) + "\n")
    else:
        _show_eviction(eviction, flags, result_terminal())
    return ExitCode.FINDINGS if eviction.remaining else ExitCode.OK


def _show_eviction(eviction: Eviction, flags: argparse.Namespace, terminal: Terminal) -> None:
    from bootbridge.common.terminal.terminal import Mark, Styled

    terminal.table([(step.resource, step.name, step.result) for step in eviction.steps])
    terminal.table([(Styled("Remaining:", "warning"), each) for each in eviction.remaining])
    if flags.dry_run:
        words = [word for word in flags.words if word != "--dry-run"]
        command = shlex.join([*flags.program.split(), *words])
        terminal.summary(Mark.NONE, "Dry run: nothing was changed.", next_steps=[(command, "do it")])
    elif flags.undo:
        terminal.summary(Mark.GOOD, f"{flags.name} may join again.")
    else:
        mark = Mark.WARNING if eviction.remaining else Mark.GOOD
        details = ["Remove the instance from the inventory too."]
        terminal.summary(mark, f"{flags.name} is evicted.", details=details)


_EVICT_DETAILS = """\
Removes a node for good, in this order: its name binding is replaced by one that no identity has, so that
every join service refuses it; an admission policy refuses all writes of its user, so that its kubelet can
neither register again nor renew its certificate; its bootstrap tokens, pending certificate requests and Node
are deleted. Run it again after an error: every step is idempotent. Remove the instance from the inventory
too.

Kubernetes has no revocation. The kubelet's certificates stay valid until they expire and permit reading what
every node may read; Secrets only of pods on the Node, which is deleted. Tokens of its pods end when
Kubernetes deletes the pods (about two minutes). An attested connection to the join service ends after 60 s
at most and gets no ticket. A control plane holds the cluster's CA keys: they must be rotated."""

_RUN_DETAILS = """\
Listens for `bootbridge node init` and at the same time requests a ticket from the join services in the
metadata. The first to succeed takes the node lock, which is measured into PCR 15 and is released only by a
reboot; the other stops. The process exits when the instance is a node. After a crash it resumes; after a
reboot it measures again and starts the kubelet. Run it as root and restart it on failure.

SIGTERM stops it before the lock is taken; afterwards it finishes the init or join first."""

_INIT_DETAILS = """\
Verifies the evidence of the instance against the policy before it sends anything. Shows the stages of the
init as they happen, and reconnects after a lost connection. Running the same command again watches an init
that was interrupted.

The master secret (--secrets) is created on first use and is never sent: keep the file. If the init fails, the
log of the instance is written beside the kubeconfig."""

_SECRET_DETAILS = """\
The secret permits to initialise an instance whose metadata contains its hash. Writes the secret to a new
file for `bootbridge node init` and prints the hash, which is `initSecretHash` in the metadata."""

_STATUS_DETAILS = """\
Shows the phase in this boot, the holder of the node lock, the register (PCR 15), the node, and for an
instance that waits, the last error of a join service. Changes nothing."""

_RENEW_DETAILS = """\
Requests a new certificate from a join service when two thirds of the validity of the current one have passed;
does nothing before. The kubelet reloads the file by itself. Run it once an hour with a timer; after a reboot
`bootbridge node run` does the same."""

_ENROL_DETAILS = """\
Prints an element for `instances` in the policy: name, role and addresses from the metadata, and the identity
of the key in the evidence. Changes nothing. Run it on the machine itself, or over a connection that you
trust: every instance in the policy may join."""

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
    "evict": Command(
        _evict,
        _EVICT_DETAILS,
        "{program} worker-3 --kubeconfig admin.conf --dry-run\n{program} worker-3 --kubeconfig admin.conf",
        _evict_flags,
        {
            ExitCode.OK: "the node is evicted",
            ExitCode.ERROR: "it is not, or not completely; run it again",
            ExitCode.FINDINGS: "it is evicted, and something remains to be done by hand",
        },
        "remove a node for good",
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
