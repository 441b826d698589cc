"""What a diagnosis works on: the installation, the destination, and the processes found on the node."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bootbridge.bootstrap.diagnose.check.result import at, mapping
from bootbridge.bootstrap.diagnose.doctor import processes
from bootbridge.bootstrap.diagnose.doctor.processes import NodeProcess
from bootbridge.bootstrap.install.context import InstallContext
from bootbridge.bootstrap.plan.plan import Flavour, Plan
from bootbridge.bootstrap.render import apiserver_manifest
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError

if TYPE_CHECKING:
    from bootbridge.bootstrap.diagnose.doctor.targets import Destination, RequestedDestination
    from bootbridge.kube.blocking_client import ClusterClient

DIAL_SECONDS = 10.0
_OURS = ("--egress-selector-config-file=", "--enable-aggregator-routing=")


@dataclass
class DiagnosisContext:
    install: InstallContext
    recorded: bool = True  # the plan comes from the record of an installation on this node
    requested: RequestedDestination | None = None
    no_cluster_because: str = ""
    dial_seconds: float = DIAL_SECONDS
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    destination: Destination | None = None  # set by the step `destination`

    @property
    def plan(self) -> Plan:
        return self.install.plan

    @property
    def host(self) -> Host:
        return self.install.host

    @cached_property
    def cluster(self) -> ClusterClient | None:
        """None if the API server does not answer; `no_cluster_because` then holds the reason."""
        cluster = self.install.cluster
        if cluster is None:
            self.no_cluster_because = self.no_cluster_because or "there is no kubeconfig"
            return None
        self.no_cluster_because = cluster.probe()
        return None if self.no_cluster_because else cluster

    @cached_property
    def server(self) -> NodeProcess | None:
        """The process of our proxy-server, recognised by the socket on its command line."""
        wanted = self.plan.paths.socket
        return next(
            (each for each in processes.running() if self._means(each, "uds-name", wanted, wanted)), None
        )

    def _means(self, program: NodeProcess, flag: str, seen_as: str, path: str) -> bool:
        """Whether a flag names our file, by its path below `host.root` or by its path inside a container."""
        given, host = program.value(flag), self.host
        if given == str(host.path(path)):
            return True
        folder, place = seen_as.rpartition("/")[0], host.path(path.rpartition("/")[0])
        return given == seen_as and program.sees(folder, place)

    @cached_property
    def apiserver(self) -> NodeProcess | None:
        """The process with our setting, else the one that the manifest describes, else any on this node."""
        found = processes.named("kube-apiserver") or processes.named("hyperkube")
        described = self._manifest_flags()
        for is_it in (
            self._has_our_egress_config,
            lambda each: bool(described) and described <= set(each.words),
            lambda each: True,
        ):
            for each in found:
                if is_it(each):
                    return each
        return None

    def _has_our_egress_config(self, program: NodeProcess) -> bool:
        paths = self.plan.paths
        seen_as = paths.egress_config_seen_by_apiserver
        return self._means(program, "egress-selector-config-file", seen_as, paths.egress_config)

    @property
    def egress_config_paths(self) -> set[str]:
        """The file's path inside the kube-apiserver's container, and the same below `host.root`."""
        seen = self.plan.paths.egress_config_seen_by_apiserver
        return {seen, str(self.host.path(seen))}

    def _manifest_flags(self) -> set[str]:
        words = self.manifest_words() or []
        return {word for word in words if word.startswith("--") and not word.startswith(_OURS)}

    def manifest_words(self) -> list[str] | None:
        """The command line in the static pod's manifest; None if it is missing or invalid."""
        path = self.plan.paths.apiserver_pod
        data = self.host.read(path)
        try:
            return apiserver_manifest.command_line(data, path) if data else None
        except OperatorError:
            return None

    def apiserver_setting(self, flag: str) -> str | None:
        """A flag's value from the kube-apiserver's command line, else from OpenShift's configuration file."""
        assert self.apiserver
        value = self.apiserver.value(flag)
        return value if value is not None else self._openshift_setting(flag)

    def _openshift_setting(self, flag: str) -> str | None:
        path = self.plan.paths.apiserver_config
        data = self.host.read(path) if self.plan.flavour is Flavour.OPENSHIFT else None
        given: Any = at(mapping(data, path), "apiServerArguments", flag) if data else None
        return str(given[-1]) if isinstance(given, list) and given else None
