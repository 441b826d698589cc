"""An installation of Konnectivity in a lab, once for each protocol, and the steps of its migration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import yaml

from bootbridge.common.files import Asset
from bootbridge.common.yaml_text import to_yaml
from bootbridge.lab import faults
from bootbridge.lab.node_runtime import STATIC_PODS
from tests.e2e.migration import konnectivity
from tests.e2e.migration.konnectivity import TUNNELS, Manifest, Tunnel
from tests.e2e.migration.step_results import StepResult
from tests.lab.admission_load import AdmissionLoad, admission_load
from tests.support.lab import WAIT_SECONDS, Cluster

# Requests at a time for each protocol: several, so that some are in flight whenever a connection is cut.
STREAMS = 2


@dataclass
class Installation:
    """Servers and agents of both protocols; every step changes both at the same time."""

    cluster: Cluster
    loads: dict[Tunnel, AdmissionLoad] = field(default_factory=dict)
    _revision: int = 0

    def install(self) -> None:
        """Installs Konnectivity's Go programs, and a kube-apiserver for each protocol."""
        original = yaml.safe_load(
            self.cluster.lab.file("bootstrap", f"{STATIC_PODS}/kube-apiserver.yaml").read_bytes()
        )
        for tunnel in TUNNELS:
            self._write_server(tunnel, "Go")
            self._write(konnectivity.egress_path(tunnel), konnectivity.egress_selector(tunnel))
            self._write(tunnel.apiserver_manifest, konnectivity.apiserver_pod(original, tunnel))
        self.cluster.apply(konnectivity.agent_account(), *(self._agents(each, "Go") for each in TUNNELS))
        self.cluster.start_workloads()
        self._wait_for_agents(*TUNNELS)
        for tunnel in TUNNELS:
            self.cluster.until(lambda tunnel=tunnel: self.is_ready(tunnel), f"{tunnel.apiserver} is ready")

    def is_ready(self, tunnel: Tunnel) -> bool:
        address = f"https://{self._address}:{tunnel.apiserver_port}"
        done = self.cluster.kubectl(f"--server={address}", "get", "--raw", "/readyz", check=False)
        return done.returncode == 0

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """Sends admissions to both kube-apiservers during the block."""
        with ExitStack() as stack:
            for tunnel in TUNNELS:
                load = admission_load(self.cluster, port=tunnel.apiserver_port, streams=STREAMS)
                self.loads[tunnel] = stack.enter_context(load)
            yield

    # --- steps

    def step(self, name: str, change: Callable[[], None]) -> list[StepResult]:
        """Makes a change under load; returns the admissions until all streams have recovered from it."""
        before = {tunnel: len(load.results) for tunnel, load in self.loads.items()}
        change()
        changed = time.monotonic()
        for load in self.loads.values():
            load.wait_for_recovery(changed, WAIT_SECONDS)
        return [
            StepResult(name, tunnel.protocol, tuple(load.results[before[tunnel] :]), changed)
            for tunnel, load in self.loads.items()
        ]

    def roll_agents(self, program: str) -> None:
        """Changes the DaemonSets, which replace one agent after the other."""
        self.cluster.apply(*(self._agents(tunnel, program) for tunnel in TUNNELS))
        for tunnel in TUNNELS:
            self.cluster.rolled_out(konnectivity.NAMESPACE, tunnel.agents)
        self._wait_for_agents(*TUNNELS)

    def replace_servers(self, program: str) -> None:
        """Changes the static pods: the kubelet ends the old server, then starts the new one."""
        before = set(self._server_containers())
        for tunnel in TUNNELS:
            self._write_server(tunnel, program)
        self.cluster.until(
            lambda: len(set(self._server_containers()) - before) == len(TUNNELS), "both servers are replaced"
        )
        self._wait_for_agents(*TUNNELS)

    def _server_containers(self) -> list[str]:
        return faults.containers(self.cluster.lab, "bootstrap", "konnectivity-server")

    def _wait_for_agents(self, *tunnels: Tunnel) -> None:
        nodes = len(self.cluster.lab.layout.cluster_nodes)
        for tunnel in tunnels:
            self.cluster.until(
                lambda port=tunnel.admin_port: self.cluster.connected_agents(port) == nodes,
                f"{tunnel.agents}: all agents are connected",
            )

    # --- manifests

    @property
    def _address(self) -> str:
        return str(self.cluster.lab.layout.bootstrap.address)

    def _next_revision(self) -> str:
        self._revision += 1
        return str(self._revision)

    def _agents(self, tunnel: Tunnel, program: str) -> Manifest:
        return konnectivity.agent_daemon_set(tunnel, program, self._next_revision(), self._address)

    def _write_server(self, tunnel: Tunnel, program: str) -> None:
        self._write(tunnel.server_manifest, konnectivity.server_pod(tunnel, program, self._next_revision()))

    def _write(self, path: str, manifest: Manifest) -> None:
        self.cluster.lab.write("bootstrap", {path: Asset(to_yaml(manifest), 0o600)})
