"""Puts the tunnel into a bootstrap.ign that an unmodified installer made, and takes it out again.

Both are functions from bytes to bytes: what comes out is complete, or an error says why not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import yaml

from bootbridge.bootstrap.ignition import bootkube, injection_record, preflight
from bootbridge.bootstrap.ignition.document import Ignition, spliced
from bootbridge.bootstrap.plan import install_config
from bootbridge.bootstrap.plan.paths import OPENSHIFT_PATHS
from bootbridge.bootstrap.plan.plan import Flavour, Plan
from bootbridge.bootstrap.render import node_files
from bootbridge.common.files import Asset, Tree
from bootbridge.common.yaml_text import YAML_ERRORS
from bootbridge.errors import OperatorError

CLUSTER_CONFIG = "/opt/openshift/manifests/cluster-config.yaml"
INFRASTRUCTURE = "/opt/openshift/manifests/cluster-infrastructure-02-config.yml"


@dataclass(frozen=True)
class InjectionResult:
    """The new document, and what happened."""

    document: bytes = field(repr=False)
    plan: Plan
    files: tuple[str, ...]
    replaced_earlier: bool


def inject(
    data: bytes, make_plan: Callable[[Plan], Plan], now: datetime, name: str, changed: Tree | None = None
) -> InjectionResult:
    """Put the tunnel in. `make_plan` makes the plan from what the document says of its cluster.

    `changed` are files that somebody has rendered and perhaps changed; they go in as they are.
    A document that carries a tunnel already is first taken back to its original, so that
    injecting twice gives what injecting once gives.
    """
    given = Ignition.parse(data, name)
    original = restore_original(given, name)
    preflight.refuse(original, now, name)
    plan = make_plan(read_plan(original, name))
    if plan.flavour is not Flavour.OPENSHIFT:
        hint = "only OpenShift's bootstrap node is set up by an ignition file; use render or up"
        raise OperatorError(f"{plan.flavour} has no bootkube.sh", subject="--flavour", hint=hint)
    tree = dict(node_files.node_files(plan))
    tree |= {path: asset for path, asset in (changed or {}).items() if path in tree}
    text = _edited(original, plan, tree)
    return InjectionResult(text.encode(), plan, (*tree, plan.paths.injection_record), given is not original)


def remove(data: bytes, name: str) -> bytes:
    """The document as it was before `inject`, byte for byte; one without a tunnel comes back as it is."""
    return restore_original(Ignition.parse(data, name), name).data


def restore_original(ignition: Ignition, name: str) -> Ignition:
    """The document without our tunnel; the same object if it carries none."""
    record = ignition.content(OPENSHIFT_PATHS.injection_record)
    if record is not None:
        return injection_record.restore(ignition, record, name)
    script = ignition.files.get(bootkube.PATH)
    if script and script.is_inline and bootkube.is_patched(script.content()):
        text = f"carries the tunnel, but its record {OPENSHIFT_PATHS.injection_record} is gone"
        raise OperatorError(text, subject=name, hint="create the ignition files anew")
    return ignition


def _edited(original: Ignition, plan: Plan, tree: Tree) -> str:
    script = original.files[bootkube.PATH].content()
    edits = [original.replacement(bootkube.PATH, bootkube.patch(script, plan))]
    record_path = plan.paths.injection_record
    # The record's own length does not matter for where it is put.
    record = injection_record.dump(original, edits, original.addition({record_path: Asset(b"")}))
    return spliced(original.text, [*edits, original.addition({**tree, record_path: Asset(record, 0o600)})])


def read_plan(ignition: Ignition, name: str) -> Plan:
    """What the document says of its own cluster: platform, networks, infraID; else the defaults."""
    plan = Plan()
    config = _yaml_inside(ignition, CLUSTER_CONFIG, name)
    text = _text_at(config, "data", "install-config")
    if text:
        found = install_config.parse(text, f"{name}: {CLUSTER_CONFIG}: install-config")
        plan = replace(plan, platform=found.platform, networks=found.networks)
    infrastructure = _yaml_inside(ignition, INFRASTRUCTURE, name)
    return replace(plan, infra_id=_text_at(infrastructure, "status", "infrastructureName"))


def _yaml_inside(ignition: Ignition, path: str, name: str) -> Any:
    content = ignition.content(path)
    try:
        return yaml.safe_load(content) if content else None
    except YAML_ERRORS as error:
        raise OperatorError("is no YAML", subject=f"{name}: {path}") from error


def _text_at(document: Any, *keys: str) -> str:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, str) else ""
