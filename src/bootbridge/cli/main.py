"""``bootbridge <verb>``: the one command with all the others inside."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from bootbridge import __version__, bounds
from bootbridge.cli.command import complain, show
from bootbridge.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HELP = """\
The tunnel from a bootstrap kube-apiserver into the pod network.

Usage:
  bootbridge <verb> [flags]

Verbs:
  server    run the proxy-server: the kube-apiserver and the agents connect to it
  agent     run the proxy-agent: it dials the servers and reaches the pods
  demo      see it work on this machine, from certificates to a webhook call

 The tunnel on a bootstrap node:
  render    write every manifest and script, to be read and changed before anything boots
  inject    put the tunnel into a bootstrap.ign that an unmodified installer made, or take it out
  kasconfig see what an override does to the kube-apiserver's configuration and flags
  firewall  the rule that lets nodes reach the bootstrap node, and its removal, per platform
  address   which addresses of this node the agents will dial, and why
  check     look over an ignition file, an asset directory or a live node
  up        lay the tunnel on this node and wait until it carries
  status    what of the tunnel is there, and whether it works
  down      take the tunnel away and prove that nothing is left
  doctor    walk the way from the kube-apiserver to a pod and name the first broken hop
  gather    collect logs, records and an analysis for a bug report, without secrets
  image     build our server's and agent's container image, as an archive to load or push
  lab       a real Kubernetes bootstrap on this machine, to try all of this on

 Nodes from blank instances:
  node         make an instance a node, by init or by join; make a cluster with one
  join-service let attested instances into the cluster that it runs in

  version   show the version
  help      show this page

bootbridge <verb> --help explains a verb.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the result is the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words[0] if words else "help"
    handler = _VERBS.get(verb)
    if handler is None:
        kind = "flag" if verb.startswith("-") else "verb"
        complain(f"bootbridge: unknown {kind} {verb!r} (the verbs are: {', '.join(_NAMES)})")
        return 1
    return handler(words[1:])


def _server(argv: list[str]) -> int:
    from bootbridge.cli.server import main as server

    return server(argv, program="bootbridge server")


def _agent(argv: list[str]) -> int:
    from bootbridge.cli.agent import main as agent

    return agent(argv, program="bootbridge agent")


def _demo(argv: list[str]) -> int:
    from bootbridge.demo.main import run

    try:
        return run(argv)
    except OperatorError as error:
        complain(f"bootbridge demo: {error}")
        return 1


def _bootstrap(verb: str) -> Callable[[list[str]], int]:
    """A verb of the rooms around the tunnel, imported only when it is called."""

    def run(argv: list[str]) -> int:
        module = importlib.import_module(f"bootbridge.cli.{verb.replace('-', '_')}")
        return int(module.main(argv, program=f"bootbridge {verb}"))

    return run


def _version(argv: list[str]) -> int:
    compiled = (bounds.__file__ or "").endswith(".so")  # see setup.py
    return show(f"bootbridge {__version__}{', compiled' if compiled else ''}\n")


def _help(argv: list[str]) -> int:
    return show(_HELP)


_BOOTSTRAP_VERBS = (
    "render",
    "inject",
    "kasconfig",
    "firewall",
    "address",
    "check",
    "up",
    "status",
    "down",
    "doctor",
    "gather",
    "image",
    "lab",
    "node",
    "join-service",
)
_NAMES = ("server", "agent", "demo", *_BOOTSTRAP_VERBS, "version", "help")
_VERBS: dict[str, Callable[[list[str]], int]] = {
    "server": _server,
    "agent": _agent,
    "demo": _demo,
    **{verb: _bootstrap(verb) for verb in _BOOTSTRAP_VERBS},
    "version": _version,
    "--version": _version,
    "help": _help,
    "--help": _help,
    "-h": _help,
}

if __name__ == "__main__":
    sys.exit(main())
