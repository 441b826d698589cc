"""GCP: a firewall rule from the nodes' tags to a tag that only the bootstrap instance gets.

Tags hold for IPv4 and IPv6 alike, so one rule is enough.
"""

from __future__ import annotations

from bootbridge.bootstrap.firewall.model import (
    DESCRIPTION,
    FirewallAction,
    Lookup,
    Rule,
    Then,
    bootstrap_name,
    rule_name,
)
from bootbridge.bootstrap.plan.plan import Plan

_JSON = ("--format", "json")


def rules(plan: Plan) -> list[Rule]:
    name = rule_name(plan)
    sources = tuple(f"tag {tag}" for tag in _source_tags(plan))
    target = f"tag {name}, on {bootstrap_name(plan)} alone"
    return [Rule(name, plan.ports.agent, sources, target, "rule deleted, tag taken off")]


def create(plan: Plan) -> list[FirewallAction]:
    return [_tag(plan, Then.FAIL), _make_rule(plan)]


def remove(plan: Plan) -> list[FirewallAction]:
    return [_delete_rule(plan), _tag(plan, Then.NOTHING_TO_DO)]


def _source_tags(plan: Plan) -> tuple[str, ...]:
    return f"{plan.infra_id}-control-plane", f"{plan.infra_id}-worker"


def _tag(plan: Plan, none: Then) -> FirewallAction:
    """Put the tag on, or take it off where the instance may be gone already."""
    name, instance, adding = rule_name(plan), bootstrap_name(plan), none is Then.FAIL
    verb = "add-tags" if adding else "remove-tags"
    where = ("--zone", "@zone@", "--tags", name, "--quiet")
    return FirewallAction(
        rule=name,
        does=f"{'put' if adding else 'take'} the tag {name} {'on' if adding else 'off'} {instance}",
        argv=("gcloud", "compute", "instances", verb, instance, *where),
        api=f"compute.instances.setTags ({'with' if adding else 'without'} {name})",
        lookups=(_of_bootstrap(plan, "zone", "zone", none),),
        already=() if adding else _gone(f"instances/{instance}"),
    )


def _make_rule(plan: Plan) -> FirewallAction:
    name, port, tags = rule_name(plan), plan.ports.agent, _source_tags(plan)
    body = {
        "name": name,
        "description": DESCRIPTION,
        "network": "global/networks/@network@",
        "direction": "INGRESS",
        "allowed": [{"IPProtocol": "tcp", "ports": [str(port)]}],
        "sourceTags": list(tags),
        "targetTags": [name],
    }
    argv = (
        *("gcloud", "compute", "firewall-rules", "create", name, "--network", "@network@"),
        *("--direction", "INGRESS", "--allow", f"tcp:{port}", "--source-tags", ",".join(tags)),
        *("--target-tags", name, "--description", DESCRIPTION, "--quiet", *_JSON),
    )
    lookups = (_of_bootstrap(plan, "network", "networkInterfaces[].network", Then.FAIL),)
    does = f"let {' and '.join(tags)} reach TCP {port} by the rule {name}"
    return FirewallAction(
        name,
        does,
        argv,
        "compute.firewalls.insert",
        body,
        lookups,
        already=(f"firewalls/{name}' already exists",),
    )


def _delete_rule(plan: Plan) -> FirewallAction:
    name = rule_name(plan)
    argv = ("gcloud", "compute", "firewall-rules", "delete", name, "--quiet")
    return FirewallAction(
        name, f"delete the rule {name}", argv, "compute.firewalls.delete", already=_gone(f"firewalls/{name}")
    )


def _gone(resource: str) -> tuple[str, ...]:
    """Named in full: a project or network that is not found is another matter."""
    return (f"{resource}' was not found",)


def _of_bootstrap(plan: Plan, variable: str, give: str, none: Then) -> Lookup:
    name = bootstrap_name(plan)
    return Lookup(
        variable,
        f"the {variable} of the instance {name}",
        ("gcloud", "compute", "instances", "list", "--filter", f"name={name}", *_JSON),
        items="[]",
        give=give,
        where=(("name", name),),
        last_part=True,
        none=none,
    )
