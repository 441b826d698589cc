"""The agent's calls to the kube-apiserver: it counts the servers by their leases."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AsyncExitStack

from bootbridge.kube.client import KubeClient
from bootbridge.kube.kubeconfig import load_access
from bootbridge.kube.lease_counter import LeaseCounter
from bootbridge.proxy_agent.options import AgentOptions
from bootbridge.runtime.tasks import spawn
from bootbridge.tunnel.agent_metrics import AgentMetrics


def count_leases(
    options: AgentOptions,
    metrics: AgentMetrics,
    on_count: Callable[[int], None],
    clock: Callable[[], float],
    rng: random.Random,
) -> AsyncExitStack:
    """Starts counting and returns at once; closing the returned stack stops it."""

    def observe(verb: str, status: int, reason: str, seconds: float) -> None:
        if verb == "watch":
            metrics.lease_watches_total.labels(str(status), reason).value += 1
        else:
            metrics.lease_lists_total.labels(str(status), reason).value += 1
            metrics.lease_list_latency_seconds.labels(str(status)).observe(seconds)

    client = KubeClient(load_access(options.kubeconfig))
    counter = LeaseCounter(
        client,
        options.lease_namespace,
        options.lease_label_selector,
        clock=clock,
        rng=rng,
        on_count=on_count,
        observe=observe,
    )
    stack = AsyncExitStack()
    stack.push_async_callback(client.aclose)
    stack.callback(spawn(counter.run(), "count server leases").cancel)
    return stack
