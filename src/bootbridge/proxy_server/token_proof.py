"""The proof of agents' identifiers by the pod of their token (--agent-identifier-proof=token).

The agent is authenticated already, by its certificate or by a token review. If the proof fails, it is
admitted with the default route only: an API server that does not answer must not stop the tunnel that it may
depend on. The pods of proved agents are asked for again all the time: the agent of a deleted pod, as on an
evicted node, is disconnected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from bootbridge.kube.agent_pod import AgentPodFinder, NotProved
from bootbridge.ports.event_log import EventLog
from bootbridge.proxy_server.agent_token import DEFAULT_ROUTE_ONLY, AgentToken, allowed_by_pod
from bootbridge.proxy_server.options import ServerOptions
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.tasks import spawn
from bootbridge.tunnel.agent_credentials import AgentCredentials
from bootbridge.tunnel.proxy_core import Authenticated, Authenticator

# Each agent's pod is asked for once in this time, with up to 200 agents; with more, RECHECKS_PER_SECOND_MAX
# leaves API requests to agents that connect.
RECHECK_SECONDS: Final = 8.0
RECHECKS_PER_SECOND_MAX: Final = 25


class TokenProof:
    def __init__(self, options: ServerOptions, event_log: EventLog, review: Authenticator | None) -> None:
        """``review`` authenticates agents first; None if their certificates do."""
        self._mask_sizes = {4: options.node_cidr_mask_size_ipv4, 6: options.node_cidr_mask_size_ipv6}
        self._event_log = event_log
        self._authenticate = review
        self._pump: Pump | None = None
        # The tokens of connected agents; an entry ends with its agent.
        self._proved: WeakKeyDictionary[AgentToken, Sequence[str]] = WeakKeyDictionary()
        self._rechecking: asyncio.Task[None] | None = None
        self._on_revoked: Callable[[], None] = lambda: None
        self._finder = AgentPodFinder(
            options.agent_proof_kubeconfig,
            options.agent_namespace,
            options.agent_service_account,
            time.time,
        )

    def start(self, pump: Pump, on_revoked: Callable[[], None]) -> None:
        """``on_revoked`` is called when the pod of a connected agent was deleted."""
        self._pump = pump
        self._on_revoked = on_revoked
        self._rechecking = spawn(self._recheck(), "check that agents' pods exist")

    async def close(self) -> None:
        if self._rechecking is not None:
            self._rechecking.cancel()
        await self._finder.aclose()

    def __call__(self, authorization: list[str], source: str, done: Authenticated) -> Callable[[], None]:
        cancels: list[Callable[[], object]] = []

        def authenticated(denied: str | None, token: AgentCredentials | None) -> None:
            if denied is not None:
                done(denied, token)
            else:
                task = spawn(self._prove(authorization, source, token, done), "prove an agent's identifiers")
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
        self,
        authorization: list[str],
        source: str,
        reviewed: AgentCredentials | None,
        done: Authenticated,
    ) -> None:
        """``reviewed``: what a token review has found; without a proof, the agent must not outlive it."""
        expires = reviewed.expires if isinstance(reviewed, AgentToken) else float("inf")
        proof = AgentToken(expires, time.time, DEFAULT_ROUTE_ONLY)
        try:
            pod = await self._finder.find(authorization, source)
            proof = AgentToken(pod.expires, time.time, allowed_by_pod(pod, self._mask_sizes), pod.node)
            self._proved[proof] = authorization
        except NotProved as error:
            self._event_log.warning("agent node not proved", reason=str(error))
        finally:
            done(None, proof)  # the agent must get an answer
            self._end_turn()

    async def _recheck(self) -> None:
        while True:
            known = list(self._proved.items())
            pause = max(1 / RECHECKS_PER_SECOND_MAX, RECHECK_SECONDS / max(1, len(known)))
            for token, authorization in known:
                await asyncio.sleep(pause)
                if not token.revoked and await self._finder.is_deleted(authorization):
                    token.revoked = True
                    self._on_revoked()
                    self._end_turn()
            if not known:
                await asyncio.sleep(1.0)

    def _end_turn(self) -> None:
        if self._pump is not None:
            self._pump.end_turn()
