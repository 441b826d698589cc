"""The proof of agents' identifiers by the pod of their token (--agent-identifier-proof=token).

The agent is authenticated already, by its certificate or by a token review. If the proof fails, it is
admitted with the default route only: an API server that does not answer must not stop the tunnel that it may
depend on. A proof that may succeed later is tried again; then the agent has to connect again. The pods of
proved agents are asked for again all the time: the agent of a deleted pod, as on an evicted node, is
disconnected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from random import Random
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
# A failed proof is tried again once in RECHECK_SECONDS, with up to 80 agents. One agent of each source in
# turn: one that connects with many forged tokens must not delay the others.
RETRIES_PER_SECOND_MAX: Final = 10


class TokenProof:
    def __init__(self, options: ServerOptions, event_log: EventLog, review: Authenticator | None) -> None:
        """``review`` authenticates agents first; None if their certificates do."""
        self._mask_sizes = {4: options.node_cidr_mask_size_ipv4, 6: options.node_cidr_mask_size_ipv6}
        self._event_log = event_log
        self._authenticate = review
        self._pump: Pump | None = None
        # The tokens of connected agents; an entry ends with its agent.
        self._proved: WeakKeyDictionary[AgentToken, Sequence[str]] = WeakKeyDictionary()
        # The connected agents whose proof failed and may succeed later: their authorization and source.
        self._unproved: WeakKeyDictionary[AgentToken, tuple[Sequence[str], str]] = WeakKeyDictionary()
        self._random = Random()
        self._tasks: list[asyncio.Task[None]] = []
        self._on_changed: Callable[[], None] = lambda: None
        self._finder = AgentPodFinder(
            options.agent_proof_kubeconfig,
            options.agent_namespace,
            options.agent_service_account,
            time.time,
        )

    def start(self, pump: Pump, on_changed: Callable[[], None]) -> None:
        """``on_changed`` is called when the credentials of a connected agent have ended: its pod was deleted,
        or a failed proof would succeed now."""
        self._pump = pump
        self._on_changed = on_changed
        self._tasks = [
            spawn(self._recheck(), "check that agents' pods exist"),
            spawn(self._retry(), "prove agents whose proof failed"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
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
            if error.may_change:
                self._unproved[proof] = authorization, source
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
                    self._on_changed()
                    self._end_turn()
            if not known:
                await asyncio.sleep(1.0)

    async def _retry(self) -> None:
        while True:
            by_source: dict[str, list[tuple[AgentToken, Sequence[str]]]] = {}
            for token, (authorization, source) in list(self._unproved.items()):
                by_source.setdefault(source, []).append((token, authorization))
            pause = max(1 / RETRIES_PER_SECOND_MAX, RECHECK_SECONDS / max(1, len(self._unproved)))
            for candidates in by_source.values():
                await asyncio.sleep(pause)
                await self._prove_again(*self._random.choice(candidates))
            if not by_source:
                await asyncio.sleep(1.0)

    async def _prove_again(self, token: AgentToken, authorization: Sequence[str]) -> None:
        try:
            await self._finder.find(authorization, attempts=1)
        except NotProved as error:
            if not error.may_change:
                self._unproved.pop(token, None)
            return
        self._unproved.pop(token, None)
        token.provable = True
        self._on_changed()
        self._end_turn()

    def _end_turn(self) -> None:
        if self._pump is not None:
            self._pump.end_turn()
