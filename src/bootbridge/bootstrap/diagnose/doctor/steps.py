"""All steps of the diagnosis, in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bootbridge.bootstrap.diagnose.check.result import CheckResult
from bootbridge.bootstrap.diagnose.doctor import agents, apiserver, destination, server
from bootbridge.bootstrap.diagnose.doctor.context import DiagnosisContext
from bootbridge.bootstrap.diagnose.doctor.step import Diagnosis, DiagnosisStep, Hop, run_steps

# In the order of a call; what a hop depends on comes before the hop.
STEPS: tuple[tuple[Hop, str, Callable[[DiagnosisContext], CheckResult]], ...] = (
    (Hop.APISERVER, "plan-record", apiserver.plan_record),
    (Hop.APISERVER, "apiserver-runs", apiserver.runs),
    (Hop.APISERVER, "egress-selector", apiserver.egress_selector),
    (Hop.APISERVER, "endpoint-routing", apiserver.endpoint_routing),
    (Hop.APISERVER, "egress-config", apiserver.egress_config),
    (Hop.SERVER, "certificates", server.certificate_files),
    (Hop.SERVER, "certificate-expiry", server.certificate_expiry),
    (Hop.SERVER, "certificate-addresses", server.certificate_addresses),
    (Hop.SERVER, "server-runs", server.runs),
    (Hop.SOCKET, "socket", server.socket),
    (Hop.SOCKET, "protocol", server.protocol),
    (Hop.SERVER, "server-healthy", server.healthy),
    (Hop.CONNECTION, "agent-port", server.agent_port),
    (Hop.AGENT, "agent-daemonset", agents.daemonset),
    (Hop.AGENT, "agent-secret", agents.secret),
    (Hop.AGENT, "agent-pods", agents.pods),
    (Hop.CONNECTION, "agents-connected", agents.connected),
    (Hop.DESTINATION, "destination", destination.resolve),
    (Hop.DESTINATION, "dial", destination.dial),
    (Hop.DESTINATION, "destination-tls", destination.tls),
)


def diagnose(
    context: DiagnosisContext, report: Callable[[DiagnosisStep], None] = lambda step: None
) -> Diagnosis:
    """Runs all steps; `report` is called with each as soon as it has run."""
    return run_steps([(hop, name, partial(check, context)) for hop, name, check in STEPS], report)
