"""Renders what an operator must open, and how to test it, where Bootbridge does not manage the firewall."""

from __future__ import annotations

from typing import Any

from bootbridge.bootstrap.firewall.installer_names import control_plane_names, worker_names
from bootbridge.bootstrap.firewall.model import PURPOSE, Rule, source_networks
from bootbridge.bootstrap.plan.plan import Plan, Platform

LIFETIME = "open before the bootstrap node boots, close after the bootstrap is complete"


def rules(plan: Plan) -> list[Rule]:
    sources = tuple(map(str, source_networks(plan)))
    return [
        Rule(PURPOSE, plan.ports.agent, sources, _target(plan), "manually, after the bootstrap is complete")
    ]


def as_data(plan: Plan) -> dict[str, Any]:
    (rule,) = rules(plan)
    return {
        "platform": plan.platform,
        "managedBy": "operator",
        "direction": "inbound to the bootstrap node",
        "protocol": rule.protocol,
        "port": rule.port,
        "sources": list(rule.sources),
        "target": rule.target,
        "place": _place(plan),
        "lifetime": LIFETIME,
        "probe": list(_probe(plan)),
    }


def as_text(plan: Plan, why: str) -> str:
    (rule,) = rules(plan)
    probe = "\n".join(f"  {' '.join(command)}" for command in _probe(plan))
    place = f"  place     {_place(plan)}\n" if _place(plan) else ""
    return f"""\
You manage the firewall on this platform ({plan.platform}): {why}.

Open, in every firewall and packet filter between the nodes and the bootstrap node:
  protocol  TCP
  port      {rule.port}
  from      {", ".join(rule.sources)} (all nodes: control plane and workers; never all addresses)
  to        {rule.target}
{place}  lifetime  {LIFETIME}

Agents on the nodes dial this port. The bootstrap node dials nothing in the other direction. Without this
port, the kube-apiserver on the bootstrap node cannot reach webhooks in the pod network.

Test it from a node, or from any machine in these networks:
{probe}
"""


def _place(plan: Plan) -> str:
    """Returns where the rule belongs and who may create it, if install-config says so."""
    cloud = plan.cloud
    if plan.platform is not Platform.GCP:
        return ""
    project = cloud.network_project or cloud.project
    network = f"VPC network {cloud.network}" if cloud.network else "the cluster's VPC network"
    place = network + (f" of project {project}, by its network administrators" if project else "")
    if not plan.infra_id:
        return place
    tags = ", ".join((*control_plane_names(plan), *worker_names(plan)))
    return f"{place}; instead of addresses, the source can be the tags {tags}"


def _target(plan: Plan) -> str:
    addresses = ", ".join(map(str, plan.node_ips))
    return f"the bootstrap node ({addresses})" if addresses else "the bootstrap node"


def _probe(plan: Plan) -> list[list[str]]:
    addresses = [str(address) for address in plan.node_ips] or ["ADDRESS"]
    port = [] if plan.ports.agent == 8091 else ["--agent-port", str(plan.ports.agent)]
    return [["bootbridge", "doctor", "--from-node", address, *port] for address in addresses]
