"""Declares the flags of permanent servers (`render --permanent`), and builds their plan."""

from __future__ import annotations

import argparse
from dataclasses import replace

from bootbridge.bootstrap.plan.permanent import (
    AGENT_NAMESPACE,
    AGENT_SERVICE_ACCOUNT,
    AUDIENCE,
    PERMANENT_PORTS,
    AgentAuthentication,
    PermanentPlan,
)
from bootbridge.bootstrap.plan.plan import Flavour, Networking, Protocol, destination_rules
from bootbridge.cli.plan_flags import image_from, networks_from, split_rules
from bootbridge.errors import OperatorError

# Flags of a bootstrap's plan that decide nothing here.
_BOOTSTRAP_ONLY = (
    "install_config",
    "platform",
    "infra_id",
    "node_ip",
    "key",
    "validity",
    "restrict_destinations",
    "user_provisioned",
)
_PERMANENT_ONLY = (
    "server_host",
    "server_count",
    "agent_authentication",
    "token_audience",
    "prove_nodes",
    "agent_namespace",
    "agent_service_account",
    "apiserver_manifest",
)


def add_permanent_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `permanent_plan_from` reads, beside those of the plan."""
    group = parser.add_argument_group(
        "permanent servers",
        "With --permanent. Of the plan's flags, --image, --protocol, --agent-port, the networks, "
        "--allow-destinations and --host-network apply, too.",
    )
    add = group.add_argument
    add("--permanent", action="store_true", help="servers for each control plane, instead of a bootstrap")
    add(
        "--server-host",
        action="append",
        metavar="HOST",
        help="what agents dial: the servers' load balancer, or each control plane; repeatable, required",
    )
    add(
        "--server-count",
        type=int,
        metavar="N",
        help="number of servers, which they announce to agents (default: agents count the servers' leases)",
    )
    add(
        "--agent-authentication",
        choices=list(AgentAuthentication),
        help="of agents by a client certificate or by their service account's token (default certificate)",
    )
    add(
        "--token-audience",
        metavar="TEXT",
        help=f"audience of the token (default {AUDIENCE})",
    )
    add(
        "--prove-nodes",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="agents may advertise only their own node, which a token proves (default: with certificates)",
    )
    add("--agent-namespace", metavar="NAME", help=f"namespace of the agents (default {AGENT_NAMESPACE})")
    add(
        "--agent-service-account",
        metavar="NAME",
        help=f"service account of the agents (default {AGENT_SERVICE_ACCOUNT})",
    )
    add(
        "--apiserver-manifest",
        metavar="FILE",
        help="add the tunnel to this static pod of a kube-apiserver, and write it as kube-apiserver.yaml",
    )


def refuse_permanent_flags(flags: argparse.Namespace) -> None:
    """Raises if a flag of permanent servers was given without --permanent."""
    for field in _PERMANENT_ONLY:
        if getattr(flags, field) is not None:
            raise OperatorError("requires --permanent", subject=_flag(field))


def permanent_plan_from(flags: argparse.Namespace) -> PermanentPlan:
    """Returns the plan; raises OperatorError for flags that do not fit together."""
    for field in _BOOTSTRAP_ONLY:
        if getattr(flags, field) is not None:
            raise OperatorError("not used with --permanent", subject=_flag(field), hint="remove it")
    if flags.flavour == Flavour.OPENSHIFT:
        hint = (
            "an operator manages OpenShift's permanent kube-apiservers; their static pods cannot be changed"
        )
        raise OperatorError("not supported with --permanent", subject="--flavour openshift", hint=hint)
    if flags.token_audience is not None and flags.agent_authentication != AgentAuthentication.TOKEN:
        raise OperatorError("requires --agent-authentication token", subject="--token-audience")
    if flags.server_count is not None and flags.server_count < 1:
        hint = "1 or more; omit it to count leases"
        raise OperatorError(f"invalid number {flags.server_count}", subject="--server-count", hint=hint)
    authentication = AgentAuthentication(flags.agent_authentication or AgentAuthentication.CERTIFICATE)
    by_certificate = authentication is AgentAuthentication.CERTIFICATE
    networks = networks_from(flags, Networking())
    all_known = flags.machine_network and flags.cluster_network and flags.service_network
    return PermanentPlan(
        image=image_from(flags),
        protocol=Protocol(flags.protocol or Protocol.GRPC),
        ports=replace(PERMANENT_PORTS, agent=flags.agent_port or PERMANENT_PORTS.agent),
        server_hosts=tuple(flags.server_host or ()),
        server_count=flags.server_count or 0,
        authentication=authentication,
        token_audience=flags.token_audience or AUDIENCE,
        agent_namespace=flags.agent_namespace or AGENT_NAMESPACE,
        agent_service_account=flags.agent_service_account or AGENT_SERVICE_ACCOUNT,
        prove_nodes=by_certificate if flags.prove_nodes is None else flags.prove_nodes,
        cluster_networks=networks.cluster if flags.cluster_network else (),
        host_network=bool(flags.host_network),
        destinations=destination_rules(
            networks.all if all_known else (), split_rules(flags.allow_destinations or ())
        ),
    )


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"
