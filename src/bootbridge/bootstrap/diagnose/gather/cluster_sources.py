"""Sources in the cluster: our objects, their events, the agents' logs, and webhook configurations."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from bootbridge.bootstrap.diagnose.gather.bundle import LogBundle
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ClusterClient
from bootbridge.kube.kinds import (
    API_SERVICE,
    DAEMON_SET,
    EVENT,
    MUTATING_WEBHOOKS,
    NAMESPACE,
    NODE,
    POD,
    SECRET,
    VALIDATING_WEBHOOKS,
    Kind,
)
from bootbridge.kube.objects import Ref

LOG_LINES = 5000
# On a large cluster the logs of some agents are enough.
PODS_WITH_LOGS_MAX = 50

Collector = Callable[[LogBundle], None]


def collectors(cluster: ClusterClient, plan: Plan) -> dict[str, Collector]:
    ours = {"DaemonSet": DAEMON_SET, "Pods": POD, "Events": EVENT, "Secrets": SECRET}
    whole = {
        "Nodes": (NODE,),
        "webhooks": (VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS),
        "APIServices": (API_SERVICE,),
    }
    return {
        "cluster: namespace": partial(_namespace, cluster, plan),
        **{
            f"cluster: {name}": partial(_list, cluster, (kind,), plan.namespace)
            for name, kind in ours.items()
        },
        **{f"cluster: {name}": partial(_list, cluster, kinds, "") for name, kinds in whole.items()},
        "cluster: agents' logs": partial(_agent_logs, cluster, plan),
        "cluster: server's log": partial(_server_logs, cluster, plan),
    }


def _namespace(cluster: ClusterClient, plan: Plan, bundle: LogBundle) -> None:
    found = cluster.get(Ref(NAMESPACE, plan.namespace))
    bundle.add("cluster/namespace.json", _json(dict(found) if found else None))


def _list(cluster: ClusterClient, kinds: tuple[Kind, ...], namespace: str, bundle: LogBundle) -> None:
    for kind in kinds:
        items = [{"kind": kind.name, **item} for item in cluster.list(kind, namespace)]
        bundle.add(f"cluster/{kind.plural}.json", _json(items))


def _agent_logs(cluster: ClusterClient, plan: Plan, bundle: LogBundle) -> None:
    pods = cluster.list(POD, plan.namespace, plan.selector)
    _logs(cluster, pods[:PODS_WITH_LOGS_MAX], plan.daemonset_name, bundle)


def _server_logs(cluster: ClusterClient, plan: Plan, bundle: LogBundle) -> None:
    selector = ",".join(f"{key}={value}" for key, value in plan.server_labels.items())
    pods = cluster.list(POD, plan.server_pod_namespace, selector)
    _logs(cluster, pods, plan.server_pod_name, bundle)


def _logs(cluster: ClusterClient, pods: list[dict[str, Any]], container: str, bundle: LogBundle) -> None:
    """Adds the log of each pod, and of its previous container; raises with the pods whose log failed."""
    missing = []
    for pod in pods:
        metadata = pod["metadata"]
        node = (pod.get("spec") or {}).get("nodeName") or "no-node"
        ref = Ref(POD, metadata["name"], metadata["namespace"])
        for previous in (False, True) if _restarts(pod) else (False,):
            name = f"cluster/logs/{node}/{metadata['name']}{'-previous' if previous else ''}.log"
            try:
                bundle.add(name, cluster.log(ref, container, lines=LOG_LINES, previous=previous))
            except OperatorError as error:
                missing.append(f"{metadata['name']}: {error}")
    if missing:
        raise OperatorError("; ".join(missing[:5]))


def _restarts(pod: dict[str, Any]) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return sum(int(each.get("restartCount") or 0) for each in statuses)


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
