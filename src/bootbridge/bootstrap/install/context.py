"""What all resources of one installation work on: plan, node, cluster, and the install record."""

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
    plan: Plan
    host: Host
    cluster: ClusterClient | None = None  # None: there is no cluster yet
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

    def save(self, record: InstallRecord) -> None:
        """Writes the record if it has changed; call it before the change that it describes."""
        if record != install_record.load(self.host, self.plan):
            self.host.write(install_record.path(self.plan), record.dump())

    def record_directories(self, directory: str) -> None:
        """Records the missing directories on this path: `down` removes those that `up` creates."""
        if missing := self.host.missing_directories(directory):
            self.save(self.record().with_directories(missing))

    def record_cluster(self) -> None:
        self.save(replace(self.record(), cluster=True))

    def certificates(self) -> CertificateSet | None:
        return certificates.load(self.host.root, self.plan)

    def values(self) -> NodeValues | None:
        """Returns the values for the manifests' placeholders; None while there are no certificates."""
        held = self.certificates()
        if held is None:
            return None
        return node_values(
            self.plan,
            self.plan.image.reference,
            self.addresses,
            ca=held.ca_cert,
            agent_cert=held.agent.cert_pem,
            agent_key=held.agent.key_pem,
        )

    def server_pids(self) -> list[int]:
        """Returns the server's processes, recognised by the socket on their command line."""
        return self.host.processes_with_argument(f"--uds-name={self.host.path(self.plan.paths.socket)}")
