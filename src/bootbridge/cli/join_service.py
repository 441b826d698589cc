"""``bootbridge join-service``: issues tickets to instances that may join the cluster."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bootbridge.cli.command import Command, ExitCode
from bootbridge.errors import OperatorError
from bootbridge.join_api.messages import JOIN_PORT

_DESCRIPTION = """\
Runs on every control plane, deployed by `bootbridge node init`. An instance connects with attested TLS and
receives a ticket if its evidence is valid and the policy lists it. A ticket contains a token for
`kubeadm join`, the hash of the cluster CA, a serving certificate for the kubelet and, for a control plane,
the CA files. Name, role and addresses come from the policy, never from the request.

The policy is the ConfigMap bootbridge-join-policy; a change takes effect at once. An invalid policy is logged
and the last valid one stays in effect. Every request of an attested caller is one JSON line in the
audit log. Refused evidence is in the log on stderr: at most 10 lines a minute, then their number."""

_EXAMPLES = """
{program}
{program} --kubeconfig /etc/kubernetes/admin.conf --audit-file /var/log/bootbridge-join.log
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--kubeconfig",
        metavar="FILE",
        default="",
        help="kubeconfig for the API server (default: service account of the pod)",
    )
    add("--namespace", default="kube-system", help="namespace of the policy and the secrets (%(default)s)")
    add("--host", metavar="ADDRESS", default="", help="address to listen on (default: all addresses)")
    add("--port", type=int, default=JOIN_PORT, help="port to listen on (%(default)s)")
    add("--pki", metavar="DIR", default="/etc/kubernetes/pki", help="directory of the CA files (%(default)s)")
    add(
        "--evidence",
        metavar="FILE",
        default="",
        help="settings of the evidence that it sends (default: no evidence)",
    )
    add("--audit-file", metavar="FILE", default="", help="audit log (default: stdout)")
    add(
        "--health-host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address for the health endpoints (%(default)s)",
    )
    add("--health-port", type=int, default=0, help="port for /healthz, /readyz and /status (0: disabled)")
    add("--log-format", default="text", choices=("text", "json"), help="log format (%(default)s)")


def _run(flags: argparse.Namespace) -> int:
    for name in ("port", "health_port"):
        if not 0 <= getattr(flags, name) < 65536:
            flag = f"--{name.replace('_', '-')}"
            raise OperatorError(f"invalid port {getattr(flags, name)}", subject=flag)
    # Imported late, so that --help and flag errors do not load the service.
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
