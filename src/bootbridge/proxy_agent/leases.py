"""Counting the servers by their leases."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AsyncExitStack

from bootbridge.kube.client import KubeClient
from bootbridge.kube.kubeconfig import load_access
from bootbridge.kube.labels import Selector
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
    """Counts until the returned stack is closed; an unreachable API server delays nothing."""

    def observe(verb: str, status: int, reason: str, seconds: float) -> None:
        if verb == "watch":
            metrics.lease_watches_total.labels(str(status), reason).value += 1
        else:
            metrics.lease_lists_total.labels(str(status), reason).value += 1
            metrics.lease_list_latency_seconds.labels(str(status)).observe(seconds)

    client = KubeClient(load_access(options.kubeconfig))
    selector = Selector.parse(options.lease_label_selector)
    counter = LeaseCounter(
        client,
        options.lease_namespace,
        selector,
        clock=clock,
        rng=rng,
        on_count=on_count,
        observe=observe,
    )
    stack = AsyncExitStack()
    stack.push_async_callback(client.aclose)
    stack.callback(spawn(counter.run(), "count server leases").cancel)
    return stack
