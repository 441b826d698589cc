"""The production API server: on a cluster node, on the pods' side, without an egress selector."""

from __future__ import annotations

from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.lab import control_plane
from bootbridge.lab.components import Components
from bootbridge.lab.images import Images
from bootbridge.lab.lab import Lab

READY_SECONDS = 180.0


def start(lab: Lab, name: str, components: Components, images: Images, progress: Progress) -> None:
    """As a static pod beside the bootstrap node's etcd; returns when it is ready."""
    if lab.layout.blank:
        hint = "`bootbridge lab up` without --bootstrapper has a bootstrap node to take over from"
        raise OperatorError("the control planes of this lab are the instances' own", hint=hint)
    node = lab.layout.node(name)
    if not node.pod_subnets:
        known = ", ".join(each.name for each in lab.layout.cluster_nodes)
        raise OperatorError(f"{name} is no cluster node", hint=f"one of: {known}")
    progress.begin(f"production on {name}")
    images.import_into(lab.namespaces(name), control_plane.IMAGE)
    lab.write(name, control_plane.permanent_apiserver_files(lab.layout, node))
    if still := progress.wait(lambda: _silent(lab, name, components), READY_SECONDS):
        progress.end(still, good=False)
        raise OperatorError(f"not within {READY_SECONDS:.0f} s: {still}", hint=f"bootbridge lab shell {name}")
    progress.end("")


def _silent(lab: Lab, name: str, components: Components) -> str:
    return "" if lab.apiserver_is_ready(components, name) else "the production kube-apiserver is not ready"
