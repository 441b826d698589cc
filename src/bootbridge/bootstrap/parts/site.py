"""The place where one bridge is laid: its plan, the node, the cluster, and what is known of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from bootbridge.bootstrap import certificates, laid
from bootbridge.bootstrap.certificates import Bundle
from bootbridge.bootstrap.cluster import Cluster
from bootbridge.bootstrap.host import Host
from bootbridge.bootstrap.laid import Laid
from bootbridge.bootstrap.node_values import NodeValues, node_values
from bootbridge.bootstrap.plan import IPAddress, Plan


@dataclass
class Site:
    """Shared by all parts of one bridge."""

    plan: Plan
    host: Host
    cluster: Cluster | None = None  # None: there is none yet
    addresses: tuple[IPAddress, ...] = ()  # of the node; needed to apply, not to find or remove
    firewall: bool = False
    kubeconfig: str = ""  # as given with --kubeconfig

    @property
    def now(self) -> datetime:
        return datetime.now(UTC)

    def laid(self) -> Laid:
        return laid.load(self.host, self.plan) or Laid()

    def note(self, noted: Laid) -> None:
        """Write down what is about to be done."""
        if noted != laid.load(self.host, self.plan):
            self.host.write(laid.path(self.plan), noted.dump())

    def note_directories(self, directory: str) -> None:
        """Those that have to be made for this one to be there are ours to remove."""
        if missing := self.host.missing_directories(directory):
            self.note(self.laid().with_directories(missing))

    def note_cluster(self) -> None:
        self.note(replace(self.laid(), cluster=True))

    def bundle(self) -> Bundle | None:
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
        return self.host.processes_with(f"--uds-name={self.host.path(self.plan.paths.socket)}")
