"""The tunnel around a cluster's first hour, laid by an init and taken down when the cluster can do without.

Before `kubeadm init` the parts on the machine are laid, and the kube-apiserver's setting is handed to kubeadm
as a patch of this machine's static pod. It does not go into the ClusterConfiguration: kubeadm would give it
to every further control plane, whose machine has neither the socket nor the file, and whose kube-apiserver
would not start. Afterwards the parts in the cluster follow.

The cluster can do without when every node that there is has been Ready for a while and none has come or gone:
a kubelet is Ready only when its network plugin works, so pods are reached from every control plane directly.
Until then, and whenever the operator wants it, `bootbridge down` does the same.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from ipaddress import ip_network
from typing import Any, Final

from bootbridge.bootstrap.install import up
from bootbridge.bootstrap.install.down import Removal
from bootbridge.bootstrap.install.receipt import Receipt
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.plan import record
from bootbridge.bootstrap.plan.paths import KUBEADM_PATHS
from bootbridge.bootstrap.plan.plan import ClusterNetwork, Flavour, Networking, Plan, ProxyImage
from bootbridge.bootstrap.render import apiserver_manifest
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.common.progress import Progress
from bootbridge.join_api import node_paths
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.instance import Instance
from bootbridge.join_api.node_addresses import node_addresses
from bootbridge.kube.blocking_client import ClusterClient
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kinds import NODE
from bootbridge.kube.kubeconfig import load_kubeconfig
from bootbridge.kube.objects import list_objects
from bootbridge.kube.requests import Json
from bootbridge.node.init.messages import OUTPUT, StageEvent
from bootbridge.node.ports import ProgressCallback
from bootbridge.node.stages import stages

STAGE: Final = "tunnel"
PATCH: Final = f"{node_paths.PATCHES}/kube-apiserver0+json.json"
INSTALL_SECONDS: Final = 60.0
# All nodes Ready and none new for so long: the first hour is over.
QUIET_SECONDS: Final = 120.0
POLL_SECONDS: Final = 5.0
# What kubeadm takes where the specification names no subnets; pods then have none that it knows of.
_SERVICES: Final = ("10.96.0.0/12",)
_PODS: Final = ("10.244.0.0/16",)
_HOST_PREFIX: Final = {4: 24, 6: 64}  # the kube-controller-manager's defaults


def plan_for(spec: ClusterSpec, instance: Instance) -> Plan:
    addresses = node_addresses(instance.addresses, spec.families)
    networks = Networking(
        machine=tuple(ip_network(address) for address in addresses),
        cluster=tuple(_pods(text) for text in spec.pod_subnets or _PODS),
        service=tuple(ip_network(text) for text in spec.service_subnets or _SERVICES),
    )
    image = ProxyImage("bootbridge", spec.tunnel_image)
    return Plan(
        flavour=Flavour.KUBEADM,
        image=image,
        networks=networks,
        node_ips=addresses,
        key_kind="ecdsa-p256",
    )


def _pods(text: str) -> ClusterNetwork:
    network = ip_network(text)
    return ClusterNetwork(network, max(network.prefixlen, _HOST_PREFIX[network.version]))


def apiserver_patch(plan: Plan) -> Asset:
    """The setting as a JSON patch (RFC 6902), which is the one kind that can add to a list."""
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


# --- laying


async def install_on_node(host: Host, plan: Plan, progress: ProgressCallback) -> None:
    """Before `kubeadm init`, and after its preflight, which wants no static pods yet."""
    with stages(STAGE, progress):
        await asyncio.to_thread(_install, host, plan, None, _teller(progress))
        host.make_directory(node_paths.PATCHES, 0o700)
        host.write(PATCH, apiserver_patch(plan))


async def install_in_cluster(host: Host, plan: Plan, progress: ProgressCallback) -> None:
    """After `kubeadm init`. Agents are not waited for: they come with the nodes."""
    with stages(STAGE, progress):
        await asyncio.to_thread(_install, host, plan, node_paths.ADMIN_KUBECONFIG, _teller(progress))


def _install(host: Host, plan: Plan, kubeconfig: str | None, tell: Callable[[str], None]) -> None:
    with host.locked(plan.paths.state), _cluster(host, kubeconfig) as cluster:
        context = InstallContext(plan, host, cluster, plan.node_ips)
        up.install(context, Progress(_Lines(tell)), wait_seconds=INSTALL_SECONDS, wait=False)


@contextmanager
def _cluster(host: Host, kubeconfig: str | None) -> Iterator[ClusterClient | None]:
    if kubeconfig is None:
        yield None
        return
    cluster = ClusterClient.from_kubeconfig(host.path(kubeconfig))
    try:
        yield cluster
    finally:
        cluster.close()


# --- taking down


def installed_plan(host: Host) -> Plan | None:
    """The plan of the bridge that stands on this machine, if one does."""
    path = KUBEADM_PATHS.plan_record
    data = host.read(path)
    return None if data is None else record.load(data, path)


def remove_state(host: Host) -> None:
    """On a machine that was made blank: its pods went with the others, its keys and its record go, too."""
    host.remove_tree(KUBEADM_PATHS.state)


async def wait_until_unneeded(
    host: Host,
    progress: ProgressCallback,
    *,
    quiet_seconds: float = QUIET_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Waits for as long as it takes; an API server that does not answer has not become independent."""
    client = KubeClient(load_kubeconfig(host.path(node_paths.ADMIN_KUBECONFIG)))
    try:
        await _until_quiet(client, progress, quiet_seconds, clock)
    finally:
        await client.aclose()


async def _until_quiet(
    client: KubeClient, progress: ProgressCallback, quiet_seconds: float, clock: Callable[[], float]
) -> None:
    """Counted from the first look at which all was well: of the time before its answer nothing is known."""
    told, since, before = "", clock(), frozenset[str]()
    while True:
        reason, nodes = await _look(client)
        if reason:
            before = frozenset()
        elif nodes != before:
            since, before = clock(), nodes
        elif clock() - since >= quiet_seconds:
            return
        if reason and reason != told:
            progress(StageEvent(STAGE, OUTPUT, f"stays: {reason}"))
            told = reason
        await asyncio.sleep(POLL_SECONDS)


async def _look(client: KubeClient) -> tuple[str, frozenset[str]]:
    try:
        answer = await client.send(list_objects(NODE))
    except (KubeError, KubeUnreachable) as error:
        return str(error), frozenset()
    nodes = list(answer.body.get("items") or ())
    return reason_needed(nodes), frozenset(str(node["metadata"]["uid"]) for node in nodes)


def reason_needed(nodes: Sequence[Json]) -> str:
    """Why the API servers may still depend on the bridge; empty when they do not."""
    if not nodes:
        return "there are no nodes yet"
    unready = sorted(str(node["metadata"]["name"]) for node in nodes if not _is_ready(node))
    return f"not Ready: {', '.join(unready)}" if unready else ""


def _is_ready(node: Json) -> bool:
    conditions: Sequence[Mapping[str, str]] = (node.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


async def remove(host: Host, plan: Plan, progress: ProgressCallback) -> Receipt:
    """Removes every part and proves it; what remains stands in the receipt, as with `bootbridge down`."""
    with stages(STAGE, progress):
        return await asyncio.to_thread(_remove, host, plan, _teller(progress))


def _remove(host: Host, plan: Plan, tell: Callable[[str], None]) -> Receipt:
    with host.locked(plan.paths.state), _cluster(host, node_paths.ADMIN_KUBECONFIG) as cluster:
        receipt = Removal(InstallContext(plan, host, cluster), Progress(_Lines(tell))).run()
    host.make_directory(plan.paths.receipt.rpartition("/")[0])
    host.write(plan.paths.receipt, Asset(receipt.dump()))
    return receipt


# --- telling


def _teller(progress: ProgressCallback) -> Callable[[str], None]:
    """The bridge's own work runs on a thread; what it says is said on the loop."""
    loop = asyncio.get_running_loop()

    def tell(text: str) -> None:
        loop.call_soon_threadsafe(progress, StageEvent(STAGE, OUTPUT, text))

    return tell


class _Lines(StringIO):
    """What `Progress` writes to: whole lines, told one by one and kept nowhere."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def write(self, text: str) -> int:
        if text.strip():
            self._tell(text.strip())
        return len(text)
