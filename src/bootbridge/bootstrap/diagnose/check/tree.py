"""Checks of rendered files: in an ignition file, or in a directory that `bootbridge render` wrote."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path
from typing import Any

from bootbridge.bootstrap.diagnose.check import permanent_servers
from bootbridge.bootstrap.diagnose.check.permanent_servers import PermanentTree
from bootbridge.bootstrap.diagnose.check.rendered_files import (
    RENDER_AGAIN,
    RenderedFiles,
    as_rendered,
    complete,
    egress,
    identity_faults,
    modes,
    no_private_key,
    server_pod_faults,
)
from bootbridge.bootstrap.diagnose.check.result import (
    CheckResult,
    at,
    failed,
    judged,
    not_run,
    passed,
    run,
    warned,
)
from bootbridge.bootstrap.machine.node_values import PLACEHOLDERS
from bootbridge.bootstrap.plan import payload_programs, record
from bootbridge.bootstrap.plan.plan import BOOTSTRAP_ONLY, PAYLOAD_IMAGE_NAME, Flavour, IPNetwork, Plan
from bootbridge.bootstrap.render import egress_selector, node_files, output_directory
from bootbridge.common.files import Tree
from bootbridge.errors import OperatorError

HOOKS = ("bootbridge_setup", "bootbridge_manifests", "bootbridge_cleanup")
# Reserved by OVN-Kubernetes in its default configuration.
OVN_RESERVED = tuple(
    map(
        ip_network,
        ("100.64.0.0/16", "100.88.0.0/16", "169.254.0.0/17", "fd98::/64", "fd97::/64", "fd69::/112"),
    )
)
PLACEHOLDER = re.compile(rb"@BOOTBRIDGE_[A-Z0-9_]+@")
_BASH_SECONDS = 10


@dataclass(frozen=True)
class PlannedTree(RenderedFiles):
    """The files of a bootstrap node, and the plan that they were made from."""

    plan: Plan

    @property
    def wanted(self) -> Tree:
        return node_files.node_files(self.plan)

    def template(self, name: str) -> dict[Any, Any]:
        return self.yaml(f"{self.plan.paths.templates}/{name}")


def of_directory(directory: Path) -> list[CheckResult]:
    """Checks a directory that `bootbridge render` wrote, with later changes."""
    tree = {f"/{path}": asset for path, asset in output_directory.read(directory).items()}
    if permanent := record.find_permanent(tree, str(directory)):
        return permanent_servers.of_tree(PermanentTree(permanent, tree))
    return of_tree(PlannedTree(record.find(tree, str(directory)), tree))


def of_tree(subject: PlannedTree) -> list[CheckResult]:
    return run(CHECKS, subject)


# --- the files as such


def _plan(subject: PlannedTree) -> CheckResult:
    plan = subject.plan
    return passed(
        f"{plan.flavour} on {plan.platform}, {plan.protocol}, infraID {plan.infra_id or 'not given'}"
    )


def _placeholders(subject: PlannedTree) -> CheckResult:
    """All placeholders of a fresh rendering exist, and no unknown ones."""
    used, wanted = _used(subject.tree, subject.plan), _used(subject.wanted, subject.plan)
    known = set(vars(PLACEHOLDERS).values())
    faults = [f"unknown placeholder {name}" for name in sorted(used - known)]
    faults += [f"placeholder {name} is missing" for name in sorted(wanted - used)]
    return judged(faults, f"{len(used)} placeholders, all replaced on the node", RENDER_AGAIN)


def _used(tree: Tree, plan: Plan) -> set[str]:
    templates = [asset.data for path, asset in tree.items() if path.startswith(plan.paths.templates)]
    return {match.decode() for data in templates for match in PLACEHOLDER.findall(data)}


# --- the kube-apiserver's side


def _override(subject: PlannedTree) -> CheckResult:
    plan = subject.plan
    if plan.flavour is not Flavour.OPENSHIFT:
        return not_run("kubeadm uses no override; see kubeadm-cluster-configuration.yaml")
    document = subject.yaml(plan.paths.config_override)
    faults = []
    if document.get("kind") != "KubeAPIServerConfig":
        faults.append(f"kind is {document.get('kind')}, not KubeAPIServerConfig")
    if "egressSelectorConfiguration" in document:
        faults.append("unknown field egressSelectorConfiguration: it would be dropped silently")
    given = at(document, "apiServerArguments", egress_selector.FLAG)
    if given != [plan.paths.egress_config_seen_by_apiserver]:
        faults.append(f"apiServerArguments.{egress_selector.FLAG} is {given}")
    if b"{{" in subject.data(plan.paths.config_override):
        faults.append("it contains {{, which the operator would execute as a template")
    return judged(
        faults, f"--{egress_selector.FLAG}={plan.paths.egress_config_seen_by_apiserver}", RENDER_AGAIN
    )


# --- the manifests


def _server_pod(subject: PlannedTree) -> CheckResult:
    plan, pod = subject.plan, subject.template("server-pod.yaml")
    faults = [
        *_identity(pod, "Pod", plan.server_pod_name, plan.server_pod_namespace),
        *server_pod_faults(pod, plan),
    ]
    return judged(
        faults, f"agents on {plan.ports.agent}, kube-apiserver on {plan.paths.socket}", RENDER_AGAIN
    )


def _agent_daemonset(subject: PlannedTree) -> CheckResult:
    plan, daemonset = subject.plan, subject.template("agent-daemonset.yaml")
    pod = at(daemonset, "spec", "template")
    container = at(pod, "spec", "containers", 0)
    arguments = [*(at(container, "command") or ()), *(at(container, "args") or ())]
    labels = at(pod, "metadata", "labels") or {}
    tolerations = at(pod, "spec", "tolerations") or []
    faults = [
        *_identity(daemonset, "DaemonSet", plan.daemonset_name, plan.namespace),
        *([] if {"operator": "Exists"} in tolerations else ["it does not tolerate all taints"]),
        *(
            []
            if labels.get(BOOTSTRAP_ONLY) == "true"
            else [f"its pods do not have the label {BOOTSTRAP_ONLY}"]
        ),
        *([] if f"--proxy-server-port={plan.ports.agent}" in arguments else ["it dials a wrong port"]),
        *(
            []
            if bool(at(pod, "spec", "hostNetwork")) == plan.host_network
            else ["hostNetwork differs from the plan"]
        ),
    ]
    return judged(faults, f"an agent on every node, in {plan.namespace}", RENDER_AGAIN)


def _agent_secret(subject: PlannedTree) -> CheckResult:
    plan = subject.plan
    faults = _identity(subject.template("agent-secret.yaml"), "Secret", plan.secret_name, plan.namespace)
    return judged(faults, f"{plan.namespace}/{plan.secret_name}", RENDER_AGAIN)


def _agent_role(subject: PlannedTree) -> CheckResult:
    """The agents' tokens prove their node only if they may read their pod."""
    plan = subject.plan
    if not plan.proves_nodes:
        return passed("none: the Go agents prove no node")
    binding = subject.template("agent-role-binding.yaml")
    account = {
        "kind": "ServiceAccount",
        "name": plan.service_account_name,
        "namespace": plan.namespace,
    }
    faults = [
        *_identity(subject.template("agent-role.yaml"), "Role", plan.role_name, plan.namespace),
        *_identity(binding, "RoleBinding", plan.role_name, plan.namespace),
        *([] if account in (at(binding, "subjects") or ()) else ["it is not bound to the agents' account"]),
    ]
    return judged(faults, f"{plan.namespace}/{plan.role_name}", RENDER_AGAIN)


def _namespace(subject: PlannedTree) -> CheckResult:
    faults = _identity(subject.template("namespace.yaml"), "Namespace", subject.plan.namespace, None)
    return judged(faults, subject.plan.namespace, RENDER_AGAIN)


def _identity(document: dict[Any, Any], kind: str, name: str, namespace: str | None) -> Iterator[str]:
    """Clean-up finds objects by kind, name and label; others would remain."""
    yield from identity_faults(document, kind, name, namespace)
    found = at(document, "metadata", "labels", BOOTSTRAP_ONLY)
    if found != "true":
        yield f"label {BOOTSTRAP_ONLY} is {found}, not true"


# --- the script


def _hook_script(subject: PlannedTree) -> CheckResult:
    plan = subject.plan
    if plan.flavour is not Flavour.OPENSHIFT:
        return not_run("used by bootkube.sh only")
    script = subject.data(plan.paths.hook_script)
    missing = [name for name in HOOKS if f"{name}()".encode() not in script]
    if missing:
        return failed(f"it does not define {', '.join(missing)}", RENDER_AGAIN)
    bash = shutil.which("bash")
    if bash is None:
        return not_run("bash not found")
    read = subprocess.run([bash, "-n"], input=script, capture_output=True, timeout=_BASH_SECONDS, check=False)
    complaint = read.stderr.decode(errors="replace").strip().splitlines()
    return judged(complaint[:1], f"defines {', '.join(HOOKS)}; its syntax is valid", RENDER_AGAIN)


def _image(subject: PlannedTree) -> CheckResult:
    image = subject.plan.image
    if not image.from_payload:
        return passed(f"{image.reference} ({image.kind})")
    script = subject.data(subject.plan.paths.hook_script)
    if PAYLOAD_IMAGE_NAME.encode() not in script:
        return failed(f"the script does not look up {PAYLOAD_IMAGE_NAME} in the release", RENDER_AGAIN)
    try:
        payload_programs.raise_if_missing(subject.plan)
    except OperatorError as error:
        return failed(str(error.args[0]), error.hint)
    return passed(f"{PAYLOAD_IMAGE_NAME} of the release: {_supported_releases(subject.plan)}")


def _supported_releases(plan: Plan) -> str:
    family = payload_programs.family_of(plan)
    found = (
        (programs.releases, payload_programs.support(programs, ours=False, family=family))
        for programs in payload_programs.programs_of(plan.cloud.minor_release)
    )
    return "; ".join(f"{releases}: {support}" for releases, support in found)


# --- the networks


def _networks(subject: PlannedTree) -> CheckResult:
    given = _all_networks(subject.plan)
    faults = [f"{a} and {b} overlap" for (a, one), (b, two) in combinations(given, 2) if _overlap(one, two)]
    return judged(faults, ", ".join(name for name, _ in given), "correct the networks in the install-config")


def _reserved(subject: PlannedTree) -> CheckResult:
    given = _all_networks(subject.plan)
    faults = [f"{name} overlaps {own}" for name, one in given for own in OVN_RESERVED if _overlap(one, own)]
    if faults:
        return warned("; ".join(faults), "choose other networks, or reconfigure OVN-Kubernetes")
    return passed("no overlap with networks reserved by OVN-Kubernetes")


def _all_networks(plan: Plan) -> list[tuple[str, IPNetwork]]:
    networks = plan.networks
    return [
        *((f"machine {network}", network) for network in networks.machine),
        *((f"cluster {network.cidr}", network.cidr) for network in networks.cluster),
        *((f"service {network}", network) for network in networks.service),
    ]


def _overlap(one: IPNetwork, two: IPNetwork) -> bool:
    return one.version == two.version and one.overlaps(two)


CHECKS: dict[str, Callable[[PlannedTree], CheckResult]] = {
    "plan-record": _plan,
    "files-complete": complete,
    "as-rendered": as_rendered,
    "modes": modes,
    "no-private-key": no_private_key,
    "egress-config": egress,
    "config-override": _override,
    "server-pod": _server_pod,
    "agent-daemonset": _agent_daemonset,
    "agent-secret": _agent_secret,
    "agent-role": _agent_role,
    "namespace": _namespace,
    "placeholders": _placeholders,
    "image": _image,
    "hook-script": _hook_script,
    "networks-disjoint": _networks,
    "networks-not-reserved": _reserved,
}
