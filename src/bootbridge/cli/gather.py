"""``bootbridge gather``: collects logs, records and an analysis for a bug report, without secrets."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from bootbridge.bootstrap.diagnose.gather import gathering
from bootbridge.bootstrap.diagnose.gather.bundle import BundleSource
from bootbridge.bootstrap.diagnose.gather.gathering import GatherResult
from bootbridge.bootstrap.diagnose.gather.host_keys import RECORD_FILE, HostKeys
from bootbridge.bootstrap.diagnose.gather.install_dir import InstallDir
from bootbridge.bootstrap.diagnose.gather.remote import Login
from bootbridge.bootstrap.plan.plan import Flavour, Plan
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.doctor import open_context
from bootbridge.cli.durations import parse_seconds
from bootbridge.cli.install_flags import add_install_flags, add_recorded_plan_flags, open_host
from bootbridge.cli.output import print_output, result_terminal
from bootbridge.common.progress import Progress
from bootbridge.common.terminal.figures import counted, size
from bootbridge.common.terminal.terminal import Mark, Terminal
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Writes a log bundle (.tar.gz, mode 0600): the stage records of the bootstrap, the receipt, logs of the server
and of every agent, the server's status and metrics, the rendered files, our objects in the cluster with
their events, addresses, routes and listeners, the contents of certificates, the result of `bootbridge
doctor`, and an analysis: the failed stage or the broken hop in one sentence.

Keys, tokens, pull secrets and the values of Secrets are never included; of Secrets only names, sizes and
hashes are. A source that cannot be read is listed in the bundle; the others are still collected.

On the bootstrap node, run it without --dir. From the installer's machine, --dir finds the bootstrap
node's address in .clusterapi_output and the generated key in .openshift_install_state.json, and
collects over ssh; the node does not need Python.

The node's ssh host key is verified: against --known-hosts, or against the host keys in bootstrap.ign, or
against ssh's own known_hosts. An unknown key is refused, unless --accept-new-host-key accepts it once; a
changed key is always refused."""

_EXAMPLES = """
{program}
{program} --out /root/bundle.tar.gz
{program} --dir install/
{program} --dir install/ --bootstrap 192.0.2.10 --key ~/.ssh/id_ed25519
{program} --dir install/ --accept-new-host-key
"""
_HOST = re.compile(r"[A-Za-z0-9_.:%-]+")


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--out",
        metavar="FILE",
        help="the bundle (default bootbridge-log-bundle-TIME.tar.gz in --dir or here)",
    )
    add_install_flags(parser)
    add_recorded_plan_flags(parser)
    group = parser.add_argument_group("from the installer's machine")
    group.add_argument("--dir", metavar="DIR", help="the directory that openshift-install was run with")
    group.add_argument("--bootstrap", metavar="HOST", help="the bootstrap node (default: found in --dir)")
    group.add_argument(
        "--key", metavar="FILE", help="private key for ssh (default: the installer's, in --dir)"
    )
    group.add_argument(
        "--known-hosts",
        metavar="FILE",
        help="host keys to accept, in the format of known_hosts (default: those in bootstrap.ign in --dir, "
        "else ssh's own files)",
    )
    group.add_argument(
        "--accept-new-host-key",
        action="store_true",
        help=f"accept an unknown host key on the first connection and store it in --dir ({RECORD_FILE})",
    )
    group.add_argument("--user", metavar="NAME", default="core", help="user for ssh (default core)")
    group.add_argument("--port", metavar="PORT", type=int, default=22, help="port of ssh (default 22)")
    group.add_argument("--timeout", metavar="DURATION", default="10m", help="time limit (default 10m)")


def _run(flags: argparse.Namespace) -> int:
    progress = Progress(sys.stderr)
    for name in ("bootstrap", "key", "known_hosts", "accept_new_host_key"):
        if flags.dir is None and getattr(flags, name):
            raise OperatorError("requires --dir", subject="--" + name.replace("_", "-"))
    gathered = _from_node(flags, progress) if flags.dir is None else _from_installer(flags, progress)
    if flags.json:
        print_output(json.dumps(gathered.document(), indent=2, ensure_ascii=False) + "\n")
    else:
        _show(gathered, result_terminal())
    return ExitCode.FINDINGS if _lacks_node(gathered) else ExitCode.OK


def _reporter(progress: Progress) -> Callable[[BundleSource], None]:
    def report(source: BundleSource) -> None:
        found = f"{counted(source.files, 'file')}, {size(source.bytes)}"
        text = source.trouble or found
        progress.finished(source.name, text, source.seconds, good=not source.trouble)

    return report


# --- on the node


def _from_node(flags: argparse.Namespace, progress: Progress) -> GatherResult:
    host = open_host(flags)
    # Here --key is that of ssh, and there is no flag for the certificates' kind.
    context = open_context(argparse.Namespace(**{**vars(flags), "key": None}), host)
    with closing(context.install):
        return gathering.of_node(context, _out(flags, Path()), _reporter(progress))


# --- from the installer's machine


def _from_installer(flags: argparse.Namespace, progress: Progress) -> GatherResult:
    limit, report = parse_seconds(flags.timeout, "--timeout"), _reporter(progress)
    directory = InstallDir.open(flags.dir)
    addresses = [flags.bootstrap] if flags.bootstrap else directory.addresses()
    for address in addresses:
        if not _HOST.fullmatch(address) or address.startswith("-"):
            raise OperatorError(f"invalid host {address!r}", subject="--bootstrap")
    if not 0 < flags.port < 65536:
        raise OperatorError(f"invalid port {flags.port}", subject="--port")
    kubeconfig = Path(flags.kubeconfig) if flags.kubeconfig else directory.kubeconfig
    return gathering.of_bootstrap(
        _out(flags, directory.path),
        Plan(flavour=Flavour.OPENSHIFT),
        addresses,
        _login(flags, directory),
        kubeconfig,
        limit,
        report,
        lambda address: progress.line(f"collecting from {address} over ssh"),
    )


def _login(flags: argparse.Namespace, directory: InstallDir) -> Login:
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*", flags.user):
        raise OperatorError(f"invalid user name {flags.user!r}", subject="--user")
    host_keys = _host_keys(flags, directory)
    if flags.key is None:
        return Login(flags.user, flags.port, directory.ssh_key(), host_keys=host_keys)
    key = Path(flags.key).expanduser()
    if not key.is_file():
        raise OperatorError(f"file not found: {flags.key}", subject="--key")
    return Login(flags.user, flags.port, key_file=key, host_keys=host_keys)


def _host_keys(flags: argparse.Namespace, directory: InstallDir) -> HostKeys:
    if flags.known_hosts is None:
        record = directory.path / RECORD_FILE
        return HostKeys(None, directory.host_keys(), record, flags.accept_new_host_key)
    if flags.accept_new_host_key:
        raise OperatorError("not allowed with --known-hosts", subject="--accept-new-host-key")
    known = Path(flags.known_hosts).expanduser()
    if not known.is_file():
        raise OperatorError(f"file not found: {flags.known_hosts}", subject="--known-hosts")
    return HostKeys(known)


# --- the result


def _out(flags: argparse.Namespace, folder: Path) -> Path:
    if flags.out:
        return Path(flags.out).absolute()
    return (folder / f"bootbridge-log-bundle-{datetime.now(UTC):%Y%m%d%H%M%S}.tar.gz").absolute()


def _lacks_node(gathered: GatherResult) -> bool:
    return any(each.name == "bootstrap node" and each.trouble for each in gathered.sources)


def _show(gathered: GatherResult, terminal: Terminal) -> None:
    terminal.line()
    for sentence in gathered.sentences():
        terminal.line(sentence)
    broken = gathered.diagnosis.broken if gathered.diagnosis else None
    if broken:
        terminal.line(f"Fix: {broken.fix}")
    mark = Mark.WARNING if _lacks_node(gathered) else Mark.GOOD
    sentence = f"Log bundle: {gathered.bundle} ({size(gathered.bundle.stat().st_size)})"
    listing = f"tar tzf {shlex.quote(str(gathered.bundle))}"
    terminal.summary(
        mark, sentence, next_steps=[(listing, "list the files before you send it; no secrets are in them")]
    )


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={
        ExitCode.OK: "the bundle is written",
        ExitCode.ERROR: "no bundle is written",
        ExitCode.FINDINGS: "the bundle is written, but the bootstrap node could not be reached",
        ExitCode.INTERRUPTED: "interrupted; nothing is left behind",
    },
)
