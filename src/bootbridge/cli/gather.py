"""``bootbridge gather``: collect logs, records and an analysis for a bug report, without secrets."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bootbridge.bootstrap.diagnose.gather import gathering
from bootbridge.bootstrap.diagnose.gather.bundle import BundleSource
from bootbridge.bootstrap.diagnose.gather.gathering import GatherResult
from bootbridge.bootstrap.diagnose.gather.install_dir import InstallDir
from bootbridge.bootstrap.diagnose.gather.remote import Login
from bootbridge.bootstrap.plan.plan import Flavour, Plan
from bootbridge.cli.command import show
from bootbridge.cli.doctor import harmless, open_context
from bootbridge.cli.install_flags import add_install_flags, open_host, parse_seconds
from bootbridge.cli.plan_flags import add_plan_flags
from bootbridge.cli.verb import DONE, FOUND, Parser, run_verb, words
from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Writes a log bundle (.tar.gz, readable by you alone): the bootstrap's stage records, the receipt, logs of
the server and of every agent, the server's status and metrics, what was rendered, our objects in the
cluster with their events, addresses, routes and listeners, certificates in words, what the doctor
found, and an analysis: the stage that failed, or the hop that is broken, in a sentence.

Keys, tokens, pull secrets and the values of Secrets are never in it; of Secrets it has names, sizes
and hashes. What could not be collected is listed in the bundle, and keeps nothing else from being so.

On the bootstrap node, run it without --dir. From the installer's side, --dir finds the bootstrap
node's address in .clusterapi_output and the generated key in .openshift_install_state.json, and
collects over ssh; the node needs no Python for it.

Exit codes: 0 the bundle is written; 1 it is not; 2 it is, but without the bootstrap node, which could
not be reached; 130 interrupted, and nothing is left behind."""

_EXAMPLES = """
{program}
{program} --out /root/bundle.tar.gz
{program} --dir install/
{program} --dir install/ --bootstrap 192.0.2.10 --key ~/.ssh/id_ed25519
"""
_HOST = re.compile(r"[A-Za-z0-9_.:%-]+")


def main(argv: Sequence[str] | None = None, program: str = "bootbridge gather") -> int:
    """Run the verb; the result is the exit code."""
    return run_verb(program, lambda: _run(_flags(words(argv), program)))


def _flags(argv: list[str], program: str) -> argparse.Namespace:
    parser = Parser(program, _DESCRIPTION, _EXAMPLES)
    add = parser.add_argument
    add(
        "--out",
        metavar="FILE",
        help="the bundle (default bootbridge-log-bundle-TIME.tar.gz in --dir or here)",
    )
    add(
        "--flavour",
        choices=list(Flavour),
        help="look for this one's tunnel alone (default: whichever is laid)",
    )
    add_install_flags(parser)
    group = parser.add_argument_group("from the installer's side")
    group.add_argument("--dir", metavar="DIR", help="the directory that openshift-install was run with")
    group.add_argument("--bootstrap", metavar="HOST", help="the bootstrap node (default: found in --dir)")
    group.add_argument(
        "--key", metavar="FILE", help="private key for ssh (default: the installer's, in --dir)"
    )
    group.add_argument("--user", metavar="NAME", default="core", help="who logs in (default core)")
    group.add_argument("--port", metavar="PORT", type=int, default=22, help="of ssh (default 22)")
    group.add_argument("--timeout", metavar="DURATION", default="10m", help="for the node (default 10m)")
    return parser.parse_args(argv)


def _run(flags: argparse.Namespace) -> int:
    progress = Progress(sys.stderr)
    if flags.dir is None and (flags.bootstrap or flags.key):
        subject = "--bootstrap" if flags.bootstrap else "--key"
        raise OperatorError("goes with --dir only", subject=subject, hint="name the installer's directory")
    gathered = _from_node(flags, progress) if flags.dir is None else _from_installer(flags, progress)
    if flags.json:
        show(json.dumps(gathered.document(), indent=2, ensure_ascii=False) + "\n")
    else:
        show(_as_text(gathered))
    return FOUND if _lacks_node(gathered) else DONE


def _teller(progress: Progress) -> Callable[[BundleSource], None]:
    def tell(source: BundleSource) -> None:
        size = f"{source.files} files, {source.bytes / 1024:.0f} KiB"
        mark = "FAIL" if source.trouble else "ok  "
        progress.line(f"{mark} {source.seconds:6.1f} s  {source.name}: {harmless(source.trouble or size)}")

    return tell


# --- on the node


def _from_node(flags: argparse.Namespace, progress: Progress) -> GatherResult:
    host = open_host(flags)
    context = open_context(_with_plan_flags(flags), host)
    try:
        return gathering.of_node(context, _out(flags, Path()), _teller(progress))
    finally:
        if context.install.cluster:
            context.install.cluster.close()


def _with_plan_flags(flags: argparse.Namespace) -> argparse.Namespace:
    """No flags of a plan here: it is the recorded one, or that with the default names."""
    parser = argparse.ArgumentParser()
    add_plan_flags(parser)
    plan = vars(parser.parse_args([]))
    return argparse.Namespace(**{**plan, **{k: v for k, v in vars(flags).items() if k != "key"}})


# --- from the installer's side


def _from_installer(flags: argparse.Namespace, progress: Progress) -> GatherResult:
    limit, tell = parse_seconds(flags.timeout, "--timeout"), _teller(progress)
    directory = InstallDir.open(flags.dir)
    addresses = [flags.bootstrap] if flags.bootstrap else directory.addresses()
    for address in addresses:
        if not _HOST.fullmatch(address) or address.startswith("-"):
            raise OperatorError(f"{address!r} is no host", subject="--bootstrap")
    if not 0 < flags.port < 65536:
        raise OperatorError(f"{flags.port} is no port", subject="--port")
    kubeconfig = Path(flags.kubeconfig) if flags.kubeconfig else directory.kubeconfig
    return gathering.of_bootstrap(
        _out(flags, directory.path),
        Plan(flavour=Flavour.OPENSHIFT),
        addresses,
        _login(flags, directory),
        kubeconfig,
        limit,
        tell,
        lambda address: progress.line(f"              collecting from {harmless(address)} over ssh"),
    )


def _login(flags: argparse.Namespace, directory: InstallDir) -> Login:
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*", flags.user):
        raise OperatorError(f"{flags.user!r} is no user", subject="--user")
    if flags.key is None:
        return Login(flags.user, flags.port, directory.ssh_key())
    key = Path(flags.key).expanduser()
    if not key.is_file():
        raise OperatorError(f"{flags.key} is no file", subject="--key")
    return Login(flags.user, flags.port, key_file=key)


# --- the result


def _out(flags: argparse.Namespace, folder: Path) -> Path:
    if flags.out:
        return Path(flags.out).absolute()
    return (folder / f"bootbridge-log-bundle-{datetime.now(UTC):%Y%m%d%H%M%S}.tar.gz").absolute()


def _lacks_node(gathered: GatherResult) -> bool:
    return any(each.name == "bootstrap node" and each.trouble for each in gathered.sources)


def _as_text(gathered: GatherResult) -> str:
    lines = [harmless(text) for text in gathered.sentences()]
    broken = gathered.diagnosis.broken if gathered.diagnosis else None
    if broken:
        lines.append(f"Fix: {harmless(broken.fix)}")
    return "\n".join([*lines, f"Log bundle: {gathered.bundle}"]) + "\n"
