"""The names that OpenShift's installer gives to security groups and network tags, per release.

The names changed when the installer replaced Terraform by Cluster API, on each cloud in another release.
Where the release is not known, the cloud is asked for all of them: a cluster has one.
"""

from __future__ import annotations

from dataclasses import dataclass

from bootbridge.bootstrap.plan.plan import Plan, Platform

Release = tuple[int, int]


@dataclass(frozen=True)
class InstallerName:
    """A name, and the releases whose installer creates it; `until` is the last of them."""

    suffix: str
    since: Release = (4, 0)
    until: Release = (99, 0)

    def exists_in(self, release: Release | None) -> bool:
        return release is None or self.since <= release <= self.until


# The newest first. Each tuple has the names of one group or tag.
_CONTROL_PLANE = {
    # Before 4.16 only the tag `Name` of the group: Terraform generated the group's own name.
    Platform.AWS: (InstallerName("controlplane", since=(4, 16)), InstallerName("master-sg", until=(4, 15))),
    Platform.GCP: (InstallerName("control-plane", since=(4, 17)), InstallerName("master", until=(4, 16))),
    # From 4.17 to 4.20 the installer used the default group of the VPC, which has no name of its own.
    Platform.POWERVS: (
        InstallerName("sg-control-plane", since=(4, 21)),
        InstallerName("ocp-sec-group", until=(4, 16)),
    ),
}
_WORKERS = {
    Platform.AWS: (InstallerName("node", since=(4, 16)), InstallerName("worker-sg", until=(4, 15))),
    Platform.GCP: (InstallerName("worker"),),
}
_CLUSTER = {Platform.IBMCLOUD: (InstallerName("sg-cluster-wide"),)}


TABLES = {"control plane": _CONTROL_PLANE, "workers": _WORKERS, "all nodes": _CLUSTER}


def control_plane_names(plan: Plan) -> tuple[str, ...]:
    """Returns the possible names of the control plane's group or tag; none: this release has none."""
    return _names(plan, _CONTROL_PLANE[plan.platform])


def worker_names(plan: Plan) -> tuple[str, ...]:
    """Returns the possible names of the workers' group or tag."""
    return _names(plan, _WORKERS[plan.platform])


def cluster_names(plan: Plan) -> tuple[str, ...]:
    """Returns the possible names of the group that contains all nodes."""
    return _names(plan, _CLUSTER[plan.platform])


def _names(plan: Plan, names: tuple[InstallerName, ...]) -> tuple[str, ...]:
    release = plan.cloud.minor_release
    return tuple(f"{plan.infra_id}-{name.suffix}" for name in names if name.exists_in(release))
