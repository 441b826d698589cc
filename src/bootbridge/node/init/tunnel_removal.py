"""Removes the tunnel that an init has installed, once the cluster no longer needs it.

The tunnel is unneeded when every node has been Ready for `tunnelQuietSeconds` and none was added or removed:
a kubelet is Ready only if its network plugin works, so every control plane reaches the pods directly.
The operator can remove the tunnel at any time with `bootbridge down`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Final

from bootbridge.bootstrap.install.down import Removal
from bootbridge.bootstrap.install.receipt import Receipt
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.common.progress import Progress
from bootbridge.errors import BootbridgeError
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kinds import NODE
from bootbridge.kube.kubeconfig import load_kubeconfig
from bootbridge.kube.objects import list_objects
from bootbridge.kube.requests import Json
from bootbridge.node import node_paths
from bootbridge.node.init.messages import OUTPUT, StageEvent
from bootbridge.node.init.tunnel import STAGE, installed_plan, open_cluster, stage_output
from bootbridge.node.stages import ProgressCallback, log_stage, stages
from bootbridge.runtime import logs

QUIET_SECONDS: Final = 120.0
POLL_SECONDS: Final = 5.0


async def remove_when_unneeded(host: Host, marker: Path, quiet_seconds: float) -> None:
    """Waits and removes the tunnel if `marker` exists; a tunnel that the operator installed has no marker.

    Keeps the marker on failure, so that the next start of the process tries again.
    """
    if _plan_of_init(host, marker) is None:
        return
    logs.event("node", logs.INFO, "tunnel is kept until all nodes are ready")
    try:
        await wait_until_unneeded(host, log_stage, quiet_seconds=quiet_seconds)
        # The operator or another process may have removed it in the meantime.
        if (plan := _plan_of_init(host, marker)) is None:
            return
        receipt = await remove(host, plan, log_stage)
    except BootbridgeError as error:
        fix = "run `bootbridge down` on this node"
        logs.event("node", logs.ERROR, "tunnel removal failed", error=str(error), fix=fix)
        return
    _delete(marker)
    logs.event("node", logs.INFO, "tunnel removed", receipt=plan.paths.receipt, clean=receipt.clean)


def _plan_of_init(host: Host, marker: Path) -> Plan | None:
    """Returns the plan of the tunnel that an init has installed; deletes the marker if it is gone."""
    plan = installed_plan(host) if marker.exists() else None
    if plan is None:
        _delete(marker)
    return plan


def _delete(marker: Path) -> None:
    marker.unlink(missing_ok=True)


async def wait_until_unneeded(
    host: Host,
    progress: ProgressCallback,
    *,
    quiet_seconds: float = QUIET_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Waits without limit; while the API server does not respond, the tunnel counts as needed."""
    client = KubeClient(load_kubeconfig(host.path(node_paths.ADMIN_KUBECONFIG)))
    try:
        await _wait_until_quiet(client, progress, quiet_seconds, clock)
    finally:
        await client.aclose()


async def _wait_until_quiet(
    client: KubeClient, progress: ProgressCallback, quiet_seconds: float, clock: Callable[[], float]
) -> None:
    """Counts from the first response in which all nodes were Ready, not from the request before it."""
    reported, since, before = "", clock(), frozenset[str]()
    while True:
        reason, nodes = await _poll_nodes(client)
        if reason:
            before = frozenset()
        elif nodes != before:
            since, before = clock(), nodes
        elif clock() - since >= quiet_seconds:
            return
        if reason and reason != reported:
            progress(StageEvent(STAGE, OUTPUT, f"still needed: {reason}"))
            reported = reason
        await asyncio.sleep(POLL_SECONDS)


async def _poll_nodes(client: KubeClient) -> tuple[str, frozenset[str]]:
    """Returns why the tunnel is still needed, or an empty reason and the UIDs of all nodes."""
    try:
        answer = await client.send(list_objects(NODE))
    except (KubeError, KubeUnreachable) as error:
        return str(error), frozenset()
    nodes = list(answer.body.get("items") or ())
    return reason_needed(nodes), frozenset(str(node["metadata"]["uid"]) for node in nodes)


def reason_needed(nodes: Sequence[Json]) -> str:
    """Returns why the API servers may still need the tunnel; empty if they do not."""
    if not nodes:
        return "no nodes yet"
    unready = sorted(str(node["metadata"]["name"]) for node in nodes if not _is_ready(node))
    return f"not Ready: {', '.join(unready)}" if unready else ""


def _is_ready(node: Json) -> bool:
    conditions: Sequence[Mapping[str, str]] = (node.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


async def remove(host: Host, plan: Plan, progress: ProgressCallback) -> Receipt:
    """Removes every resource, as `bootbridge down` does; the receipt lists what is left."""
    with stages(STAGE, progress):
        return await asyncio.to_thread(_remove, host, plan, stage_output(progress))


def _remove(host: Host, plan: Plan, output: StringIO) -> Receipt:
    with host.locked(plan.paths.state), open_cluster(host, node_paths.ADMIN_KUBECONFIG) as cluster:
        receipt = Removal(InstallContext(plan, host, cluster), Progress(output)).run()
    host.make_directory(plan.paths.receipt.rpartition("/")[0])
    host.write(plan.paths.receipt, Asset(receipt.dump()))
    return receipt
