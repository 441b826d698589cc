"""Installs the tunnel during an init.

Before `kubeadm init` the files and static pods on the node are installed. The kube-apiserver's egress setting
is passed to kubeadm as a patch of the static pod of this node only. It must not be in the
ClusterConfiguration: kubeadm would apply it to every further control plane, which has neither the socket nor
the file, and whose kube-apiserver would not start. The resources in the cluster follow after `kubeadm init`.

`tunnel_removal` removes the tunnel again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from ipaddress import ip_network
from typing import Any, Final

from bootbridge.bootstrap.install import up
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.plan import record
from bootbridge.bootstrap.plan.paths import KUBEADM_PATHS
from bootbridge.bootstrap.plan.plan import ClusterNetwork, Flavour, Networking, Plan, ProxyImage
from bootbridge.bootstrap.render import apiserver_manifest
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.common.progress import Progress
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.instance import Instance
from bootbridge.join_api.node_addresses import node_addresses
from bootbridge.kube.blocking_client import ClusterClient
from bootbridge.node import node_paths
from bootbridge.node.init.messages import OUTPUT, StageEvent
from bootbridge.node.stages import ProgressCallback, stages

STAGE: Final = "tunnel"
PATCH: Final = f"{node_paths.PATCHES}/kube-apiserver0+json.json"
INSTALL_SECONDS: Final = 60.0
# kubeadm's default where the specification has no service subnets. kubeadm has no default for pods.
_SERVICES: Final = ("10.96.0.0/12",)
_PODS: Final = ("10.244.0.0/16",)
_HOST_PREFIX: Final = {4: 24, 6: 64}  # the kube-controller-manager's defaults


def plan_for(spec: ClusterSpec, instance: Instance) -> Plan:
    addresses = node_addresses(instance.addresses, spec.families)
    networks = Networking(
        machine=tuple(ip_network(address) for address in addresses),
        cluster=tuple(_pod_network(text) for text in spec.pod_subnets or _PODS),
        service=tuple(ip_network(text) for text in spec.service_subnets or _SERVICES),
    )
    image = ProxyImage("bootbridge", spec.tunnel_image)
    return Plan(
        flavour=Flavour.KUBEADM,
        image=image,
        networks=networks,
        node_ips=addresses,
        key_kind="ecdsa-p256",
        # The addresses of nodes that will join are unknown here.
        restrict_destinations=False,
    )


def _pod_network(text: str) -> ClusterNetwork:
    network = ip_network(text)
    return ClusterNetwork(network, max(network.prefixlen, _HOST_PREFIX[network.version]))


def apiserver_patch(plan: Plan) -> Asset:
    """Returns the egress setting as a JSON patch (RFC 6902); other patch types cannot append to a list."""
    setting = apiserver_manifest.egress_setting(plan)
    container = "/spec/containers/0"
    additions: list[tuple[str, Any]] = [(f"{container}/command/-", flag) for flag in setting.arguments]
    for mount in setting.mounts:
        seen = {"name": mount.name, "mountPath": mount.seen_as, "readOnly": mount.read_only}
        additions.append((f"{container}/volumeMounts/-", seen))
        volume = {"name": mount.name, "hostPath": {"path": mount.path, "type": mount.kind}}
        additions.append(("/spec/volumes/-", volume))
    patch = [{"op": "add", "path": path, "value": value} for path, value in additions]
    return Asset(json.dumps(patch, indent=1).encode(), 0o600)


async def install_on_node(host: Host, plan: Plan, progress: ProgressCallback) -> None:
    """Runs before `kubeadm init`, but after its preflight, which rejects existing static pods."""
    with stages(STAGE, progress):
        await asyncio.to_thread(_install, host, plan, None, stage_output(progress))
        host.make_directory(node_paths.PATCHES, 0o700)
        host.write(PATCH, apiserver_patch(plan))


async def install_in_cluster(host: Host, plan: Plan, progress: ProgressCallback) -> None:
    """Runs after `kubeadm init`; does not wait for agents, which start when nodes join."""
    with stages(STAGE, progress):
        await asyncio.to_thread(_install, host, plan, node_paths.ADMIN_KUBECONFIG, stage_output(progress))


def _install(host: Host, plan: Plan, kubeconfig: str | None, output: StringIO) -> None:
    with host.locked(plan.paths.state), open_cluster(host, kubeconfig) as cluster:
        context = InstallContext(plan, host, cluster, plan.node_ips)
        up.install(context, Progress(output), wait_seconds=INSTALL_SECONDS, wait=False)


def installed_plan(host: Host) -> Plan | None:
    """Returns the plan of the tunnel that is installed on this node; None if there is none."""
    path = KUBEADM_PATHS.plan_record
    data = host.read(path)
    return None if data is None else record.load(data, path)


def remove_state(host: Host) -> None:
    """Removes keys and plan record from a node that was reset; kubeadm has removed its static pods."""
    host.remove_tree(KUBEADM_PATHS.state)


@contextmanager
def open_cluster(host: Host, kubeconfig: str | None) -> Iterator[ClusterClient | None]:
    if kubeconfig is None:
        yield None
        return
    cluster = ClusterClient.from_kubeconfig(host.path(kubeconfig))
    try:
        yield cluster
    finally:
        cluster.close()


def stage_output(progress: ProgressCallback) -> StringIO:
    """Returns a stream for `Progress` that may be written on a thread; lines become output of the stage."""
    return _StageOutput(progress, asyncio.get_running_loop())


class _StageOutput(StringIO):
    def __init__(self, progress: ProgressCallback, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._progress = progress
        self._loop = loop

    def write(self, text: str) -> int:
        if line := text.strip():
            self._loop.call_soon_threadsafe(self._progress, StageEvent(STAGE, OUTPUT, line))
        return len(text)
