"""From a blank instance to a node of an existing cluster, and renewal of its serving certificate."""

from __future__ import annotations

import asyncio
import json

import pytest

from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from bootbridge.node import run
from bootbridge.node.configuration import read_configuration
from bootbridge.node.init import tunnel, tunnel_removal
from bootbridge.node.stages import ProgressCallback
from bootbridge.node.status import read_status
from bootbridge.node.supervisor import FINISHED, INTERRUPTED
from bootbridge.runtime import tasks
from bootbridge.runtime.concurrency import cancel_and_wait
from tests.node.kubeadm.examples import instance as first_instance
from tests.node.kubeadm.examples import spec
from tests.node.local_instance import LocalInstance
from tests.node.local_join_service import BOOTSTRAP_TOKEN, LocalJoinService
from tests.node.local_run import (
    DEADLINE_SECONDS,
    RecordingReport,
    init,
    mode,
    node_run,
)


async def test_an_instance_joins_through_the_join_service_in_its_metadata(instance: LocalInstance) -> None:
    """It finds the join service in its metadata, proves its identity, and becomes a node."""
    service = LocalJoinService(instance)
    async with service.listening() as port:
        instance.configure(joinService={"port": port, "evidence": "none"})
        instance.write_metadata(role="worker", loadBalancer="127.0.0.1:6443")
        async with node_run(instance) as node, asyncio.timeout(DEADLINE_SECONDS):
            assert await node.running == FINISHED
    assert [(each.node_name, each.control_plane) for each in service.asked] == [("cp-0", False)]
    assert service.callers[0] is not None
    assert json.loads((instance.root / "state.json").read_text())["role"] == "worker"
    assert mode(instance.root / "var/lib/kubelet/pki/bootbridge-serving.pem") == 0o600
    assert " join --config" in instance.kubeadm_arguments
    assert BOOTSTRAP_TOKEN not in instance.kubeadm_arguments


async def test_a_node_renews_its_serving_certificate_once_it_is_due(instance: LocalInstance) -> None:
    """As `bootbridge node renew` in a timer: without a reboot."""
    service = LocalJoinService(instance, age_seconds=3000)
    pki = instance.root / "var/lib/kubelet/pki"
    async with service.listening() as port, asyncio.timeout(DEADLINE_SECONDS):
        instance.configure(joinService={"port": port, "evidence": "none"})
        instance.write_metadata(role="worker", loadBalancer="127.0.0.1")
        configuration = read_configuration(instance.configuration)
        with pytest.raises(OperatorError, match="this instance is not a node"):
            await run.renew_certificate(configuration, DEADLINE_SECONDS)
        async with node_run(instance) as node:
            assert await node.running == FINISHED
        old = (pki / "bootbridge-serving.pem").read_bytes()
        service.age_seconds = 0
        assert await run.renew_certificate(configuration, DEADLINE_SECONDS)
        new = (pki / "bootbridge-serving.pem").read_bytes()
        assert new != old
        service.refusal = "not due yet"
        assert await run.renew_certificate(configuration, DEADLINE_SECONDS)
    assert (pki / "bootbridge-serving.pem").read_bytes() == new
    assert mode(pki / "bootbridge-serving.pem") == 0o600
    assert instance.kubeadm_arguments.count(" join --config") == 1


async def test_a_certificate_can_be_renewed_while_node_run_waits_to_remove_the_tunnel(
    instance: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that never becomes Ready would otherwise block the renewal until the certificate expires."""
    waiting = asyncio.Event()

    async def for_ever(host: Host, progress: ProgressCallback, *, quiet_seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    plan = tunnel.plan_for(spec(tunnel_image="registry.example/bootbridge:1"), first_instance())
    monkeypatch.setattr(tunnel_removal, "installed_plan", lambda host: plan)
    monkeypatch.setattr(tunnel_removal, "wait_until_unneeded", for_ever)
    service = LocalJoinService(instance, age_seconds=3000)
    async with service.listening() as port, asyncio.timeout(DEADLINE_SECONDS):
        instance.configure(joinService={"port": port, "evidence": "none"})
        instance.write_metadata(role="worker", loadBalancer="127.0.0.1")
        configuration = read_configuration(instance.configuration)
        configuration.settings.tunnel_marker.touch()
        running = tasks.spawn(run._run_until_stopped(configuration), "node run")
        await waiting.wait()
        service.age_seconds = 0
        assert await run.renew_certificate(configuration, DEADLINE_SECONDS)
        assert not running.done()
        await cancel_and_wait(running)


async def test_a_failed_renewal_is_reported(instance: LocalInstance) -> None:
    service = LocalJoinService(instance, age_seconds=3000)
    async with service.listening() as port, asyncio.timeout(DEADLINE_SECONDS):
        instance.configure(joinService={"port": port, "evidence": "none"})
        instance.write_metadata(role="worker", loadBalancer="127.0.0.1")
        async with node_run(instance) as node:
            assert await node.running == FINISHED
    assert not await run.renew_certificate(read_configuration(instance.configuration), seconds=0.1)


async def test_a_refusal_is_shown_with_its_reason_and_an_init_is_still_possible(
    instance: LocalInstance, caplog: pytest.LogCaptureFixture
) -> None:
    service = LocalJoinService(instance, refusal="the policy does not know cp-0")
    instance.let_kubeadm_go_on()
    async with service.listening() as port:
        instance.configure(joinService={"port": port, "evidence": "none"})
        instance.write_metadata(loadBalancer="127.0.0.1")
        async with node_run(instance) as node:
            refused = await refusal(caplog)
            waiting = await read_status(read_configuration(instance.configuration))
            assert await init(instance, RecordingReport())
            assert await node.code() == FINISHED
    assert f"127.0.0.1:{port}: the policy does not know cp-0" in refused
    assert (waiting.phase, waiting.document["reason"]) == ("waiting", f"ticket refused: {refused}")
    assert waiting.facts["last error"] == f"ticket refused: {refused}"
    assert mode(instance.root / "run/node/last-join-error") == 0o600
    assert (await read_status(read_configuration(instance.configuration))).document["reason"] == "", (
        "it is a node"
    )


async def refusal(caplog: pytest.LogCaptureFixture) -> str:
    """Waits until a refusal is logged and returns its reason."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            for record in caplog.records:
                if record.message == "ticket refused":
                    return str(vars(record)["fields"]["reason"])
            await asyncio.sleep(0.01)


async def test_a_join_service_without_required_evidence_gets_no_request(
    instance: LocalInstance, caplog: pytest.LogCaptureFixture
) -> None:
    service = LocalJoinService(instance)
    evidence = {"x509": {"cas": instance.authority.cert_pem.decode()}}
    async with service.listening() as port:
        instance.configure(joinService={"port": port, "evidence": evidence})
        instance.write_metadata(role="worker", loadBalancer="127.0.0.1")
        async with node_run(instance) as node:
            refused = await refusal(caplog)
            assert await node.code() == INTERRUPTED
    assert service.asked == []
    assert "the join service's evidence was refused: no evidence presented, none available" in refused
