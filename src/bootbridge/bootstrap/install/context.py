"""The place where one tunnel is laid: its plan, the node, the cluster, and what is known of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from bootbridge.bootstrap.install import install_record
from bootbridge.bootstrap.install.install_record import InstallRecord
from bootbridge.bootstrap.machine import certificates
from bootbridge.bootstrap.machine.certificates import CertificateSet
from bootbridge.bootstrap.machine.node_values import NodeValues, node_values
from bootbridge.bootstrap.plan.plan import IPAddress, Plan
from bootbridge.common.host import Host
from bootbridge.kube.blocking_client import ClusterClient


@dataclass
class InstallContext:
    """Shared by all resources of one tunnel."""

    plan: Plan
    host: Host
    cluster: ClusterClient | None = None  # None: there is none yet
    addresses: tuple[IPAddress, ...] = ()  # of the node; needed to apply, not to find or remove
    firewall: bool = False
    kubeconfig: str = ""  # as given with --kubeconfig

    def close(self) -> None:
        if self.cluster:
            self.cluster.close()

    @property
    def now(self) -> datetime:
        return datetime.now(UTC)

    def record(self) -> InstallRecord:
        return install_record.load(self.host, self.plan) or InstallRecord()

    def save(self, noted: InstallRecord) -> None:
        """Write down what is about to be done."""
        if noted != install_record.load(self.host, self.plan):
            self.host.write(install_record.path(self.plan), noted.dump())

    def record_directories(self, directory: str) -> None:
        """Those that have to be made for this one to be there are ours to remove."""
        if missing := self.host.missing_directories(directory):
            self.save(self.record().with_directories(missing))

    def record_cluster(self) -> None:
        self.save(replace(self.record(), cluster=True))

    def bundle(self) -> CertificateSet | None:
        return certificates.load(self.host.root, self.plan)

    def values(self) -> NodeValues | None:
        """What the manifests are filled with; None as long as there are no certificates."""
        bundle = self.bundle()
        if bundle is None:
            return None
        return node_values(
            self.plan,
            self.plan.image.reference,
            self.addresses,
            ca=bundle.ca_cert,
            agent_cert=bundle.agent.cert_pem,
            agent_key=bundle.agent.key_pem,
        )

    def server_pids(self) -> list[int]:
        """The server's processes: its command line names the socket."""
        return self.host.processes_with_argument(f"--uds-name={self.host.path(self.plan.paths.socket)}")
