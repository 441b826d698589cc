"""A final failure of init or join leaves no key on the machine.

Uses the real machine implementation on a directory, with a fake kubeadm.
"""

from __future__ import annotations

import errno
import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from bootbridge.common.backoff import Backoff
from bootbridge.common.failures import Fatal
from bootbridge.common.host import Host
from bootbridge.join_api.kubeadm_defaults import CONTROL_PLANE_FILES
from bootbridge.join_api.messages import ControlPlaneFile
from bootbridge.node import node_paths
from bootbridge.node.components.install import Installer
from bootbridge.node.init.flow import ADVICE, InitFlow
from bootbridge.node.init.messages import StageEvent
from bootbridge.node.join.flow import JoinFlow
from bootbridge.node.kubeadm.kubelet_service import KubeletFailed
from bootbridge.node.kubeadm.machine import KubeadmMachine
from bootbridge.node.kubeadm.run import Kubeadm
from bootbridge.node.lock.bootstrap_record import FileRecordStore, Flow, Phase, read_record
from bootbridge.node.lock.flow_inputs import InitInputs, JoinInputs, seconds_since_boot
from bootbridge.node.lock.node_lock import NodeLock
from bootbridge.node.lock.node_state import FileNodeStateStore
from bootbridge.node.machine import JoinServiceSetup
from bootbridge.node.stages import ProgressCallback
from bootbridge.trust.authority import Authority
from bootbridge.trust.key_hierarchy import cluster_id
from bootbridge.trust.measurement import FileRegister
from tests.node.kubeadm.examples import instance, spec, ticket
from tests.node.kubeadm.fake_kubeadm import FakeKubeadm

SECRET, SALT = b"s" * 32, b"t" * 32
CLUSTER = cluster_id(SECRET, SALT)
WITH_TUNNEL = {"tunnel": True, "tunnel_image": "registry.example/bootbridge:1"}


@dataclass
class Kubelet:
    runs: bool = False
    ignores_stop: bool = False

    async def start(self) -> None:
        self.runs = True

    async def stop(self) -> None:
        if self.ignores_stop:
            raise KubeletFailed("timed out")
        self.runs = False


async def join_service_deployed(setup: JoinServiceSetup, progress: ProgressCallback) -> None: ...


def ignored(event: StageEvent) -> None: ...


class Environment:
    """One blank machine whose kubeadm creates certificates and then fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "root").mkdir()
        self.host = Host(folder / "root")
        Authority.create("kubernetes").write(folder / "made", with_key=True)
        pki = shlex.quote(str(self.host.path(node_paths.PKI)))
        self.program = FakeKubeadm(
            folder,
            f"""
            case "$*" in
              *certs*) mkdir -p {pki}; cp -n {folder}/made/ca.* {pki}/; touch {pki}/apiserver.crt;;
              "init --config"*|join*) test -e {folder}/fixed || {{ echo no; exit 1; }};;
            esac""",
        )
        self.kubelet = Kubelet()
        self.state_store = FileNodeStateStore(folder / "state.json")
        self.boot()

    def boot(self) -> None:
        run = self.folder / f"run-{len(list(self.folder.glob('run-*')))}"
        self.run, self.lock = run, NodeLock(FileRecordStore.open(run), FileRegister(run / "register"))
        self.machine = KubeadmMachine(
            self.host,
            Kubeadm(str(self.program.path), self.host),
            self.kubelet,
            Installer(self.host, Random(1)),
            join_service_deployed,
        )

    async def init(self, **changes: object) -> None:
        made = spec(**changes)
        inputs = InitInputs("one", SECRET, SALT, made.dump(), b"{}")
        own = instance()
        inputs = replace(inputs, name=own.name, role=own.role, addresses=tuple(map(str, own.addresses)))
        await self.lock.try_lock(Flow.INIT, CLUSTER, inputs.encode())
        await InitFlow(self.lock, self.machine, self.state_store, at_once).run(inputs, ignored)

    async def join(self) -> None:
        serving = Authority.create("kubernetes").issue_server(["node-1"])
        join_ticket = ticket(
            control_plane=True,
            turn_seconds=600,
            kubelet_certificate=serving.cert_pem,
            measurement_secret=SECRET,
            measurement_salt=SALT,
            control_plane_files=tuple(ControlPlaneFile(name, b"secret") for name in CONTROL_PLANE_FILES),
        )
        inputs = JoinInputs(join_ticket, serving.key_pem, int(seconds_since_boot()))
        await self.lock.try_lock(Flow.JOIN, CLUSTER, inputs.encode())
        await JoinFlow(self.lock, self.machine, self.state_store, at_once).run(inputs)

    @property
    def left(self) -> list[str]:
        """Returns all files except the audit policy."""
        files = [path for path in self.host.root.rglob("*") if not path.is_dir()]
        paths = {f"/{path.relative_to(self.host.root)}" for path in files}
        return sorted(paths - {node_paths.AUDIT_POLICY})

    @property
    def phase(self) -> Phase | None:
        record, _ = read_record(self.run)
        return record.phase if record else None


def at_once() -> Backoff:
    return Backoff(Random(1), least=0.0, first=0.0, most=0.0)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


async def test_a_failed_control_plane_join_leaves_no_key(environment: Environment) -> None:
    """Each attempt writes the CA files with their keys."""
    with pytest.raises(Fatal, match="failed 3 times"):
        await environment.join()
    assert (environment.left, environment.phase) == ([], Phase.FAILED)
    assert not environment.kubelet.runs
    assert not await environment.machine.has_kubeadm_traces()


@pytest.mark.parametrize("tunnel", [False, True], ids=["without a tunnel", "with a tunnel"])
async def test_a_failed_init_leaves_no_key(environment: Environment, tunnel: bool) -> None:
    """It fails after the certificates were created and the tunnel was installed."""
    with pytest.raises(Fatal):
        await environment.init(**(WITH_TUNNEL if tunnel else {}))
    assert not [path for path in environment.left if path.endswith((".key", ".pem", ".conf"))]
    assert (environment.phase, environment.kubelet.runs) == (Phase.FAILED, False)


async def test_a_missing_kubeadm_does_not_prevent_the_removal_of_keys(environment: Environment) -> None:
    """The reset before the second attempt fails too."""
    environment.program.does('rm "$0"; exit 1')
    with pytest.raises(Fatal, match="program not found"):
        await environment.join()
    assert (environment.left, environment.phase) == ([], Phase.FAILED)


@pytest.mark.parametrize("flow", ["init", "join"])
async def test_a_kubelet_that_does_not_stop_does_not_prevent_the_removal_of_keys(
    environment: Environment, flow: str
) -> None:
    environment.kubelet.ignores_stop = True
    with pytest.raises(Fatal):
        await (environment.init() if flow == "init" else environment.join())
    assert (environment.left, environment.phase) == ([], Phase.FAILED)
    assert environment.kubelet.runs
    # A control plane's member would stay in etcd otherwise, and count for its quorum.
    assert any(call.startswith("reset") for call in environment.program.calls)


@pytest.mark.parametrize("unwritable", ["state", "phase"])
async def test_a_joined_node_is_not_undone_if_its_state_cannot_be_written(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, unwritable: str
) -> None:
    """For example on a full disk: the error is reported, and the node keeps running."""
    (environment.folder / "fixed").touch()

    def full(*words: object, **fields: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if unwritable == "state":
        monkeypatch.setattr(environment.state_store, "save", full)
    else:
        advance = environment.lock.advance
        monkeypatch.setattr(
            environment.lock, "advance", lambda phase: full() if phase is Phase.DONE else advance(phase)
        )
    with pytest.raises(Fatal, match="No space left"):
        await environment.join()
    assert environment.kubelet.runs
    assert environment.host.exists(node_paths.SERVING)
    assert not any(call.startswith("reset") for call in environment.program.calls)


async def test_an_init_after_a_failed_one_starts_on_a_blank_machine(environment: Environment) -> None:
    assert "nothing of this init is kept" in ADVICE
    with pytest.raises(Fatal) as failure:
        await environment.init()
    assert failure.value.advice == ADVICE
    environment.boot()
    before = len(environment.program.calls)
    with pytest.raises(Fatal):
        await environment.init()
    assert "preflight" in environment.program.calls[before]


async def test_an_init_after_a_crash_and_a_reboot_resets_first(environment: Environment) -> None:
    """kubeadm would use an existing CA of another cluster."""
    await environment.machine.kubeadm.make_certificates(b"", ignored)
    assert environment.host.exists(f"{node_paths.PKI}/ca.key")
    before = len(environment.program.calls)
    with pytest.raises(Fatal):
        await environment.init()
    assert environment.program.calls[before].startswith("reset")
