"""kubeadm gets its configuration in a temporary file that only root can read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bootbridge.common.failures import Fatal
from bootbridge.common.host import Host
from bootbridge.node import node_paths
from bootbridge.node.init.messages import StageEvent
from bootbridge.node.kubeadm import documents
from bootbridge.node.kubeadm.run import Kubeadm, KubeadmFailed
from bootbridge.node.machine import NodeStillReady
from tests.node.kubeadm.examples import TOKEN, ticket
from tests.node.kubeadm.fake_kubeadm import FakeKubeadm


@pytest.fixture
def host(tmp_path: Path) -> Host:
    root = tmp_path / "root"
    root.mkdir()
    return Host(root)


@pytest.fixture
def program(tmp_path: Path) -> FakeKubeadm:
    return FakeKubeadm(tmp_path)


def silent(event: StageEvent) -> None: ...


async def test_the_arguments_of_each_run(host: Host, program: FakeKubeadm) -> None:
    kubeadm = Kubeadm(str(program.path), host)
    file = host.path(node_paths.CONFIGURATION)
    await kubeadm.preflight(b"", silent)
    await kubeadm.make_certificates(b"", silent)
    await kubeadm.init(b"", silent)
    await kubeadm.join(b"", silent)
    await kubeadm.reset("unix:///run/c.sock", silent)
    assert program.calls == [
        f"init phase preflight --config={file}",
        f"init phase certs all --config={file}",
        f"init --config={file}",
        f"join --config={file}",
        "reset --force --cri-socket=unix:///run/c.sock",
    ]


async def test_the_configuration_is_readable_by_root_only_and_removed_after_the_run(
    host: Host, program: FakeKubeadm
) -> None:
    program.does('file=${2#--config=}; stat -c "%a" "$file" "${file%/*}"; cat "$file"')
    events: list[StageEvent] = []
    await Kubeadm(str(program.path), host).join(b"some: text\n", events.append)
    assert [event.text for event in events if event.state == "output"] == ["600", "700", "some: text"]
    assert not host.exists(node_paths.CONFIGURATION)


@pytest.mark.parametrize("body", ["exit 1", "kill -9 $$"])
async def test_the_configuration_is_removed_after_a_failed_run(
    host: Host, program: FakeKubeadm, body: str
) -> None:
    program.does(body)
    with pytest.raises(KubeadmFailed):
        await Kubeadm(str(program.path), host).join(b"some: text\n", silent)
    assert not host.exists(node_paths.CONFIGURATION)


async def test_no_secret_is_an_argument_or_reaches_a_message(host: Host, program: FakeKubeadm) -> None:
    program.does('cat "${2#--config=}"; exit 1')
    events: list[StageEvent] = []
    configuration = documents.dump(documents.join_documents(ticket()))
    assert TOKEN.encode() in configuration
    with pytest.raises(KubeadmFailed) as failure:
        await Kubeadm(str(program.path), host).join(configuration, events.append)
    assert "[redacted]" in repr(events)
    for text in (*program.calls, str(failure.value), repr(failure.value.__context__), repr(events)):
        assert "0123456789abcdef" not in text


async def test_a_node_that_is_still_ready_is_an_error_of_its_own(host: Host, program: FakeKubeadm) -> None:
    """After a crash in the middle of a join; the words are those of kubeadm v1.36."""
    text = 'a Node with name "node4" and status "Ready" already exists in the cluster. You must delete it'
    program.does(f"echo '{text}' >&2; exit 1")
    with pytest.raises(NodeStillReady, match="node4"):
        await Kubeadm(str(program.path), host).join(b"", silent)


async def test_a_failure_reports_the_last_output(host: Host, program: FakeKubeadm) -> None:
    program.does("echo '[preflight] Running'; echo 'error: something is missing' >&2; exit 2")
    events: list[StageEvent] = []
    with pytest.raises(KubeadmFailed, match=r"kubeadm: exit status 2: .*something is missing"):
        await Kubeadm(str(program.path), host).preflight(b"", events.append)
    assert (events[-1].name, events[-1].state) == ("preflight", "failed")


async def test_a_cancelled_run_fails_its_stage_and_removes_the_configuration(
    host: Host, program: FakeKubeadm
) -> None:
    program.does("echo up; exec sleep 600")
    up, events = asyncio.Event(), list[StageEvent]()

    def progress(event: StageEvent) -> None:
        events.append(event)
        if event.text == "up":
            up.set()

    running = asyncio.create_task(Kubeadm(str(program.path), host).join(b"", progress))
    await up.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert events[-1].state == "failed"
    assert not host.exists(node_paths.CONFIGURATION)


async def test_another_minor_version_is_fatal(host: Host, program: FakeKubeadm) -> None:
    kubeadm = Kubeadm(str(program.path), host)
    await kubeadm.require_version("v1.36.0")
    with pytest.raises(Fatal, match=r"version is v1\.36\.3, v1\.19\.0 is required"):
        await kubeadm.require_version("v1.19.0")
    assert program.calls == []
