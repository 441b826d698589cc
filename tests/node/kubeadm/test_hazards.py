"""Defects that were seen elsewhere, each with a test that we do not have it; numbered as in issue 5."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bootbridge.common.failures import Fatal
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.join_api.components import Component
from bootbridge.join_api.kubeadm_defaults import CONTROL_PLANE_FILES
from bootbridge.join_api.messages import ControlPlaneFile
from bootbridge.node import node_paths
from bootbridge.node.components import install
from bootbridge.node.components.install import ComponentUnavailable, Installer
from bootbridge.node.init.messages import StageEvent
from bootbridge.node.join.ticket_files import TicketUnusable, write_ticket
from bootbridge.node.kubeadm import documents
from bootbridge.node.kubeadm.kubelet_service import unmanaged_kubelet
from bootbridge.node.kubeadm.machine import KubeadmMachine
from bootbridge.node.kubeadm.run import Kubeadm, KubeadmFailed
from bootbridge.node.machine import JoinServiceSetup
from bootbridge.node.stages import ProgressCallback
from bootbridge.trust.authority import Authority
from tests.node.kubeadm.examples import FAMILIES, instance, spec, ticket
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


@pytest.mark.parametrize(
    "name", ["../admin.conf", "/etc/shadow", "etcd/../../x", "ca.crt/", "./ca.crt", "CA.crt", "", "ca.crt\0"]
)
def test_8_a_control_plane_file_of_any_other_name_is_refused_and_nothing_is_written(
    host: Host, name: str
) -> None:
    """Names joined to a path unchecked let a false join service write anywhere."""
    serving = Authority.create("kubernetes").issue_server(["node-1"])
    files = tuple(ControlPlaneFile(each, b"x") for each in CONTROL_PLANE_FILES)
    bad = ticket(
        control_plane=True,
        kubelet_certificate=serving.cert_pem,
        control_plane_files=(*files, ControlPlaneFile(name, b"x")),
    )
    with pytest.raises(TicketUnusable, match="unknown control plane file"):
        write_ticket(host, bad, serving.key_pem)
    assert list(host.root.rglob("*")) == []


@pytest.mark.parametrize("families", FAMILIES)
@pytest.mark.parametrize("provider_id", ["", "cloud:///i-1"])
def test_11_an_init_and_a_join_describe_the_same_machine_in_the_same_way(
    families: str, provider_id: str
) -> None:
    """A cloud's flag that the first node has and the others lack is a cluster of two kinds of nodes."""
    initial = documents.init_documents(
        spec(families, ignore_preflight_errors=("Swap",)),
        instance(families, name="node-1", provider_id=provider_id),
    )[0]
    (joining,) = documents.join_documents(
        ticket(families, provider_id=provider_id, ignore_preflight_errors=("Swap",), control_plane=True)
    )
    assert initial["nodeRegistration"] == joining["nodeRegistration"]
    assert initial["localAPIEndpoint"] == joining["controlPlane"]["localAPIEndpoint"]
    assert initial["timeouts"] == joining["timeouts"]


async def test_13_a_kubeadm_that_is_missing_or_broken_is_fatal_at_its_first_use(
    host: Host, tmp_path: Path
) -> None:
    """An error that is only logged where it arises becomes a riddle later."""
    with pytest.raises(Fatal, match=r"kubeadm: program not found .*to the components"):
        await machine(host, tmp_path / "kubeadm").join(ticket(), lambda event: None)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(Fatal, match="install a kubeadm that runs"):
        await machine(host, broken).join(ticket(), lambda event: None)
    assert not host.exists(node_paths.CONFIGURATION)


async def test_14_half_a_node_is_recognised_and_blank_before_the_next_join(
    host: Host, tmp_path: Path
) -> None:
    """kubeadm refuses to join where it has begun before."""
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


async def test_14_a_reset_takes_what_the_ticket_brought_so_it_is_written_again(
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


async def test_15_downloads_are_tried_again_at_growing_and_uneven_distances(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every 10 ms, from every new node, is an attack."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 40:
            raise ComponentUnavailable("enough")

    monkeypatch.setattr(install.asyncio, "sleep", sleep)
    with pytest.raises(ComponentUnavailable, match="enough"):
        await Installer(host, Random(7)).install(
            [Component(f"http://127.0.0.1:{await _closed_port()}/x", f"sha256:{0:064}", "/x")],
            lambda event: None,
        )
    assert min(waits) >= 0.5
    assert max(waits[:2]) <= 4.0
    assert 15.0 < max(waits) <= 30.0
    assert len(set(waits)) == len(waits)


async def _closed_port() -> int:
    server: Any = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = int(server.sockets[0].getsockname()[1])
    server.close()
    await server.wait_closed()
    return port
