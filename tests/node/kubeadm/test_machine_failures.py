"""A missing kubeadm, a half-joined node, and what a reset deletes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from bootbridge.common.failures import Fatal
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.join_api.kubeadm_defaults import CONTROL_PLANE_FILES
from bootbridge.join_api.messages import ControlPlaneFile
from bootbridge.node import node_paths
from bootbridge.node.components.install import Installer
from bootbridge.node.init.messages import StageEvent
from bootbridge.node.kubeadm.kubelet_service import unmanaged_kubelet
from bootbridge.node.kubeadm.machine import KubeadmMachine
from bootbridge.node.kubeadm.run import Kubeadm, KubeadmFailed
from bootbridge.node.machine import JoinServiceSetup
from bootbridge.node.stages import ProgressCallback
from bootbridge.trust.authority import Authority
from tests.node.kubeadm.examples import ticket
from tests.node.kubeadm.fake_kubeadm import FakeKubeadm


@pytest.fixture
def host(tmp_path: Path) -> Host:
    root = tmp_path / "root"
    root.mkdir()
    return Host(root)


async def join_service_deployed(setup: JoinServiceSetup, progress: ProgressCallback) -> None: ...


def machine(host: Host, program: Path) -> KubeadmMachine:
    return KubeadmMachine(
        host,
        Kubeadm(str(program), host),
        unmanaged_kubelet(),
        Installer(host, Random(1)),
        join_service_deployed,
    )


async def test_a_missing_or_broken_kubeadm_is_fatal_at_its_first_use(host: Host, tmp_path: Path) -> None:
    with pytest.raises(Fatal, match=r"kubeadm: program not found .*to the components"):
        await machine(host, tmp_path / "kubeadm").join(ticket(), lambda event: None)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(Fatal, match="install a kubeadm that runs"):
        await machine(host, broken).join(ticket(), lambda event: None)
    assert not host.exists(node_paths.CONFIGURATION)


async def test_a_half_joined_node_is_recognised_and_reset_before_the_next_join(
    host: Host, tmp_path: Path
) -> None:
    """kubeadm refuses to join on what an earlier attempt has left."""
    trace = host.path(node_paths.BOOTSTRAP_KUBECONFIG)
    trace.parent.mkdir(parents=True)
    program = FakeKubeadm(
        tmp_path,
        f"""
        case "$1" in
          join) test ! -e {trace} || {{ echo "kubelet.conf already exists"; exit 1; }}; touch {trace}
                test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; echo half; exit 1; }};;
        esac""",
    )
    half = machine(host, program.path)
    events: list[StageEvent] = []
    assert not await half.has_kubeadm_traces()
    with pytest.raises(KubeadmFailed, match="half"):
        await half.join(ticket(), events.append)
    assert await half.has_kubeadm_traces()
    await half.reset(ticket().cri_socket, events.append)
    assert not await half.has_kubeadm_traces()
    await half.join(ticket(), events.append)
    assert [call.split()[0] for call in program.calls] == ["join", "reset", "join"]
    assert trace.exists()


async def test_a_reset_deletes_the_ticket_files_so_that_they_are_written_again(
    host: Host, tmp_path: Path
) -> None:
    serving = Authority.create("kubernetes").issue_server(["node-1"])
    files = tuple(ControlPlaneFile(each, b"x") for each in CONTROL_PLANE_FILES)
    given = replace(
        ticket(control_plane=True), kubelet_certificate=serving.cert_pem, control_plane_files=files
    )
    whole = machine(host, FakeKubeadm(tmp_path).path)
    await whole.write_ticket_files(given, serving.key_pem)
    host.write(f"{node_paths.PKI}/apiserver.key", Asset(b"of another cluster", 0o600))
    await whole.reset(given.cri_socket, lambda event: None)
    assert not host.exists(f"{node_paths.PKI}/apiserver.key")
    await whole.write_ticket_files(given, serving.key_pem)
    assert host.exists(f"{node_paths.PKI}/ca.key")
