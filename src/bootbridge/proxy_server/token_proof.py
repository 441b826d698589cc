"""The proof of agents' identifiers by the pod of their token (--agent-identifier-proof=token).

The agent is authenticated already, by its certificate or by a token review. If the proof fails, it is
admitted with the default route only: an API server that does not answer must not stop the tunnel that it may
depend on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bootbridge.kube.agent_pod import AgentPodFinder, NotProved
from bootbridge.ports.event_log import EventLog
from bootbridge.proxy_server.agent_token import DEFAULT_ROUTE_ONLY, AgentToken, allowed_by_pod
from bootbridge.proxy_server.options import ServerOptions
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.tasks import spawn
from bootbridge.tunnel.agent_credentials import AgentCredentials
from bootbridge.tunnel.proxy_core import Authenticated, Authenticator


class TokenProof:
    def __init__(self, options: ServerOptions, event_log: EventLog, review: Authenticator | None) -> None:
        """``review`` authenticates agents first; None if their certificates do."""
        self._mask_sizes = {4: options.node_cidr_mask_size_ipv4, 6: options.node_cidr_mask_size_ipv6}
        self._event_log = event_log
        self._authenticate = review
        self._pump: Pump | None = None
        self._finder = AgentPodFinder(
            options.agent_proof_kubeconfig,
            options.agent_namespace,
            options.agent_service_account,
            time.time,
        )

    def start(self, pump: Pump) -> None:
        self._pump = pump

    async def close(self) -> None:
        await self._finder.aclose()

    def __call__(self, authorization: list[str], source: str, done: Authenticated) -> Callable[[], None]:
        cancels: list[Callable[[], object]] = []

        def authenticated(denied: str | None, token: AgentCredentials | None) -> None:
            if denied is not None:
                done(denied, token)
            else:
                task = spawn(self._prove(authorization, token, done), "prove an agent's identifiers")
                cancels.append(task.cancel)

        if self._authenticate is None:
            authenticated(None, None)
        else:
            cancels.append(self._authenticate(authorization, source, authenticated))

        def cancel() -> None:
            for each in cancels:
                each()

        return cancel

    async def _prove(
        self, authorization: list[str], reviewed: AgentCredentials | None, done: Authenticated
    ) -> None:
        """``reviewed``: what a token review has found; without a proof, the agent must not outlive it."""
        expires = reviewed.expires if isinstance(reviewed, AgentToken) else float("inf")
        proof = AgentToken(expires, time.time, DEFAULT_ROUTE_ONLY)
        try:
            pod = await self._finder.find(authorization)
            proof = AgentToken(pod.expires, time.time, allowed_by_pod(pod, self._mask_sizes), pod.node)
        except NotProved as error:
            self._event_log.warning("agent node not proved", reason=str(error))
        finally:
            done(None, proof)  # the agent must get an answer
            if self._pump is not None:
                self._pump.end_turn()
