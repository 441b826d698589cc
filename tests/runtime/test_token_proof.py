"""The proof of agents' identifiers after a token review."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bootbridge.proxy_server.agent_token import DEFAULT_ROUTE_ONLY, EXPIRED_TEXT, AgentToken
from bootbridge.proxy_server.options import ServerOptions
from bootbridge.proxy_server.token_proof import TokenProof
from bootbridge.runtime.event_log import LoggingEventLog
from bootbridge.tunnel.agent_credentials import AgentCredentials
from bootbridge.tunnel.proxy_core import Authenticated


async def test_without_a_proof_the_reviewed_token_still_ends() -> None:
    """An API server that does not answer must not make a token valid for ever."""

    def review(authorization: list[str], source: str, done: Authenticated) -> Callable[[], None]:
        done(None, AgentToken(1.0, time.time))
        return lambda: None

    options = ServerOptions(agent_namespace="agents", agent_service_account="default")
    proof = TokenProof(options, LoggingEventLog("server"), review)
    found: asyncio.Future[AgentCredentials | None] = asyncio.get_running_loop().create_future()
    proof([], "192.0.2.1", lambda denied, credentials: found.set_result(credentials))
    credentials = await found
    await proof.close()
    assert credentials is not None
    assert credentials.allowed is DEFAULT_ROUTE_ONLY
    assert credentials.problem() == EXPIRED_TEXT
