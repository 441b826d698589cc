"""The policy in force: the newest that works, whatever happens to its ConfigMap."""

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
from tests.join_service.memory_api import MemoryApi
from tests.kube.conftest import running, until
from tests.support import deterministic_loop

PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{POLICY_NAME}"
CAS = Authority.create("machines").cert_pem.decode()


KEY = "sha256:" + "a" * 64
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


def by_metadata(version: str, url: str = "https://metadata.example") -> str:
    """A policy that lists nobody itself: who is enrolled is what this service says."""
    return json.dumps(
        {
            "evidence": {"tpm": {}},
            "inventory": {"http": {"url": url}},
            "cluster": {"kubernetesVersion": version, "apiServerEndpoint": "10.0.0.1:6443"},
        }
    )


class Infrastructure:
    """Metadata services of which each one answers when a test lets them."""

    def __init__(self) -> None:
        self.answering = asyncio.Event()
        self.asked = 0

    async def peers(self) -> tuple[Instance, ...]:
        self.asked += 1
        await self.answering.wait()
        return (ENROLLED,)


@pytest.fixture
def infrastructure(monkeypatch: pytest.MonkeyPatch) -> Infrastructure:
    infrastructure = Infrastructure()
    monkeypatch.setattr(active_policy, "metadata_from", lambda document, subject: infrastructure)
    return infrastructure


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
        """Whether the machine that is listed could prove itself now."""
        (verifier,) = self.watch.current().verifiers
        assert isinstance(verifier, TpmVerifier)
        return verifier.is_enrolled(KEY)

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


async def test_an_enrolled_machine_is_known_at_every_moment_while_something_else_changes(
    infrastructure: Infrastructure,
) -> None:
    """The inventory goes on; it is not even asked again, which may take its time."""
    watched = Watched()
    watched.write(by_metadata("v1"))
    infrastructure.answering.set()
    async with watched.running():
        infrastructure.answering.clear()
        watched.write(by_metadata("v2"))
        while watched.version != "v2":
            assert watched.enrolled
            await asyncio.sleep(0)
        assert watched.enrolled
        assert infrastructure.asked == 1


async def test_another_inventory_is_listed_before_it_counts(infrastructure: Infrastructure) -> None:
    watched = Watched()
    watched.write(by_metadata("v1"))
    infrastructure.answering.set()
    async with watched.running():
        infrastructure.answering.clear()
        watched.write(by_metadata("v2", "https://elsewhere.example"))
        await until(lambda: infrastructure.asked == 2)
        assert (watched.version, watched.enrolled) == ("v1", True)
        infrastructure.answering.set()
        await until(lambda: watched.version == "v2")
        assert watched.enrolled


async def test_an_inventory_that_is_still_awaited_gives_way_to_a_newer_policy(
    infrastructure: Infrastructure,
) -> None:
    watched = Watched()
    watched.write(document("v1"))
    async with watched.running():
        watched.write(by_metadata("v2"))
        await until(lambda: infrastructure.asked)
        watched.write(document("v3"))
        await until(lambda: watched.version == "v3")
        infrastructure.answering.set()
        watched.write(document("v4"))
        await until(lambda: watched.version == "v4")


async def test_the_first_policy_is_there_once_its_inventory_is(infrastructure: Infrastructure) -> None:
    """The join service listens from then on, and refuses nobody for its own haste."""
    watched = Watched()
    watched.write(by_metadata("v1"))
    async with running(watched.watch.run()):
        await until(lambda: infrastructure.asked)
        first = asyncio.ensure_future(watched.watch.first())
        await asyncio.sleep(0)
        assert not first.done()
        infrastructure.answering.set()
        await first
        assert watched.enrolled


def test_a_policy_does_not_wait_for_ever_for_its_inventory(
    infrastructure: Infrastructure, caplog: pytest.LogCaptureFixture
) -> None:
    """It may say less than the one before: an infrastructure that is away must not keep that in force."""

    async def scenario() -> None:
        watched = Watched()
        watched.write(by_metadata("v1"))
        async with running(watched.watch.run()):
            await watched.watch.first()
            assert asyncio.get_running_loop().time() == pytest.approx(INVENTORY_SECONDS_MAX)
            assert not watched.enrolled

    deterministic_loop.run(scenario())
    assert "the inventory is not known yet" in caplog.text
