"""Proves in which pod, and so on which node, an agent runs.

The agent sends its own projected service account token. A request for the pod that the token is bound to,
with that same token, shows that the token is valid: the API server answers it only then. So the server needs
no credentials, and no admission webhook, which may be reachable only through an agent, is involved. The
token's account needs one permission: to get pods in its namespace.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kinds import POD
from bootbridge.kube.kubeconfig import load_kubeconfig
from bootbridge.kube.objects import Ref
from bootbridge.kube.rate_limit import RateLimit
from bootbridge.kube.request_turns import RequestTurns
from bootbridge.kube.requests import ApiRequest, Json
from bootbridge.kube.service_account_token import read_claims

# A fleet of 600 agents that connects again waits 10 s at most.
QPS, BURST = 50.0, 100
TURN_SECONDS_MAX: Final = 10.0
# The source of requests that this server makes itself.
OWN_SOURCE: Final = ""
REQUEST_SECONDS_MAX: Final = 5.0
# The kubelet reports the pod's address shortly after it has started the agent.
STATUS_ATTEMPTS: Final = 10
STATUS_SECONDS: Final = 0.5
TOKEN_CHARACTERS_MAX: Final = 16_384

_BEARER: Final = "Bearer "
_READY: Final = ApiRequest("GET", "/readyz")


class NotProved(BootbridgeError):
    """The agent's token does not prove in which pod it runs; the message never contains the token.

    ``may_change``: whether the same token may prove it later.
    """

    def __init__(self, reason: str, *, may_change: bool = False) -> None:
        super().__init__(reason)
        self.may_change = may_change


@dataclass(frozen=True)
class AgentPod:
    """The pod of an agent. ``expires``: the end of the token that proved it, in seconds since the epoch."""

    node: str
    host_ips: tuple[str, ...]
    pod_ips: tuple[str, ...]  # empty in the host network
    expires: float


class AgentPodFinder:
    """Finds agents' pods. The kubeconfig is read again when it changes; it may appear later."""

    def __init__(
        self,
        kubeconfig: str,
        namespace: str,
        service_account: str,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        limit = RateLimit(QPS, BURST)
        # An agent that connects again and again must not use up the requests that other agents need.
        self._turns = RequestTurns(lambda: limit.take(monotonic()), QPS, TURN_SECONDS_MAX)
        self._kubeconfig = Path(kubeconfig)
        self._namespace = namespace
        self._subject = f"system:serviceaccount:{namespace}:{service_account}"
        self._clock = clock
        self._sleep = sleep
        self._client: KubeClient | None = None
        self._stamp: tuple[int, ...] = ()

    async def find(
        self, authorization: Sequence[str], source: str = OWN_SOURCE, attempts: int = STATUS_ATTEMPTS
    ) -> AgentPod:
        """Returns the pod to which the one bearer token is bound. Raises NotProved.

        ``source`` is what shares of the requests are counted by. ``attempts``: how many requests, while the
        pod's status lacks its addresses.
        """
        token = _token(authorization)
        claims = _claims(token)
        bound = claims.get("kubernetes.io")
        pod = bound.get("pod") if isinstance(bound, dict) else None
        if claims.get("sub") != self._subject:
            raise NotProved("the token is not one of the agents' service account")
        if not isinstance(pod, dict) or not _is_name(pod.get("name")) or not pod.get("uid"):
            raise NotProved("the token is not bound to a pod")
        expires = claims.get("exp")
        if not isinstance(expires, int | float) or expires <= self._clock():
            raise NotProved("the token has expired")
        for attempt in range(attempts):
            found = await self._get(str(pod["name"]), token, source)
            if found.get("metadata", {}).get("uid") != pod["uid"]:
                raise NotProved("the token is bound to a pod that no longer exists")
            if (proved := _agent_pod(found, float(expires))) is not None:
                return proved
            if attempt + 1 < attempts:
                await self._sleep(STATUS_SECONDS)
        raise NotProved("the kubelet has not reported the addresses of the agent's pod", may_change=True)

    async def is_deleted(self, authorization: Sequence[str]) -> bool:
        """Whether the API server says that the pod of a token that was valid before no longer exists.

        False if that is not sure. An API server without its etcd refuses every bound token, so it must also
        be ready; one that has just started may not have loaded the Role, so a 403 says nothing.
        """
        token = _token(authorization)
        pod = _claims(token)["kubernetes.io"]["pod"]
        request = ApiRequest("GET", Ref(POD, pod["name"], self._namespace).path, token=token)
        if not await self._refuses(request, pod["uid"]):
            return False
        try:
            await self._send(_READY, OWN_SOURCE)
        except KubeError as error:
            if error.status not in (401, 403):  # without anonymous access
                return False
        except (KubeUnreachable, OperatorError):
            return False
        return await self._refuses(request, pod["uid"])

    async def _refuses(self, request: ApiRequest, uid: str) -> bool:
        try:
            found = await self._send(request, OWN_SOURCE)
        except KubeError as error:
            return error.status in (401, 404)
        except (KubeUnreachable, OperatorError):
            return False
        return bool(found.get("metadata", {}).get("uid") != uid)

    async def _get(self, name: str, token: str, source: str) -> Json:
        request = ApiRequest("GET", Ref(POD, name, self._namespace).path, token=token)
        try:
            return await self._send(request, source)
        except KubeError as error:
            # Only the status: the message is the API server's, and might quote the token.
            # One without its etcd answers 401, one that has not loaded the Role 403.
            raise NotProved(
                f"the API server refused the token: HTTP {error.status}", may_change=not error.is_not_found
            ) from None
        except (KubeUnreachable, OperatorError) as error:
            raise NotProved(str(error).replace(token, "<token>"), may_change=True) from None

    async def _send(self, request: ApiRequest, source: str) -> Json:
        await self._turns.next(source)
        return (await self._connect().send(request, timeout=REQUEST_SECONDS_MAX, permitted=True)).body

    def _connect(self) -> KubeClient:
        stamp = self._file_stamp()
        if self._client is None or stamp != self._stamp:
            # Without the kubeconfig's user: its credentials would be accepted in place of the token.
            access = load_kubeconfig(self._kubeconfig, without_user=True)
            self._client, self._stamp = KubeClient(access), stamp
        return self._client

    def _file_stamp(self) -> tuple[int, ...]:
        try:
            status = self._kubeconfig.stat()
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_ino, status.st_size

    async def aclose(self) -> None:
        self._turns.close()
        if self._client is not None:
            await self._client.aclose()


def _token(authorization: Sequence[str]) -> str:
    if len(authorization) != 1 or not authorization[0].startswith(_BEARER):
        raise NotProved("the agent sent no token")
    return authorization[0][len(_BEARER) :]


def _claims(token: str) -> dict[str, Any]:
    """Returns the claims of a JWT, which nothing has verified yet."""
    claims = read_claims(token) if len(token) <= TOKEN_CHARACTERS_MAX else None
    if claims is None:
        raise NotProved("the token is not a service account token")
    return claims


def _is_name(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", name) is not None


def _agent_pod(pod: Json, expires: float) -> AgentPod | None:
    """Returns the facts of a pod; None while its status lacks the addresses."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    host_ips = _ips(status, "hostIP", "hostIPs")
    pod_ips = _ips(status, "podIP", "podIPs")
    if not spec.get("nodeName") or not host_ips or not pod_ips:
        return None
    own = () if spec.get("hostNetwork") else tuple(ip for ip in pod_ips if ip not in host_ips)
    return AgentPod(str(spec["nodeName"]), host_ips, own, expires)


def _ips(status: Json, one: str, many: str) -> tuple[str, ...]:
    found = [str(each.get("ip")) for each in status.get(many) or () if isinstance(each, dict)]
    return tuple(dict.fromkeys([*([str(status[one])] if status.get(one) else []), *found]))
