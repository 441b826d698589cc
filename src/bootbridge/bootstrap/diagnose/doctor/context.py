"""What the doctor walks: the site, where the call shall go, and what has been found out on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bootbridge.bootstrap.diagnose.check.finding import at, mapping
from bootbridge.bootstrap.diagnose.doctor import programs
from bootbridge.bootstrap.diagnose.doctor.programs import Program
from bootbridge.bootstrap.install.context import Site
from bootbridge.bootstrap.plan.plan import Flavour
from bootbridge.bootstrap.render import apiserver_manifest
from bootbridge.errors import OperatorError

if TYPE_CHECKING:
    from bootbridge.bootstrap.diagnose.doctor.targets import Destination, Goal
    from bootbridge.kube.blocking_client import ClusterClient

DIAL_SECONDS = 10.0
_OURS = ("--egress-selector-config-file=", "--enable-aggregator-routing=")


@dataclass
class Way:
    site: Site
    recorded: bool = True  # the plan is that of a tunnel that was laid here
    goal: Goal | None = None
    no_cluster_because: str = ""
    dial_seconds: float = DIAL_SECONDS
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    destination: Destination | None = None  # found by the step of that name

    @cached_property
    def cluster(self) -> ClusterClient | None:
        """None if it cannot be asked; `no_cluster_because` says why."""
        cluster = self.site.cluster
        if cluster is None:
            self.no_cluster_because = self.no_cluster_because or "there is no kubeconfig"
            return None
        self.no_cluster_because = cluster.probe()
        return None if self.no_cluster_because else cluster

    @cached_property
    def server(self) -> Program | None:
        """The proxy-server of this tunnel: its command line names the socket."""
        wanted = self.site.plan.paths.socket
        return next(
            (each for each in programs.running() if self._means(each, "uds-name", wanted, wanted)), None
        )

    def _means(self, program: Program, flag: str, seen_as: str, path: str) -> bool:
        """Whether a flag names our file: by its place below another root, or as the program sees it."""
        given, host = program.value(flag), self.site.host
        if given == str(host.path(path)):
            return True
        folder, place = seen_as.rpartition("/")[0], host.path(path.rpartition("/")[0])
        return given == seen_as and program.sees(folder, place)

    @cached_property
    def apiserver(self) -> Program | None:
        """The one with our setting, else the one that the manifest describes, else any on this node."""
        found = programs.called("kube-apiserver") or programs.called("hyperkube")
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

    def _has_our_egress_config(self, program: Program) -> bool:
        paths = self.site.plan.paths
        seen_as = paths.egress_config_seen_by_apiserver
        return self._means(program, "egress-selector-config-file", seen_as, paths.egress_config)

    @property
    def egress_config_paths(self) -> set[str]:
        """As the kube-apiserver sees it; below another root, paths are that root's."""
        seen = self.site.plan.paths.egress_config_seen_by_apiserver
        return {seen, str(self.site.host.path(seen))}

    def _manifest_flags(self) -> set[str]:
        words = self.manifest_words() or []
        return {word for word in words if word.startswith("--") and not word.startswith(_OURS)}

    def manifest_words(self) -> list[str] | None:
        """The command line in the static pod's manifest; None if there is none that can be read."""
        path = self.site.plan.paths.apiserver_pod
        data = self.site.host.read(path)
        try:
            return apiserver_manifest.words(data, path) if data else None
        except OperatorError:
            return None

    def apiserver_setting(self, flag: str) -> str | None:
        """What the kube-apiserver was told: by its command line, or by OpenShift's configuration."""
        assert self.apiserver
        said = self.apiserver.value(flag)
        return said if said is not None else self._openshift_setting(flag)

    def _openshift_setting(self, flag: str) -> str | None:
        path = self.site.plan.apiserver_config
        data = self.site.host.read(path) if self.site.plan.flavour is Flavour.OPENSHIFT else None
        given: Any = at(mapping(data, path), "apiServerArguments", flag) if data else None
        return str(given[-1]) if isinstance(given, list) and given else None
