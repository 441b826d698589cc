"""``bootbridge join-service``: lets instances that prove what they are into the cluster it runs in."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bootbridge.cli.command import Command, ExitCode
from bootbridge.errors import OperatorError
from bootbridge.join_api.messages import JOIN_PORT

_DESCRIPTION = """\
Runs on every control plane, deployed by `bootbridge node init`. An instance calls it by attested TLS, and is
given a ticket if its evidence convinces and the policy knows it: a token for `kubeadm join`, the cluster's
CA pin, a certificate for its kubelet, and on a control plane the authorities' files. Name, role and
addresses are what the policy says, never what the instance claims.

The policy is the ConfigMap bootbridge-join-policy; a change takes effect at once, a broken one is logged
and the last good one stays. Every ticket and every refusal is one JSON line in the audit log."""

_EXAMPLES = """
{program}
{program} --kubeconfig /etc/kubernetes/admin.conf --audit-file /var/log/bootbridge-join.log
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--kubeconfig", metavar="FILE", default="", help="for the cluster's API (default: as a pod in it)")
    add("--namespace", default="kube-system", help="of the policy and the secrets (%(default)s)")
    add("--host", metavar="ADDRESS", default="", help="to listen on (default: every address)")
    add("--port", type=int, default=JOIN_PORT, help="to listen on (%(default)s)")
    add("--pki", metavar="DIR", default="/etc/kubernetes/pki", help="the authorities' files (%(default)s)")
    add(
        "--evidence",
        metavar="FILE",
        default="",
        help="what it proves itself with (default: nothing)",
    )
    add("--audit-file", metavar="FILE", default="", help="where the audit log goes (default: stdout)")
    add("--health-host", metavar="ADDRESS", default="127.0.0.1", help="for the probes (%(default)s)")
    add("--health-port", type=int, default=0, help="for /healthz, /readyz, /status (0: none)")
    add("--log-format", default="text", choices=("text", "json"), help="how a log line is written (text)")


def _run(flags: argparse.Namespace) -> int:
    for name in ("port", "health_port"):
        if not 0 <= getattr(flags, name) < 65536:
            raise OperatorError(f"{getattr(flags, name)} is no port", subject=f"--{name.replace('_', '-')}")
    # Late: a bad flag or a wish for help is answered without loading the service.
    from bootbridge.join_service.main import JoinServiceOptions, serve
    from bootbridge.runtime import logs

    logs.configure(flags.log_format, program="join-service")
    options = JoinServiceOptions(
        kubeconfig=flags.kubeconfig,
        namespace=flags.namespace,
        host=flags.host,
        port=flags.port,
        pki=Path(flags.pki),
        evidence=flags.evidence,
        audit_file=flags.audit_file,
        health_host=flags.health_host,
        health_port=flags.health_port,
    )
    return asyncio.run(serve(options))


COMMAND = Command(_run, _DESCRIPTION, _EXAMPLES, _add_flags, exit_codes={ExitCode.OK: "stopped by SIGTERM"})
