"""Starts the permanent kube-apiserver, which takes over from the bootstrap one: inside the pod network."""

from __future__ import annotations

from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.lab import control_plane
from bootbridge.lab.components import Components
from bootbridge.lab.images import Images
from bootbridge.lab.lab import Lab

READY_SECONDS = 180.0


def start(lab: Lab, name: str, components: Components, images: Images, progress: Progress) -> None:
    """Starts it as a static pod that uses the bootstrap node's etcd; returns when it is ready."""
    if lab.layout.blank:
        hint = "use a lab that was started without --bootstrapper"
        raise OperatorError("lab has no bootstrap node to take over from", hint=hint)
    node = lab.layout.node(name)
    if not node.pod_subnets:
        known = ", ".join(each.name for each in lab.layout.cluster_nodes)
        raise OperatorError("not a cluster node", subject=name, hint=f"one of: {known}")
    progress.begin(f"API server on {name}")
    images.import_into(lab.namespaces(name), control_plane.IMAGE)
    lab.write(name, control_plane.permanent_apiserver_files(lab.layout, node))
    if still := progress.wait(lambda: _problem(lab, name, components), READY_SECONDS):
        progress.end(still, good=False)
        raise OperatorError(
            f"timed out after {READY_SECONDS:g}s: {still}", hint=f"run `bootbridge lab shell {name}`"
        )
    progress.end("")


def _problem(lab: Lab, name: str, components: Components) -> str:
    return "" if lab.apiserver_is_ready(components, name) else "permanent kube-apiserver not ready"
