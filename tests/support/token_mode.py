"""Servers and agents in token mode: service account tokens, reviewed by a fake API server."""

from __future__ import annotations

import base64
import json
import time

from tests.support.fake_api_server import ApiThread
from tests.support.tunnel_programs import Programs, Server

AUDIENCE = "system:konnectivity-server"
ISSUER = "https://kubernetes.default.svc.cluster.local"
# What the API server answers for a token of the agents' service account.
AGENT = {"authenticated": True, "user": {"username": "system:serviceaccount:kube-system:konnectivity-agent"}}


def agent_token(name: str, **claims: object) -> str:
    """Returns a token in the form of a service account's; `claims` override or, if None, remove ours."""
    payload = {
        "aud": [AUDIENCE],
        "exp": int(time.time()) + 3600,
        "iat": int(time.time()),
        "iss": ISSUER,
        "jti": name,
        "sub": "system:serviceaccount:kube-system:konnectivity-agent",
    } | claims
    header = {"alg": "RS256", "kid": "key-1"}
    kept = {key: value for key, value in payload.items() if value is not None}
    return ".".join(
        [*(_base64url(json.dumps(part).encode()) for part in (header, kept)), _base64url(b"s" * 256)]
    )


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token_server(programs: Programs, kube: ApiThread, **more: object) -> Server:
    """Starts a server that authenticates agents by token only."""
    return programs.server(flags=token_server_flags(kube) | more)


def token_server_flags(kube: ApiThread) -> dict[str, object]:
    return {
        "cluster-ca-cert": None,
        "agent-namespace": "kube-system",
        "agent-service-account": "konnectivity-agent",
        "authentication-audience": AUDIENCE,
        "kubeconfig": kube.kubeconfig,
    }


def token_agent_flags(programs: Programs, token: str) -> dict[str, object]:
    """Returns the flags of an agent with this token and without a certificate."""
    path = programs.folder / f"token-{time.monotonic_ns()}"
    path.write_text(token)
    return {"agent-cert": None, "agent-key": None, "service-account-token-path": path}
