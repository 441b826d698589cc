"""``bootbridge demo``: runs the tunnel on this machine."""

from __future__ import annotations

import argparse

from bootbridge.cli.command import Command, ExitCode

_DESCRIPTION = """\
Runs the tunnel on this machine; needs neither Go nor Kubernetes.

Starts one proxy-server, two proxy-agents and an HTTPS admission webhook, and calls the webhook as a
kube-apiserver does: CONNECT over a unix socket, TLS, POST of an AdmissionReview. Stops one agent during a
call. Removes everything at the end, also after Ctrl-C or a failure.

As root, the control plane, the nodes and the pod are network namespaces: the control plane reaches the pod
only through the tunnel. The machine's own network is not changed. Without root, everything runs on
loopback. NO_COLOR=1 turns colours off."""
_EXAMPLES = """
sudo {program}          # with network namespaces
{program}               # on loopback, without privileges
{program} --keep        # try it with curl, then Ctrl-C
{program} --json | jq .latency
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-root", action="store_true", help="use loopback even if network namespaces are available"
    )
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--keep", action="store_true", help="keep everything running until Ctrl-C")
    end.add_argument("--json", action="store_true", help="print only the result, as JSON")


def _run(flags: argparse.Namespace) -> int:
    from bootbridge.demo.main import run

    return run(flags)


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={
        ExitCode.OK: "all steps succeeded and everything was removed",
        ExitCode.ERROR: "a step failed",
        128: "plus n: stopped by signal n",
    },
)
