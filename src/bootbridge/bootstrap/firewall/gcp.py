"""GCP: creates a firewall rule from the nodes' tags to a tag of the bootstrap instance.

Tags apply to IPv4 and IPv6, so one rule is enough. With a shared VPC the rule is in the network's project,
the instance in the cluster's. Without a release, the tags of all are listed: no machine has the others.
"""

from __future__ import annotations

from bootbridge.bootstrap.firewall.installer_names import control_plane_names, worker_names
from bootbridge.bootstrap.firewall.model import (
    DESCRIPTION,
    FirewallAction,
    Lookup,
    Presence,
    Rule,
    bootstrap_name,
    rule_name,
)
from bootbridge.bootstrap.plan.plan import Plan

_JSON = ("--format", "json")
_NETWORK = "networkInterfaces[].network"


def rules(plan: Plan) -> list[Rule]:
    name = rule_name(plan)
    sources = tuple(f"tag {tag}" for tag in _source_tags(plan))
    target = f"tag {name}, on {bootstrap_name(plan)} alone"
    return [Rule(name, plan.ports.agent, sources, target, "rule deleted, tag removed")]


def create(plan: Plan) -> list[FirewallAction]:
    return [_tag(plan, Presence.REQUIRED), _create_rule(plan)]


def remove(plan: Plan) -> list[FirewallAction]:
    return [_delete_rule(plan), _tag(plan, Presence.SKIP_IF_MISSING)]


def _source_tags(plan: Plan) -> tuple[str, ...]:
    return *control_plane_names(plan), *worker_names(plan)


def _tag(plan: Plan, presence: Presence) -> FirewallAction:
    """Adds the tag, or removes it. At removal the instance may be gone already."""
    name, instance, adding = rule_name(plan), bootstrap_name(plan), presence is Presence.REQUIRED
    verb = "add-tags" if adding else "remove-tags"
    where = ("--zone", "@zone@", "--tags", name, *_project(plan), "--quiet")
    return FirewallAction(
        rule=name,
        description=f"{'add' if adding else 'remove'} the tag {name} {'to' if adding else 'from'} {instance}",
        argv=("gcloud", "compute", "instances", verb, instance, *where),
        api=f"compute.instances.setTags ({'with' if adding else 'without'} {name})",
        lookups=(
            _of_bootstrap(plan, "zone", "zone", presence),
            # For the record: the project that the CLI uses by default.
            *([] if plan.cloud.project else [_of_bootstrap(plan, "project", "zone", presence, "projects")]),
        ),
        already_done=() if adding else _not_found(f"instances/{instance}"),
    )


def _create_rule(plan: Plan) -> FirewallAction:
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
        *("--target-tags", name, "--description", DESCRIPTION),
        *("--project", plan.cloud.network_project or "@network_project@", "--quiet", *_JSON),
    )
    lookups = [_of_bootstrap(plan, "network", _NETWORK, Presence.REQUIRED)]
    if not plan.cloud.network_project:
        lookups.append(_of_bootstrap(plan, "network_project", _NETWORK, Presence.REQUIRED, "projects"))
    description = f"allow {' and '.join(tags)} on TCP {port} by the rule {name}"
    return FirewallAction(
        name,
        description,
        argv,
        "compute.firewalls.insert",
        body,
        tuple(lookups),
        already_done=(f"firewalls/{name}' already exists",),
    )


def _delete_rule(plan: Plan) -> FirewallAction:
    name = rule_name(plan)
    project = ("--project", plan.cloud.network_project) if plan.cloud.network_project else _project(plan)
    argv = ("gcloud", "compute", "firewall-rules", "delete", name, *project, "--quiet")
    return FirewallAction(
        name,
        f"delete the rule {name}",
        argv,
        "compute.firewalls.delete",
        already_done=_not_found(f"firewalls/{name}"),
    )


def _not_found(resource: str) -> tuple[str, ...]:
    """Names the resource: a project or network that is not found must not count as success."""
    return (f"{resource}' was not found",)


def _project(plan: Plan) -> tuple[str, ...]:
    return ("--project", plan.cloud.project) if plan.cloud.project else ()


def _of_bootstrap(plan: Plan, variable: str, select: str, presence: Presence, after: str = "") -> Lookup:
    """Finds the last part of a URL, or with `after` the part that follows this one."""
    name = bootstrap_name(plan)
    project = f"in project {plan.cloud.project}" if plan.cloud.project else "in the CLI's default project"
    return Lookup(
        variable,
        f"the {variable.replace('_', ' ')} of the instance {name}",
        ("gcloud", "compute", "instances", "list", "--filter", f"name={name}", *_project(plan), *_JSON),
        items="[]",
        select=select,
        where=(("name", name),),
        basename=not after,
        after=after,
        presence=presence,
        if_missing=project,
    )
