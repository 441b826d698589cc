"""From a blank instance to an admin kubeconfig: `node run` and `node init` with real TLS and evidence."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from cryptography import x509

from bootbridge.errors import OperatorError
from bootbridge.node import run
from bootbridge.node.configuration import read_configuration
from bootbridge.node.status import read_status
from bootbridge.node.supervisor import FATAL, FINISHED, INTERRUPTED
from bootbridge.runtime import tasks
from bootbridge.trust.authority import Authority
from tests.node.local_instance import TOKEN, LocalInstance, by_authority
from tests.node.local_run import (
    DEADLINE_SECONDS,
    RecordingReport,
    init,
    kubeadm_runs,
    mode,
    node_run,
    options,
    relay_to,
)

DONE = [
    "components",
    "preflight",
    "certs",
    "kubelet-certificate",
    "init",
    "etcd",
    "wait-control-plane",
    "api-server",
    "join-service",
]


async def test_an_init_creates_a_cluster_and_both_processes_exit(instance: LocalInstance) -> None:
    report = RecordingReport()
    instance.let_kubeadm_go_on()
    async with node_run(instance) as node:
        assert await init(instance, report), report.failure
        assert await node.code() == FINISHED
    assert report.peer is not None
    assert report.peer.kind == "x509"
    assert [name for name, state in report.stages if state == "done"] == DONE
    kubeconfig = yaml.safe_load(instance.kubeconfig.read_bytes())
    assert kubeconfig["clusters"][0]["cluster"]["server"] == f"http://127.0.0.1:{instance.api.port}"
    assert kubeconfig["users"][0]["user"]["token"] == TOKEN
    assert mode(instance.kubeconfig) == 0o600
    assert report.success is not None
    assert json.loads((instance.root / "state.json").read_text())["clusterID"] == report.success[0].hex()
    assert "DaemonSet/bootbridge-join-service" in instance.api.applied
    assert instance.api.removed == ["kubeadm:node-autoapprove-bootstrap"]
    assert not options(instance).record.exists()


async def test_policy_and_join_service_are_deployed_into_the_new_cluster(instance: LocalInstance) -> None:
    """The policy gets the facts of the cluster; the service uses this instance's evidence."""
    instance.let_kubeadm_go_on()
    async with node_run(instance) as node:
        assert await init(instance, RecordingReport())
        await node.code()
    policy = json.loads(instance.api.applied["ConfigMap/bootbridge-join-policy"]["data"]["policy.json"])
    assert policy["cluster"]["kubernetesVersion"] == "v1.36.3"
    assert policy["cluster"]["apiServerEndpoint"] == f"127.0.0.1:{instance.api.port}"
    assert [each["name"] for each in policy["instances"]] == ["cp-0"]
    pod = instance.api.applied["DaemonSet/bootbridge-join-service"]["spec"]["template"]["spec"]
    mounted = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert {str(instance.root / "evidence.crt"), str(instance.root / "evidence.key")} <= mounted
    assert "Secret/bootbridge-measurement" in instance.api.applied


async def test_the_first_certificate_has_the_validity_of_the_policy(instance: LocalInstance) -> None:
    instance.write_policy(by_authority(instance.authority), ticket={"certificateDays": 7})
    instance.let_kubeadm_go_on()
    async with node_run(instance) as node:
        assert await init(instance, RecordingReport())
        await node.code()
    pem = (instance.root / "var/lib/kubelet/pki/bootbridge-serving.pem").read_bytes()
    ends = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    assert timedelta(days=6) < ends - datetime.now(UTC) <= timedelta(days=7)


async def test_the_first_node_name_is_bound_before_the_join_service_is_deployed(
    instance: LocalInstance,
) -> None:
    instance.let_kubeadm_go_on()
    async with node_run(instance) as node:
        assert await init(instance, RecordingReport())
        await node.code()
    applied = instance.api.applied
    assert applied["ConfigMap/bootbridge-node-cp-0"]["data"] == {"identity": instance.identity}
    order = list(applied)
    assert order.index("ConfigMap/bootbridge-node-cp-0") < order.index("DaemonSet/bootbridge-join-service")


async def test_files_with_secrets_are_readable_by_their_owner_only(instance: LocalInstance) -> None:
    instance.let_kubeadm_go_on()
    before = set(instance.folder.rglob("*"))
    async with node_run(instance) as node:
        assert await init(instance, RecordingReport())
        await node.code()
    new = {path for path in instance.folder.rglob("*") if path.is_file()} - before
    secrets = secrets_of(instance)
    holders = {path.name: mode(path) for path in new if any(each in path.read_bytes() for each in secrets)}
    assert {"admin.conf", "secrets.json"} <= set(holders)
    assert {name: found for name, found in holders.items() if found & 0o077} == {}


def secrets_of(instance: LocalInstance) -> list[bytes]:
    """Returns all secrets, as they would appear in files and logs."""
    document = json.loads((instance.user / "secrets.json").read_text())
    return [instance.secret, TOKEN.encode(), document["key"].encode()]


async def test_a_wrong_secret_is_rejected_without_log_or_change(instance: LocalInstance) -> None:
    report = RecordingReport()
    instance.write_wrong_secret()
    async with node_run(instance) as node:
        assert not await init(instance, report)
        status = await read_status(read_configuration(instance.configuration))
        assert (status.phase, status.lock, status.register) == ("waiting", "free", bytes(32))
        assert await node.code() == INTERRUPTED
    assert report.failure is not None
    reason, advice, log = report.failure
    assert "wrong init secret" in reason
    assert "--init-secret-file" in advice
    assert log == ""
    assert not instance.init_runs
    assert not instance.kubeconfig.exists()


async def test_an_untrusted_instance_gets_no_secret(instance: LocalInstance) -> None:
    report = RecordingReport()
    instance.write_policy(by_authority(Authority.create("other machines")))
    async with node_run(instance):
        assert not await init(instance, report)
    assert report.failure is not None
    assert "evidence was refused" in report.failure[0]
    assert report.peer is None
    assert not instance.init_runs


async def test_a_worker_that_answers_for_a_control_plane_gets_no_secret(
    instance: LocalInstance,
) -> None:
    """Its evidence is valid; only the policy knows its role."""
    report = RecordingReport()
    instance.write_policy(by_authority(instance.authority), instance.identity, role="worker")
    async with node_run(instance) as node:
        assert not await init(instance, report)
        assert await node.code() == INTERRUPTED
    assert report.failure is not None
    assert "instance: has the key of cp-0, which is a worker in --policy" in report.failure[0]
    assert report.peer is None


async def test_an_instance_with_an_unlisted_key_gets_no_secret(instance: LocalInstance) -> None:
    """One CA may vouch for many machines; the policy lists the control planes."""
    report = RecordingReport()
    instance.write_policy(by_authority(instance.authority), "x509:sha256:" + "0" * 64)
    async with node_run(instance) as node:
        assert not await init(instance, report)
        assert await node.code() == INTERRUPTED
    assert report.failure is not None
    assert f"key {instance.identity} is not that of a control plane in --policy" in report.failure[0]
    assert report.peer is None
    assert not instance.init_runs


async def test_an_instance_with_another_kind_of_evidence_than_its_role_requires_gets_no_secret(
    instance: LocalInstance,
) -> None:
    """A control plane holds the keys of the cluster, by an init as by a ticket."""
    report = RecordingReport()
    token = {"token": {"tokens": {"dev": "0123456789abcdef"}}}
    evidence = {**by_authority(instance.authority), **token}
    instance.write_policy(evidence, instance.identity, roleEvidence={"control-plane": ["token"]})
    async with node_run(instance) as node:
        assert not await init(instance, report)
        assert await node.code() == INTERRUPTED
    assert report.failure is not None
    line = "write in the join policy: roleEvidence: {control-plane: [x509, token]}"
    assert (
        f"x509 evidence is not accepted for the role control-plane (to accept it, {line})"
        in report.failure[0]
    )
    assert not instance.init_runs


async def test_a_second_init_is_rejected_and_the_first_continues(instance: LocalInstance) -> None:
    first, second = RecordingReport(), RecordingReport()
    async with node_run(instance) as node:
        running = tasks.spawn(init(instance, first), "first")
        await kubeadm_runs(instance)
        assert not await init(instance, second, kubeconfig=instance.user / "second.conf")
        instance.let_kubeadm_go_on()
        assert await running
        assert await node.code() == FINISHED
    assert second.failure is not None
    assert "another init is running" in second.failure[0]


async def test_a_lost_connection_is_resumed_without_missing_events(instance: LocalInstance) -> None:
    """A relay between client and instance is cut while kubeadm runs."""
    report = RecordingReport()
    async with node_run(instance) as node, relay_to(instance.port) as relay:
        running = tasks.spawn(init(instance, report, port=relay.port), "init")
        await kubeadm_runs(instance)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while ("etcd", "started") not in report.stages:
                report.on_stage.clear()
                await report.on_stage.wait()
        relay.cut()
        instance.let_kubeadm_go_on()
        assert await running, report.failure
        assert await node.code() == FINISHED
    assert len(report.reasons) >= 1
    turns = [turn for turn in report.stages if turn[1] != "output"]
    assert len(turns) == len(set(turns))
    assert {state for _, state in turns} == {"started", "done"}
    assert len(turns) == 2 * len(DONE)


async def test_an_interrupted_init_continues_and_the_same_command_watches_it(
    instance: LocalInstance,
) -> None:
    gone, back = RecordingReport(), RecordingReport()
    async with node_run(instance) as node:
        running = tasks.spawn(init(instance, gone), "init")
        await kubeadm_runs(instance)
        running.cancel()
        await asyncio.wait({running})
        instance.let_kubeadm_go_on()
        assert await init(instance, back), back.failure
        assert await node.code() == FINISHED
    assert ("preflight", "done") in back.stages
    assert instance.kubeconfig.exists()


async def test_an_init_secret_creates_only_one_cluster(
    instance: LocalInstance, caplog: pytest.LogCaptureFixture
) -> None:
    """While the instance waits for the first client, another init is rejected and logged."""
    again = RecordingReport()
    async with node_run(instance) as node:
        running = tasks.spawn(init(instance, RecordingReport()), "init")
        await kubeadm_runs(instance)
        running.cancel()
        await asyncio.wait({running})
        instance.let_kubeadm_go_on()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (await read_status(read_configuration(instance.configuration))).phase != "done":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        other = instance.user / "other.conf"
        assert not await init(instance, again, kubeconfig=other)
        assert await node.code() == FINISHED
    assert again.failure is not None
    assert "instance rejected the request: instance is already initialised" in again.failure[0]
    (logged,) = [vars(each)["fields"] for each in caplog.records if each.message == "init rejected"]
    assert logged == {"reason": "instance is already initialised"}
    assert not other.exists()
    assert instance.kubeadm_arguments.count(" init --config") == 1


async def test_a_failed_init_reports_reason_advice_and_a_log_without_secrets(instance: LocalInstance) -> None:
    report = RecordingReport()
    instance.let_kubeadm_fail()
    async with node_run(instance) as node:
        assert not await init(instance, report)
        assert await node.code() == FATAL
    assert report.failure is not None
    reason, advice, log = report.failure
    assert "the kubelet is not healthy" in reason
    assert "reboot" in advice
    path = options(instance).log
    assert (log, mode(path)) == (str(path), 0o600)
    text = path.read_bytes()
    assert b"joinService.evidence is none" in text, "the instance's own log lines"
    assert [each for each in secrets_of(instance) if each in text] == []


def test_a_node_does_not_start_without_join_service_evidence(instance: LocalInstance) -> None:
    """Otherwise any join service would be trusted by default."""
    instance.configure(joinService={})
    with pytest.raises(
        OperatorError, match=r"joinService\.evidence: required field missing .*`none` accepts any"
    ):
        run.run(read_configuration(instance.configuration))
    assert not instance.init_runs


async def test_a_worker_is_not_initialised_until_its_role_is_corrected(instance: LocalInstance) -> None:
    report = RecordingReport()
    instance.let_kubeadm_go_on()
    instance.write_metadata(role="worker")
    async with node_run(instance) as node:
        assert not await init(instance, report)
        assert report.failure is not None
        assert "role is worker" in report.failure[0]
        assert "nothing was changed" in report.failure[1]
        instance.write_metadata()
        assert await init(instance, RecordingReport())
        assert await node.code() == FINISHED


async def test_a_finished_node_is_shown_by_status_and_does_not_init_again(instance: LocalInstance) -> None:
    instance.let_kubeadm_go_on()
    async with node_run(instance) as node:
        assert await init(instance, RecordingReport())
        assert await node.code() == FINISHED
    status = await read_status(read_configuration(instance.configuration))
    assert (status.phase, status.lock, status.healthy) == ("done", "init", True)
    assert status.document["node"] == {"name": "cp-0", "role": "control-plane"}
    async with node_run(instance) as node:
        assert await node.code() == FINISHED
    assert instance.kubeadm_arguments.count(" init --config") == 1
