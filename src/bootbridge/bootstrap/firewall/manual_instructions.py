"""Renders what an operator must open, and how to test it, where Bootbridge does not manage the firewall."""

from __future__ import annotations

from typing import Any

from bootbridge.bootstrap.firewall.model import PURPOSE, Rule, source_networks
from bootbridge.bootstrap.plan.plan import Plan

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
        "lifetime": LIFETIME,
        "probe": list(_probe(plan)),
    }


def as_text(plan: Plan) -> str:
    (rule,) = rules(plan)
    probe = "\n".join(f"  {' '.join(command)}" for command in _probe(plan))
    return f"""\
{_who(plan)}

Open, in every firewall and packet filter between the nodes and the bootstrap node:
  protocol  TCP
  port      {rule.port}
  from      {", ".join(rule.sources)} (all nodes: control plane and workers; never all addresses)
  to        {rule.target}
  lifetime  {LIFETIME}

Agents on the nodes dial this port. The bootstrap node dials nothing in the other direction. Without this
port, the kube-apiserver on the bootstrap node cannot reach webhooks in the pod network.

Test it from a node, or from any machine in these networks:
{probe}
"""


def _who(plan: Plan) -> str:
    provisioned = ", user-provisioned" if plan.user_provisioned else ""
    return f"You manage the firewall on this platform ({plan.platform}{provisioned})."


def _target(plan: Plan) -> str:
    addresses = ", ".join(map(str, plan.node_ips))
    return f"the bootstrap node ({addresses})" if addresses else "the bootstrap node"


def _probe(plan: Plan) -> list[list[str]]:
    addresses = [str(address) for address in plan.node_ips] or ["ADDRESS"]
    port = [] if plan.ports.agent == 8091 else ["--agent-port", str(plan.ports.agent)]
    return [["bootbridge", "doctor", "--from-node", address, *port] for address in addresses]
