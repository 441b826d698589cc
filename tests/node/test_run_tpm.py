"""An instance with a software TPM (swtpm): quotes as evidence, and the lock in PCR 15."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from bootbridge.node.configuration import read_configuration
from bootbridge.node.own_identity import evidence_identity
from bootbridge.node.supervisor import FINISHED
from bootbridge.runtime import tasks
from bootbridge.trust.measurement import lock_value
from tests.node.local_instance import LocalInstance
from tests.node.local_run import RecordingReport, init, kubeadm_runs, node_run
from tests.support.swtpm import NewChip, Swtpm

pytest_plugins = ["tests.support.swtpm"]
pytestmark = pytest.mark.slow


@pytest.fixture
def chip(new_chip: NewChip) -> Swtpm:
    return new_chip()


@pytest.fixture
def instance(instance: LocalInstance, chip: Swtpm) -> LocalInstance:
    instance.configure(evidence={"tpm": {"device": chip.address}}, register="tpm")
    identity = asyncio.run(evidence_identity(read_configuration(instance.configuration).issuer))
    instance.write_policy({"tpm": {"measurements": {}}}, identity=identity)
    return instance


async def test_a_quote_is_verified_and_the_lock_is_in_pcr_15(instance: LocalInstance, chip: Swtpm) -> None:
    report = RecordingReport()
    instance.let_kubeadm_go_on()
    async with node_run(instance) as node:
        assert await init(instance, report), report.failure
        assert await node.code() == FINISHED
    assert report.peer is not None
    assert report.success is not None
    assert report.peer.facts["pcr15"] == "00" * 32
    assert lock_value(report.success[0]).hex().upper() in chip.tool("tpm2_pcrread", "sha256:15")


async def test_a_tpm_that_is_not_enrolled_gets_no_secret(instance: LocalInstance) -> None:
    report = RecordingReport()
    instance.write_policy({"tpm": {"measurements": {}}}, identity="tpm:sha256:" + "00" * 32)
    async with node_run(instance):
        assert not await init(instance, report)
    assert report.failure is not None
    assert "not enrolled" in report.failure[0]
    assert not instance.init_runs


async def test_a_pcr_that_differs_from_the_policy_is_reported(instance: LocalInstance, chip: Swtpm) -> None:
    identity = await evidence_identity(read_configuration(instance.configuration).issuer)
    instance.write_policy({"tpm": {"measurements": {"4": "00" * 32}}}, identity=identity)
    chip.tool("tpm2_pcrextend", f"4:sha256={'11' * 32}")
    report = RecordingReport()
    async with node_run(instance):
        assert not await init(instance, report)
    assert report.failure is not None
    assert "PCR 4 is" in report.failure[0]


async def test_a_locked_instance_gets_no_request_for_another_cluster(
    instance: LocalInstance,
) -> None:
    """While one init runs, a request for another cluster is not sent."""
    rejected = RecordingReport()
    async with node_run(instance) as node:
        running = tasks.spawn(init(instance, RecordingReport()), "init")
        await kubeadm_runs(instance)
        other_files = {"secrets": instance.user / "other.json", "kubeconfig": instance.user / "other.conf"}
        assert not await init(instance, rejected, **other_files)
        instance.let_kubeadm_go_on()
        assert await running
        assert await node.code() == FINISHED
    assert rejected.failure is not None
    assert "locked for another cluster" in rejected.failure[0]


async def test_after_a_reboot_the_node_is_measured_again(instance: LocalInstance, chip: Swtpm) -> None:
    report = RecordingReport()
    instance.let_kubeadm_go_on()
    async with node_run(instance) as node:
        assert await init(instance, report)
        await node.code()
    assert report.success is not None
    chip.power_cycle()
    shutil.rmtree(instance.root / "run")
    assert "0x" + "00" * 32 in chip.tool("tpm2_pcrread", "sha256:15")
    async with node_run(instance) as node, asyncio.timeout(30):
        assert await node.running == FINISHED
    assert lock_value(report.success[0]).hex().upper() in chip.tool("tpm2_pcrread", "sha256:15")
    assert instance.kubeadm_arguments.count(" init --config") == 1
