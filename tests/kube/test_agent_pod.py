"""The proof of an agent's node by its token."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bootbridge.kube.agent_pod import BURST, QPS, STATUS_ATTEMPTS, AgentPod, AgentPodFinder, NotProved
from tests.kube.conftest import until
from tests.support.fake_api_server import FakeApiServer, Fault, drop, fine, refuse

NOW = 1_000_000.0
PODS = "/api/v1/namespaces/agents/pods"
POD = {
    "metadata": {"name": "agent-x", "namespace": "agents", "uid": "uid-1"},
    "spec": {"nodeName": "node1"},
    "status": {
        "hostIP": "10.0.0.5",
        "hostIPs": [{"ip": "10.0.0.5"}, {"ip": "fd00::5"}],
        "podIP": "10.128.2.7",
        "podIPs": [{"ip": "10.128.2.7"}, {"ip": "fd01::7"}],
    },
}


def jwt(**changes: Any) -> str:
    """Returns a token as the API server issues it, apart from its signature."""
    claims = {
        "sub": "system:serviceaccount:agents:default",
        "exp": NOW + 3600,
        "kubernetes.io": {"namespace": "agents", "pod": {"name": "agent-x", "uid": "uid-1"}},
    } | changes
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in ({}, claims)]
    return b".".join([*parts, b"c2ln"]).decode()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(tmp_path) as api:
        api.put(f"{PODS}/agent-x", POD)
        yield api


async def find(api: FakeApiServer, folder: Path, token: str, *, valid: bool = True) -> AgentPod:
    if valid:
        api.bearer_tokens.add(token)
    return await asking(api, folder)([f"Bearer {token}"])


def asking(
    api: FakeApiServer, folder: Path, on_sleep: Callable[[], None] = lambda: None
) -> Callable[[list[str]], Any]:
    path = folder / "access.json"
    path.write_text(json.dumps(api.kubeconfig()))

    async def sleep(seconds: float) -> None:
        on_sleep()
        await asyncio.sleep(0)

    async def ask(authorization: list[str]) -> AgentPod:
        finder = AgentPodFinder(str(path), "agents", "default", lambda: NOW, sleep)
        try:
            return await finder.find(authorization)
        finally:
            await finder.aclose()

    return ask


async def test_a_valid_token_proves_node_and_addresses(api: FakeApiServer, tmp_path: Path) -> None:
    """By one request with the agent's token, not with the kubeconfig's user."""
    token = jwt()
    pod = await find(api, tmp_path, token)
    assert pod == AgentPod("node1", ("10.0.0.5", "fd00::5"), ("10.128.2.7", "fd01::7"), NOW + 3600)
    (call,) = api.calls_to("GET", f"{PODS}/agent-x")
    assert call.headers["authorization"] == f"Bearer {token}"


async def test_a_pod_in_the_host_network_proves_no_pod_network(api: FakeApiServer, tmp_path: Path) -> None:
    """Its address with a prefix would include other nodes."""
    status = {"hostIP": "10.0.0.5", "podIP": "10.0.0.5"}
    api.put(f"{PODS}/agent-x", POD | {"spec": {"nodeName": "node1", "hostNetwork": True}, "status": status})
    assert (await find(api, tmp_path, jwt())).pod_ips == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sub": "system:serviceaccount:agents:other"}, "not one of the agents' service account"),
        ({"sub": "system:serviceaccount:other:default"}, "not one of the agents' service account"),
        ({"exp": NOW}, "has expired"),
        ({"exp": None}, "has expired"),
        ({"kubernetes.io": {"namespace": "agents"}}, "not bound to a pod"),
        ({"kubernetes.io": 7}, "not bound to a pod"),
        ({"kubernetes.io": {"pod": {"name": "../secrets/x", "uid": "uid-1"}}}, "not bound to a pod"),
        ({"kubernetes.io": {"pod": {"name": "agent-x", "uid": "uid-0"}}}, "no longer exists"),
        ({"kubernetes.io": {"pod": {"name": "agent-y", "uid": "uid-1"}}}, "refused the token: HTTP 404"),
    ],
)
async def test_other_tokens_prove_nothing(
    api: FakeApiServer, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NotProved, match=reason):
        await find(api, tmp_path, jwt(**changes))


async def test_a_forged_token_proves_nothing(api: FakeApiServer, tmp_path: Path) -> None:
    """The API server does not accept it, although the kubeconfig has a valid user."""
    forged = jwt()
    with pytest.raises(NotProved, match="HTTP 401") as caught:
        await find(api, tmp_path, forged, valid=False)
    assert forged not in str(caught.value)


@pytest.mark.parametrize(
    "authorization", [[], ["Basic x"], ["Bearer a", "Bearer b"], ["Bearer x y"], ["Bearer a.b.c"]]
)
async def test_what_is_not_a_token_is_not_sent(
    api: FakeApiServer, tmp_path: Path, authorization: list[str]
) -> None:
    with pytest.raises(NotProved):
        await asking(api, tmp_path)(authorization)
    assert api.calls_to("GET") == []


async def test_the_pods_addresses_may_be_reported_later(api: FakeApiServer, tmp_path: Path) -> None:
    """The kubelet reports them after it has started the agent; the wait is bounded."""
    token = jwt()
    api.bearer_tokens.add(token)
    api.put(f"{PODS}/agent-x", POD | {"status": {"hostIP": "10.0.0.5"}})
    waits: list[int] = []

    def report_at_third() -> None:
        waits.append(1)
        if len(waits) == 3:
            api.put(f"{PODS}/agent-x", POD)

    assert (await asking(api, tmp_path, report_at_third)([f"Bearer {token}"])).node == "node1"
    api.put(f"{PODS}/agent-x", POD | {"status": {"hostIP": "10.0.0.5"}})
    waits[:] = [1] * 3
    with pytest.raises(NotProved, match="has not reported"):
        await asking(api, tmp_path, report_at_third)([f"Bearer {token}"])
    assert len(waits) == 3 + STATUS_ATTEMPTS - 1


async def is_deleted(api: FakeApiServer, folder: Path, token: str) -> bool:
    path = folder / "access.json"
    path.write_text(json.dumps(api.kubeconfig()))
    finder = AgentPodFinder(str(path), "agents", "default", lambda: NOW)
    try:
        return await finder.is_deleted([f"Bearer {token}"])
    finally:
        await finder.aclose()


async def test_a_deleted_pod_is_noticed(api: FakeApiServer, tmp_path: Path) -> None:
    """Also if another pod has its name, or if the API server no longer accepts its token."""
    token = jwt()
    api.bearer_tokens.add(token)
    assert not await is_deleted(api, tmp_path, token)
    api.put(f"{PODS}/agent-x", POD | {"metadata": {**POD["metadata"], "uid": "uid-2"}})
    assert await is_deleted(api, tmp_path, token)
    api.remove(f"{PODS}/agent-x")
    assert await is_deleted(api, tmp_path, token)
    api.bearer_tokens.discard(token)
    assert await is_deleted(api, tmp_path, token)


@pytest.mark.parametrize(
    "faults",
    [
        [drop],
        [refuse(500, "InternalError")],
        [refuse(429, "TooManyRequests")],
        [refuse(403, "Forbidden")],  # an API server that has not loaded the Role yet
        [refuse(401, "Unauthorized"), refuse(500, "InternalError")],  # one without its etcd
        [refuse(401, "Unauthorized"), drop],
        [refuse(401, "Unauthorized"), fine, fine],  # one that has just started
        [refuse(404, "NotFound"), fine, drop],
    ],
)
async def test_an_api_server_in_trouble_deletes_no_pod(
    api: FakeApiServer, tmp_path: Path, faults: list[Fault]
) -> None:
    token = jwt()
    api.bearer_tokens.add(token)
    api.next_faults.extend(faults)
    assert not await is_deleted(api, tmp_path, token)


async def test_a_kubeconfig_may_appear_later(api: FakeApiServer, tmp_path: Path) -> None:
    token = jwt()
    api.bearer_tokens.add(token)
    path = tmp_path / "later.json"
    finder = AgentPodFinder(str(path), "agents", "default", lambda: NOW)
    with pytest.raises(NotProved, match=r"later\.json"):
        await finder.find([f"Bearer {token}"])
    path.write_text(json.dumps(api.kubeconfig()))
    assert (await finder.find([f"Bearer {token}"])).node == "node1"
    await finder.aclose()


async def test_an_agent_waits_for_one_request_of_each_other_source(
    api: FakeApiServer, tmp_path: Path
) -> None:
    """A source that connects in a loop waits for its own requests; the agent is proved meanwhile."""
    token = jwt()
    api.bearer_tokens.add(token)
    forged = [jwt(jti=number) for number in range(BURST + 300)]
    path = tmp_path / "access.json"
    path.write_text(json.dumps(api.kubeconfig()))
    now = [0.0]
    finder = AgentPodFinder(str(path), "agents", "default", lambda: NOW, monotonic=lambda: now[0])
    flood = [asyncio.create_task(finder.find([f"Bearer {each}"], "192.0.2.66")) for each in forged]
    await until(lambda: sum(each.done() for each in flood) >= BURST - 1)
    agent = asyncio.create_task(finder.find([f"Bearer {token}"], "192.0.2.1"))
    await asyncio.sleep(0)
    now[0] += 3 / QPS
    assert (await agent).node == "node1"
    assert sum(each.done() for each in flood) <= BURST + 2
    for each in flood:
        each.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    await finder.aclose()
