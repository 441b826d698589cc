"""The server's calls to the kube-apiserver: token reviews for agents, and its own lease."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

from bootbridge.kube.client import KubeClient
from bootbridge.kube.kubeconfig import load_access
from bootbridge.kube.labels import selector_of
from bootbridge.kube.lease_garbage_collector import LeaseGarbageCollector
from bootbridge.kube.lease_publisher import LeasePublisher
from bootbridge.kube.token_review import TokenDenied, TokenReviewer
from bootbridge.proxy_server.agent_token import AgentToken
from bootbridge.proxy_server.options import ServerOptions, parse_labels
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.tasks import spawn
from bootbridge.tunnel.proxy_core import Authenticated, Authenticator
from bootbridge.tunnel.server_metrics import ServerMetrics

# The metric's label for each review result.
_RESULTS: Final = {"allowed": "authenticated", "denied": "denied", "error": "error", "invalid": "invalid"}


class KubernetesIntegration:
    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        access = load_access(options.kubeconfig)
        self._client = KubeClient(access, qps=options.kubeconfig_qps, burst=options.kubeconfig_burst)
        self._metrics: ServerMetrics | None = None
        self._pump: Pump | None = None
        self._publisher: LeasePublisher | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._reviewer = TokenReviewer(
            self._client,
            options.agent_namespace,
            options.agent_service_account,
            options.authentication_audience,
            time.time,
            self._on_review,
            issuers=options.agent_token_issuer,
        )

    def authenticator(self) -> Authenticator:
        def authenticate(authorization: list[str], source: str, done: Authenticated) -> Callable[[], None]:
            task = spawn(self._review(authorization, source, done), "review an agent's token")

            def cancel() -> None:
                task.cancel()

            return cancel

        return authenticate

    async def _review(self, authorization: list[str], source: str, done: Authenticated) -> None:
        try:
            expires = await self._reviewer.authenticate(authorization, source)
        except TokenDenied as denied:
            done(str(denied), None)
        except Exception:
            done("token review failed: internal error", None)  # the agent must get an answer
            raise
        else:
            done(None, AgentToken(expires, time.time))
        finally:
            if self._pump is not None:
                self._pump.end_turn()

    def _on_review(self, outcome: str, cached: bool, seconds: float) -> None:
        if self._metrics is not None:
            result = "cached" if cached else _RESULTS[outcome]
            self._metrics.token_reviews_total.labels(result).value += 1

    def start(self, pump: Pump, metrics: ServerMetrics) -> None:
        self._pump, self._metrics = pump, metrics
        options = self._options
        if not options.enable_lease_controller:
            return
        labels = parse_labels(options.lease_label)
        self._publisher = LeasePublisher(
            self._client,
            options.lease_namespace,
            options.server_id,
            labels,
            clock=time.time,
            rng=random.Random(),
        )
        collector = LeaseGarbageCollector(
            self._client,
            options.lease_namespace,
            selector_of(labels),
            clock=time.time,
            observe=self._on_call,
            on_deleted=metrics.culled_leases_count.inc,
        )
        self._tasks = [
            spawn(self._publisher.run(), "publish our lease"),
            spawn(collector.run(), "collect expired leases"),
        ]

    def _on_call(self, verb: str, status: int, reason: str, seconds: float) -> None:
        metrics = self._metrics
        if metrics is None:
            return
        code = str(status)
        if verb == "delete":
            metrics.lease_delete_latency_seconds.labels(code).observe(seconds)
            metrics.lease_delete_total.labels(code, reason).value += 1
        else:
            metrics.lease_list_latency_seconds.labels(code).observe(seconds)
            metrics.lease_list_total.labels(code, reason).value += 1

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._publisher is not None:
            await self._publisher.withdraw()
        await self._reviewer.aclose()
        await self._client.aclose()
