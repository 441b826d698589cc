"""``bootbridge COMMAND``: the list of all commands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bootbridge.cli.command import Command, CommandGroup, LazyCommand
from bootbridge.cli.output import print_output

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if words[0] == "--version":
        words[0] = "version"
    return COMMAND.main(words, "bootbridge")


def _version(flags: argparse.Namespace) -> int:
    from bootbridge import installation

    if flags.json:
        import json

        return print_output(json.dumps(installation.description(), indent=2) + "\n")
    return print_output(_wrapped(installation.text("bootbridge")))


def _wrapped(text: str) -> str:
    """Wraps lines to the terminal, without rich, which the image of the join service does not have."""
    if sys.stdout is None or not sys.stdout.isatty():
        return text
    import os
    import textwrap

    columns = os.get_terminal_size(sys.stdout.fileno()).columns or 80
    return "".join(f"{textwrap.fill(line, columns, subsequent_indent='  ')}\n" for line in text.splitlines())


def _version_flags(parser: argparse.ArgumentParser) -> None:
    from bootbridge.cli.parser import add_json_flag

    add_json_flag(parser)


def _help(flags: argparse.Namespace) -> int:
    return main([*flags.command, "--help"])


def _help_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", metavar="COMMAND", nargs="*", help="a command, for example `node init`")


def _in_module(name: str, summary: str) -> LazyCommand:
    return LazyCommand(f"bootbridge.cli.{name}", summary)


COMMAND = CommandGroup(
    """\
Konnectivity-compatible tunnel from a bootstrap kube-apiserver into the pod network.
It works before the cluster's network does: agents dial out to the server, the kube-apiserver's
calls to webhooks and aggregated APIs go through them.""",
    {
        "Tunnel": {
            "server": _in_module(
                "server", "run the proxy-server; the kube-apiserver and the agents connect to it"
            ),
            "agent": _in_module("agent", "run the proxy-agent; it dials the servers and connects to pods"),
            "certs": _in_module("certs", "create, show and renew certificates for a tunnel of your own"),
            "dial": _in_module("dial", "open one connection through a running tunnel, on stdin and stdout"),
            "forward": _in_module("forward", "forward a local TCP port through a running tunnel"),
            "top": _in_module("top", "show a running server or agent live: agents, connections, dials"),
            "demo": _in_module(
                "demo", "show the tunnel on this machine, from certificates to a webhook call"
            ),
        },
        "Tunnel on a bootstrap node": {
            "render": _in_module(
                "render", "write all manifests and scripts, to read or change before the boot"
            ),
            "inject": _in_module("inject", "add the tunnel to an installer's bootstrap.ign, or remove it"),
            "kasconfig": _in_module(
                "kasconfig", "show what an override changes in the kube-apiserver's configuration"
            ),
            "firewall": _in_module(
                "firewall", "create, remove or show the firewall rule for the agents' port"
            ),
            "address": _in_module("address", "show which addresses of this node the agents dial, and why"),
            "check": _in_module("check", "check an ignition file, a rendered directory or this node"),
            "up": _in_module("up", "install server and agents on this node and wait until they are ready"),
            "status": _in_module(
                "status", "show which resources are installed and whether the tunnel is ready"
            ),
            "down": _in_module("down", "remove server and agents and verify that nothing remains"),
            "doctor": _in_module(
                "doctor", "test each hop from the kube-apiserver to a pod; report the first broken one"
            ),
            "gather": _in_module(
                "gather", "collect logs, records and an analysis for a bug report, without secrets"
            ),
            "image": _in_module("image", "build the container image of server and agent"),
            "lab": _in_module("lab", "run a real Kubernetes bootstrap on this machine, for tests"),
        },
        "Nodes from blank instances": {
            "node": _in_module("node", "make an instance a node, by init or join; initialise a cluster"),
            "join-service": _in_module(
                "join_service", "admit attested instances to the cluster in which it runs"
            ),
            "tpm-helper": _in_module("tpm_helper", "give the join service the use of a TPM"),
        },
        "Other": {
            "schema": _in_module("schema", "print the JSON schema of node.yaml, policy.yaml and others"),
            "completion": _in_module("completion", "print a completion script for bash, zsh or fish"),
            "man": _in_module("man", "show the manual page of a command, or write all pages"),
            "version": Command(
                _version,
                flags=_version_flags,
                examples="{program}\n{program} --json",
                summary="show the version, whether it is compiled, and the releases of Python and OpenSSL",
            ),
            "help": Command(
                _help,
                flags=_help_flags,
                examples="{program} up\n{program} node init",
                summary="show this page, or that of a command",
            ),
        },
    },
    """
    {program} demo
    {program} up --image=registry.example/bootbridge:1
    {program} doctor
    """,
)

if __name__ == "__main__":
    sys.exit(main())
