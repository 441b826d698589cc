"""Adds the tunnel to a bootstrap.ign of an unmodified installer, and removes it again.

Both are functions from bytes to bytes. They return a complete file or raise OperatorError.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from ipaddress import ip_address
from typing import Any

import yaml

from bootbridge.bootstrap.ignition import bootkube, injection_record, preflight
from bootbridge.bootstrap.ignition.document import Ignition, apply_splices
from bootbridge.bootstrap.plan import install_config, payload_programs
from bootbridge.bootstrap.plan.paths import OPENSHIFT_PATHS
from bootbridge.bootstrap.plan.plan import Flavour, IPAddress, Plan
from bootbridge.bootstrap.render import node_files
from bootbridge.common.files import Asset, Tree
from bootbridge.common.yaml_text import YAML_ERRORS
from bootbridge.errors import OperatorError

CLUSTER_CONFIG = "/opt/openshift/manifests/cluster-config.yaml"
KUBELET = "/usr/local/bin/kubelet.sh"
# The installer writes OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP there; `::` only selects the IP version.
_KUBELET_NODE_IP = re.compile(rb'^\s*--node-ip="?([0-9A-Fa-f:.]+)"?\s*\\?$', re.MULTILINE)
INFRASTRUCTURE = "/opt/openshift/manifests/cluster-infrastructure-02-config.yml"
CLUSTER_VERSION = "/opt/openshift/manifests/cvo-overrides.yaml"
# The installer subscribes the cluster to stable-4.18, for example; OKD to a channel without a release.
_CHANNEL_RELEASE = re.compile(r"-(\d+\.\d+)$")


@dataclass(frozen=True)
class InjectionResult:
    """Holds the new document and a summary."""

    document: bytes = field(repr=False)
    plan: Plan
    files: tuple[str, ...]
    replaced_earlier: bool


def inject(
    data: bytes, make_plan: Callable[[Plan], Plan], now: datetime, name: str, changed: Tree | None = None
) -> InjectionResult:
    """Adds the tunnel. `make_plan` gets a plan with the platform, networks and infraID of the document.

    `changed` are rendered files that an operator may have edited; they replace ours. An earlier injection is
    removed first, so that injecting twice gives the same bytes as injecting once.
    """
    given = Ignition.parse(data, name)
    original = restore_original(given, name)
    preflight.raise_first_problem(original, now, name)
    plan = make_plan(read_plan(original, name))
    if plan.flavour is not Flavour.OPENSHIFT:
        hint = "only OpenShift has a bootstrap.ign; use render or up"
        raise OperatorError(f"not supported: {plan.flavour}", subject="--flavour", hint=hint)
    payload_programs.raise_if_missing(plan)
    tree = dict(node_files.node_files(plan))
    tree |= {path: asset for path, asset in (changed or {}).items() if path in tree}
    text = _edited(original, plan, tree)
    return InjectionResult(text.encode(), plan, (*tree, plan.paths.injection_record), given is not original)


def remove(data: bytes, name: str) -> bytes:
    """Returns the bytes from before `inject`. A document without a tunnel stays unchanged."""
    return restore_original(Ignition.parse(data, name), name).data


def restore_original(ignition: Ignition, name: str) -> Ignition:
    """Returns the document without the tunnel; the same object if it has none."""
    record = ignition.content(OPENSHIFT_PATHS.injection_record)
    if record is not None:
        return injection_record.restore(ignition, record, name)
    script = ignition.files.get(bootkube.PATH)
    if script and script.is_inline and bootkube.is_patched(script.content()):
        text = f"contains a tunnel without its record {OPENSHIFT_PATHS.injection_record}"
        raise OperatorError(text, subject=name, hint="create the ignition files again")
    return ignition


def _edited(original: Ignition, plan: Plan, tree: Tree) -> str:
    script = original.files[bootkube.PATH].content()
    edits = [original.replacement(bootkube.PATH, bootkube.patch(script, plan))]
    record_path = plan.paths.injection_record
    # The position of the addition does not depend on the record's length.
    record = injection_record.dump(original, edits, original.addition({record_path: Asset(b"")}))
    return apply_splices(
        original.text, [*edits, original.addition({**tree, record_path: Asset(record, 0o600)})]
    )


def read_plan(ignition: Ignition, name: str) -> Plan:
    """Returns a plan with platform, release, cloud, networks, node address and infraID of the document."""
    plan = Plan()
    config = _yaml_inside(ignition, CLUSTER_CONFIG, name)
    text = _text_at(config, "data", "install-config")
    if text:
        found = install_config.parse(text, f"{name}: {CLUSTER_CONFIG}: install-config")
        plan = replace(
            plan,
            platform=found.platform,
            networks=found.networks,
            cloud=found.cloud,
            restrict_destinations=found.machine_network_is_certain,
        )
    channel = _text_at(_yaml_inside(ignition, CLUSTER_VERSION, name), "spec", "channel")
    if release := _CHANNEL_RELEASE.search(channel):
        plan = replace(plan, cloud=replace(plan.cloud, release=release[1]))
    infrastructure = _yaml_inside(ignition, INFRASTRUCTURE, name)
    plan = replace(plan, node_ips=_node_ips(ignition))
    return replace(plan, infra_id=_text_at(infrastructure, "status", "infrastructureName"))


def _node_ips(ignition: Ignition) -> tuple[IPAddress, ...]:
    """Returns the address that the operator gave to the installer, if any."""
    found = _KUBELET_NODE_IP.search(ignition.content(KUBELET) or b"")
    try:
        address = ip_address(found[1].decode()) if found else None
    except ValueError:
        return ()
    return (address,) if address and not address.is_unspecified else ()


def _yaml_inside(ignition: Ignition, path: str, name: str) -> Any:
    content = ignition.content(path)
    try:
        return yaml.safe_load(content) if content else None
    except YAML_ERRORS as error:
        raise OperatorError("invalid YAML", subject=f"{name}: {path}") from error


def _text_at(document: Any, *keys: str) -> str:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, str) else ""
