"""The active policy is the newest valid one."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

import pytest

from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_service import active_policy
from bootbridge.join_service.policy_watch import INVENTORY_SECONDS_MAX, POLICY_NAME, PolicyWatch
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.trust.authority import Authority
from bootbridge.trust.evidence.tpm import TpmVerifier
from tests.join_service.environment import NAMESPACE
from tests.kube.conftest import running, until
from tests.support import deterministic_loop
from tests.support.fake_api_objects import MemoryApi

PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{POLICY_NAME}"
CAS = Authority.create("machines").cert_pem.decode()


KEY = "tpm:sha256:" + "a" * 64
ENROLLED = Instance("worker-0", Role.WORKER, (ip_address("10.0.0.5"),), identity=KEY)


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


def metadata_document(version: str, url: str = "https://metadata.example") -> str:
    """A policy whose inventory is a metadata service."""
    return json.dumps(
        {
            "evidence": {"tpm": {}},
            "inventory": {"http": {"url": url}},
            "cluster": {"kubernetesVersion": version, "apiServerEndpoint": "10.0.0.1:6443"},
        }
    )


class FakeMetadata:
    """Answers while `answering` is set."""

    def __init__(self) -> None:
        self.answering = asyncio.Event()
        self.requests = 0

    async def peers(self) -> tuple[Instance, ...]:
        self.requests += 1
        await self.answering.wait()
        return (ENROLLED,)


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> FakeMetadata:
    metadata = FakeMetadata()
    monkeypatch.setattr(active_policy, "metadata_from", lambda document, subject: metadata)
    return metadata


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
    def enrolled(self) -> bool:
        """Whether evidence of the enrolled machine would be accepted."""
        (verifier,) = self.watch.current().verifiers
        assert isinstance(verifier, TpmVerifier)
        return verifier.is_enrolled(KEY)

    @property
    def version(self) -> str:
        return self.watch.current().policy.cluster.kubernetes_version

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with running(self.watch.run()):
            await self.watch.wait_for_policy()
            await until(lambda: self.api.watches)
            yield


@pytest.fixture
def watched() -> Watched:
    watched = Watched()
    watched.write(document("v1"))
    return watched


async def test_a_change_becomes_active(watched: Watched) -> None:
    async with watched.running():
        before = watched.watch.current()
        watched.write(document("v2"))
        await until(lambda: watched.version == "v2")
        assert before.policy.cluster.kubernetes_version == "v1", "the old object is unchanged"


@pytest.mark.parametrize(
    "invalid",
    [
        "",
        "}{",
        "{}",
        document("v2", carrier_pigeon={}),
        document("v2", x509={"cas": "not PEM"}),
        # PyYAML also raises other errors than its own.
        "evidence: {x509: {}}\nroles: 2026-13-45",
        "evidence: {x509: {}}\ninstances: [{1: x, name: worker-0, nmae: y}]",
        'evidence: {x509: {}}\ncluster: {kubernetesVersion: v1, apiServerEndpoint: "a:1"}\n'
        'inventory: {http: {url: "http://[::1"}}',
    ],
)
async def test_an_invalid_policy_is_logged_and_the_previous_one_stays_active(
    watched: Watched, invalid: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched.running():
        watched.write(invalid)
        await until(lambda: "invalid join policy" in caplog.text)
        assert watched.version == "v1"
        watched.write(document("v3"))
        await until(lambda: watched.version == "v3")


async def test_a_deleted_policy_stays_active_until_a_new_one_is_created(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched.running():
        watched.api.remove(PATH)
        await until(lambda: "join policy not found" in caplog.text)
        assert watched.version == "v1"
        watched.write(document("v2"))
        await until(lambda: watched.version == "v2")


async def test_a_removed_kind_of_evidence_is_not_accepted_in_the_next_session(
    watched: Watched,
) -> None:
    async with watched.running():
        assert [each.kind for each in watched.watch.current().verifiers] == ["x509"]
        watched.write(document("v2", tpm={"trustedKeys": ["sha256:" + "a" * 64]}))
        await until(lambda: watched.version == "v2")
        assert [each.kind for each in watched.watch.current().verifiers] == ["tpm"]


async def test_an_ended_watch_is_resumed(watched: Watched) -> None:
    async with watched.running():
        watched.write(document("v2"))
        await until(lambda: watched.version == "v2")
        watched.api.end_watches()
        watched.write(document("v3"))
        await until(lambda: watched.version == "v3")


@pytest.mark.parametrize("error", [KubeUnreachable("no route"), KubeError(403, "Forbidden", "not yet")])
async def test_errors_of_the_api_server_and_a_missing_policy_are_waited_for(error: Exception) -> None:
    watched = Watched()
    errors = [error]

    def fault(_: object) -> None:
        if errors:
            raise errors.pop()

    watched.api.faults.append(fault)
    async with running(watched.watch.run()):
        await until(lambda: watched.api.watches)
        watched.write(document("v1"))
        assert (await watched.watch.wait_for_policy()).policy.cluster.kubernetes_version == "v1"


async def test_the_last_of_many_quick_changes_becomes_active(watched: Watched) -> None:
    async with watched.running():
        for number in range(50):
            watched.write(document(f"v{number}"))
        await until(lambda: watched.version == "v49")


async def test_an_unchanged_inventory_is_kept_with_its_snapshot(
    metadata: FakeMetadata,
) -> None:
    """Enrolled machines are accepted throughout, without another request."""
    watched = Watched()
    watched.write(metadata_document("v1"))
    metadata.answering.set()
    async with watched.running():
        metadata.answering.clear()
        watched.write(metadata_document("v2"))
        while watched.version != "v2":
            assert watched.enrolled
            await asyncio.sleep(0)
        assert watched.enrolled
        assert metadata.requests == 1


async def test_a_new_inventory_is_read_before_its_policy_becomes_active(metadata: FakeMetadata) -> None:
    watched = Watched()
    watched.write(metadata_document("v1"))
    metadata.answering.set()
    async with watched.running():
        metadata.answering.clear()
        watched.write(metadata_document("v2", "https://elsewhere.example"))
        await until(lambda: metadata.requests == 2)
        assert (watched.version, watched.enrolled) == ("v1", True)
        metadata.answering.set()
        await until(lambda: watched.version == "v2")
        assert watched.enrolled


async def test_a_policy_that_waits_for_its_inventory_is_superseded_by_a_newer_one(
    metadata: FakeMetadata,
) -> None:
    watched = Watched()
    watched.write(document("v1"))
    async with watched.running():
        watched.write(metadata_document("v2"))
        await until(lambda: metadata.requests)
        watched.write(document("v3"))
        await until(lambda: watched.version == "v3")
        metadata.answering.set()
        watched.write(document("v4"))
        await until(lambda: watched.version == "v4")


async def test_the_first_policy_waits_for_its_inventory(metadata: FakeMetadata) -> None:
    """The join service listens from then on, so that enrolled machines are not refused."""
    watched = Watched()
    watched.write(metadata_document("v1"))
    async with running(watched.watch.run()):
        await until(lambda: metadata.requests)
        first = asyncio.ensure_future(watched.watch.wait_for_policy())
        await asyncio.sleep(0)
        assert not first.done()
        metadata.answering.set()
        await first
        assert watched.enrolled


def test_a_policy_becomes_active_without_its_inventory_after_a_timeout(
    metadata: FakeMetadata, caplog: pytest.LogCaptureFixture
) -> None:
    """It may exclude a machine: an unavailable metadata service must not keep the old policy active."""

    async def scenario() -> None:
        watched = Watched()
        watched.write(metadata_document("v1"))
        async with running(watched.watch.run()):
            await watched.watch.wait_for_policy()
            assert asyncio.get_running_loop().time() == pytest.approx(INVENTORY_SECONDS_MAX)
            assert not watched.enrolled

    deterministic_loop.run(scenario())
    assert "inventory unavailable" in caplog.text
