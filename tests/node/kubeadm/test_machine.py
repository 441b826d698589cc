"""The order of steps of init, join and reset, with a fake kubeadm."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from bootbridge.common.failures import Fatal
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.node import node_paths
from bootbridge.node.components.install import Installer
from bootbridge.node.init import tunnel
from bootbridge.node.init.messages import StageEvent
from bootbridge.node.kubeadm import machine as machine_module
from bootbridge.node.kubeadm.api_server import ApiServerNotReady
from bootbridge.node.kubeadm.kubelet_service import KubeletFailed
from bootbridge.node.kubeadm.machine import KubeadmMachine
from bootbridge.node.kubeadm.run import Kubeadm, KubeadmFailed
from bootbridge.node.machine import JoinServiceSetup, Machine
from bootbridge.node.stages import ProgressCallback
from bootbridge.trust.authority import Authority
from tests.node.kubeadm.examples import instance, spec, ticket
from tests.node.kubeadm.fake_kubeadm import FakeKubeadm


@dataclass
class Kubelet:
    """Records its start among the runs of kubeadm."""

    program: FakeKubeadm
    notes: list[str] = field(default_factory=list)
    broken: bool = False

    async def start(self) -> None:
        if self.broken:
            raise KubeletFailed("unit kubelet.service not found")
        self.notes.append(f"start after {len(self.program.calls)}")

    async def stop(self) -> None:
        self.notes.append(f"stop after {len(self.program.calls)}")


@dataclass
class Environment:
    host: Host
    program: FakeKubeadm
    kubelet: Kubelet
    machine: KubeadmMachine
    waited: list[Path] = field(default_factory=list)
    events: list[StageEvent] = field(default_factory=list)

    @property
    def stages(self) -> list[str]:
        return [event.name for event in self.events if event.state == "started"]


async def join_service_deployed(setup: JoinServiceSetup, progress: ProgressCallback) -> None: ...


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    root = tmp_path / "root"
    root.mkdir()
    host, program = Host(root), FakeKubeadm(tmp_path)
    program.does(_like_kubeadm(host, tmp_path))
    kubelet = Kubelet(program)
    machine = KubeadmMachine(
        host, Kubeadm(str(program.path), host), kubelet, Installer(host), join_service_deployed
    )
    made = Environment(host, program, kubelet, machine)

    async def ready(kubeconfig: Path) -> None:
        made.waited.append(kubeconfig)

    monkeypatch.setattr(machine_module, "wait_until_ready", ready)
    return made


def _like_kubeadm(host: Host, folder: Path) -> str:
    """`certs all` creates a CA, `init` the admin kubeconfig."""
    authority = Authority.create("kubernetes")
    authority.write(folder / "pki", with_key=True)
    pki, admin = (shlex.quote(str(host.path(path))) for path in (node_paths.PKI, node_paths.ADMIN_KUBECONFIG))
    return f"""
    case "$*" in
      *certs*) mkdir -p {pki}; cp {folder}/pki/ca.* {pki}/;;
      "init --config"*) cp "${{2#--config=}}" {folder}/init.yaml; echo the kubeconfig > {admin};;
      join*) cp "${{2#--config=}}" {folder}/join.yaml;;
    esac"""


async def test_a_blank_machine_has_no_traces(environment: Environment) -> None:
    """Also checks the protocol with the type checker."""
    wanted: Machine = environment.machine
    assert not await wanted.has_kubeadm_traces()


async def test_an_init_runs_kubeadm_in_phases_and_returns_the_admin_kubeconfig(
    environment: Environment,
) -> None:
    kubeconfig = await environment.machine.init(spec(), instance(), 365, environment.events.append)
    assert kubeconfig == b"the kubeconfig\n"
    assert [call.rpartition(" ")[0] for call in environment.program.calls] == [
        "init phase preflight",
        "init phase certs all",
        "init",
    ]
    assert environment.kubelet.notes == ["start after 2"]
    assert environment.stages == ["preflight", "certs", "kubelet-certificate", "init", "api-server"]
    assert environment.waited == [environment.host.path(node_paths.ADMIN_KUBECONFIG)]


async def test_the_new_cluster_ca_signs_the_first_kubelet_certificate(
    environment: Environment,
) -> None:
    await environment.machine.init(spec(), instance(name="CP_0"), 7, environment.events.append)
    made = x509.load_pem_x509_certificate(await environment.machine.read_serving_certificate())
    made.verify_directly_issued_by(
        x509.load_pem_x509_certificate(environment.host.read(f"{node_paths.PKI}/ca.crt") or b"")
    )
    assert made.not_valid_after_utc <= datetime.now(UTC) + timedelta(days=7)
    assert made.subject.rfc4514_string() == "CN=system:node:cp-0,O=system:nodes"
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName("cp-0"), x509.IPAddress(instance().addresses[0])]
    key = load_pem_private_key(environment.host.read(node_paths.SERVING) or b"", None)
    assert key.public_key() == made.public_key()
    assert environment.host.mode(node_paths.SERVING) == 0o600


async def test_the_audit_policy_is_written_on_every_control_plane(
    environment: Environment,
) -> None:
    await environment.machine.join(ticket(), environment.events.append)
    assert not environment.host.exists(node_paths.AUDIT_POLICY)
    await environment.machine.join(ticket(control_plane=True), environment.events.append)
    assert environment.host.exists(node_paths.AUDIT_POLICY)


async def test_a_join_starts_the_kubelet_and_runs_kubeadm_once(environment: Environment) -> None:
    await environment.machine.join(ticket(), environment.events.append)
    assert [call.rpartition(" ")[0] for call in environment.program.calls] == ["join"]
    assert environment.kubelet.notes == ["start after 0"]


async def test_an_init_with_a_tunnel_passes_the_patches_to_kubeadm(
    environment: Environment, tmp_path: Path
) -> None:
    """The node resources after its preflight, which rejects static pods; the cluster resources at the end."""
    bridged = spec(tunnel=True, tunnel_image="registry.example/bootbridge:1")
    await environment.machine.init(bridged, instance(), 365, environment.events.append)
    assert environment.stages == [
        "preflight",
        "certs",
        "kubelet-certificate",
        "tunnel",
        "init",
        "api-server",
        "tunnel",
    ]
    initial = next(yaml.safe_load_all((tmp_path / "init.yaml").read_text()))
    assert initial["patches"] == {"directory": str(environment.host.path(node_paths.PATCHES))}
    assert environment.host.exists(tunnel.PATCH)


async def test_a_failed_tunnel_installation_does_not_fail_the_init(environment: Environment) -> None:
    """The API server of the kubeconfig is unreachable here."""
    bridged = spec(tunnel=True, tunnel_image="registry.example/bootbridge:1")
    assert await environment.machine.init(bridged, instance(), 365, environment.events.append)
    assert [event.state for event in environment.events if event.name == "tunnel"][-2:] == [
        "failed",
        "output",
    ]
    assert "run `bootbridge up`" in environment.events[-1].text


@pytest.mark.parametrize("step", ["preflight", "certs all", "init --config"])
async def test_an_init_ends_with_the_step_that_fails(
    environment: Environment, step: str, tmp_path: Path
) -> None:
    good = _like_kubeadm(environment.host, tmp_path)
    environment.program.does(f'case "$*" in *{shlex.quote(step)}*) echo broken; exit 1;; esac\n{good}')
    with pytest.raises(KubeadmFailed, match="broken"):
        await environment.machine.init(spec(), instance(), 365, environment.events.append)
    assert step in environment.program.calls[-1]
    assert not environment.waited


async def test_an_init_fails_if_the_api_server_does_not_become_ready(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(kubeconfig: Path) -> None:
        raise ApiServerNotReady("it is not ready")

    monkeypatch.setattr(machine_module, "wait_until_ready", never)
    with pytest.raises(ApiServerNotReady):
        await environment.machine.init(spec(), instance(), 365, environment.events.append)
    assert (environment.events[-1].name, environment.events[-1].state) == ("api-server", "failed")


async def test_another_kubernetes_version_fails_before_any_change(environment: Environment) -> None:
    with pytest.raises(Fatal, match="is required"):
        await environment.machine.init(
            spec(kubernetes_version="v1.19.0"), instance(), 365, environment.events.append
        )
    with pytest.raises(Fatal, match="is required"):
        await environment.machine.join(ticket(kubernetes_version="v1.19.0"), environment.events.append)
    assert (environment.program.calls, environment.kubelet.notes) == ([], [])


async def test_a_join_fails_if_the_kubelet_cannot_be_started(environment: Environment) -> None:
    environment.kubelet.broken = True
    with pytest.raises(KubeletFailed):
        await environment.machine.join(ticket(), environment.events.append)
    assert environment.program.calls == []


async def test_a_reset_stops_the_kubelet_and_removes_leftovers(environment: Environment) -> None:
    environment.host.make_directory(node_paths.ETCD_DATA)
    environment.host.write(f"{node_paths.ETCD_DATA}/member", Asset(b""))
    assert await environment.machine.has_kubeadm_traces()
    await environment.machine.reset("unix:///run/c.sock", environment.events.append)
    assert not await environment.machine.has_kubeadm_traces()
    assert environment.kubelet.notes == ["stop after 0"]
    assert environment.program.calls == ["reset --force --cri-socket=unix:///run/c.sock"]


async def test_the_kubelet_is_configured_if_configuration_and_credentials_exist(
    environment: Environment,
) -> None:
    for path in (node_paths.KUBELET_CONFIG, node_paths.KUBELET_KUBECONFIG):
        assert not await environment.machine.is_kubelet_configured()
        environment.host.make_directory(path.rpartition("/")[0])
        environment.host.write(path, Asset(b""))
    assert await environment.machine.is_kubelet_configured()


async def test_a_blank_machine_has_no_serving_certificate(environment: Environment) -> None:
    assert await environment.machine.read_serving_certificate() == b""
