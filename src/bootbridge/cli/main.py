"""``bootbridge <verb>``: the one command with all the others inside."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bootbridge import __version__
from bootbridge.cli.command import complain, show
from bootbridge.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HELP = """\
The bridge from a bootstrap kube-apiserver into the pod network.

Usage:
  bootbridge <verb> [flags]

Verbs:
  server    run the proxy-server: the kube-apiserver and the agents connect to it
  agent     run the proxy-agent: it dials the servers and reaches the pods
  demo      see it work on this machine, from certificates to a webhook call
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
        complain(f"bootbridge: unknown {kind} {verb!r} (the verbs are: server, agent, demo, version, help)")
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


def _version(argv: list[str]) -> int:
    return show(f"bootbridge {__version__}\n")


def _help(argv: list[str]) -> int:
    return show(_HELP)


_VERBS: dict[str, Callable[[list[str]], int]] = {
    "server": _server,
    "agent": _agent,
    "demo": _demo,
    "version": _version,
    "--version": _version,
    "help": _help,
    "--help": _help,
    "-h": _help,
}

if __name__ == "__main__":
    sys.exit(main())
