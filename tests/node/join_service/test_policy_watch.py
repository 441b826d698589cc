"""The policy in force: the newest that works, whatever happens to its ConfigMap."""

from __future__ import annotations

import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.node.join_service.policy_watch import POLICY_NAME, PolicyWatch
from bootbridge.trust.authority import Authority
from tests.kube.conftest import running, until
from tests.node.join_service.memory_api import MemoryApi
from tests.node.join_service.world import NAMESPACE

PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{POLICY_NAME}"
CAS = Authority.create("machines").cert_pem.decode()


def config_map(text: str) -> dict[str, Any]:
    metadata = {"name": POLICY_NAME, "namespace": NAMESPACE}
    return {"metadata": metadata, "data": {"policy.json": text}}


def document(version: str, **evidence: Any) -> str:
    return json.dumps(
        {
            "evidence": evidence or {"x509": {"cas": CAS}},
            "instances": [{"name": "worker-0", "role": "worker", "addresses": ["10.0.0.5"]}],
            "cluster": {"kubernetesVersion": version, "apiServerEndpoint": "10.0.0.1:6443"},
        }
    )


class Watched:
    def __init__(self) -> None:
        self.api = MemoryApi()
        self.watch = PolicyWatch(
            self.api,  # type: ignore[arg-type]
            NAMESPACE,
            rng=random.Random(1),
            clock=time.monotonic,
        )

    def write(self, text: str) -> None:
        self.api.put(PATH, config_map(text))

    @property
    def version(self) -> str:
        return self.watch.current().policy.cluster.kubernetes_version

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with running(self.watch.run()):
            await self.watch.first()
            await until(lambda: self.api.watches)
            yield


@pytest.fixture
def watched() -> Watched:
    watched = Watched()
    watched.write(document("v1"))
    return watched


async def test_a_change_is_in_force_at_once(watched: Watched) -> None:
    async with watched.running():
        before = watched.watch.current()
        watched.write(document("v2"))
        await until(lambda: watched.version == "v2")
        assert before.policy.cluster.kubernetes_version == "v1", "who has it may finish with it"


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "}{",
        "{}",
        document("v2", carrier_pigeon={}),
        document("v2", x509={"cas": "not PEM"}),
        # Not only YAML's own errors come out of YAML.
        "evidence: {x509: {}}\nroles: 2026-13-45",
        "evidence: {x509: {}}\ninstances: [{1: x, name: worker-0, nmae: y}]",
        'evidence: {x509: {}}\ncluster: {kubernetesVersion: v1, apiServerEndpoint: "a:1"}\n'
        'inventory: {http: {url: "http://[::1"}}',
    ],
)
async def test_a_broken_policy_is_told_and_the_old_one_stays(
    watched: Watched, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched.running():
        watched.write(broken)
        await until(lambda: "the one before stays in force" in caplog.text)
        assert watched.version == "v1"
        watched.write(document("v3"))
        await until(lambda: watched.version == "v3")


async def test_a_deleted_policy_stays_in_force_and_can_be_made_anew(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched.running():
        watched.api.remove(PATH)
        await until(lambda: "the join policy is gone" in caplog.text)
        assert watched.version == "v1"
        watched.write(document("v2"))
        await until(lambda: watched.version == "v2")


async def test_a_kind_of_evidence_that_is_no_longer_accepted_is_not_offered_to_the_next_session(
    watched: Watched,
) -> None:
    async with watched.running():
        assert [each.kind for each in watched.watch.current().verifiers] == ["x509"]
        watched.write(document("v2", tpm={"trustedKeys": ["sha256:" + "a" * 64]}))
        await until(lambda: watched.version == "v2")
        assert [each.kind for each in watched.watch.current().verifiers] == ["tpm"]


async def test_when_the_watch_ends_it_is_taken_up_again(watched: Watched) -> None:
    async with watched.running():
        watched.write(document("v2"))
        await until(lambda: watched.version == "v2")
        watched.api.end_watches()
        watched.write(document("v3"))
        await until(lambda: watched.version == "v3")


@pytest.mark.parametrize("trouble", [KubeUnreachable("no route"), KubeError(403, "Forbidden", "not yet")])
async def test_before_there_is_an_api_server_or_a_policy_it_is_waited_for(trouble: Exception) -> None:
    """And nothing ends: a program that gave up would be restarted ever more slowly."""
    watched = Watched()
    troubles = [trouble]

    def fault(_: object) -> None:
        if troubles:
            raise troubles.pop()

    watched.api.faults.append(fault)
    async with running(watched.watch.run()):
        await until(lambda: watched.api.watches)
        watched.write(document("v1"))
        assert (await watched.watch.first()).policy.cluster.kubernetes_version == "v1"


async def test_the_policy_can_be_written_many_times_in_a_row(watched: Watched) -> None:
    async with watched.running():
        for number in range(50):
            watched.write(document(f"v{number}"))
        await until(lambda: watched.version == "v49")
