"""The fields of OpenShift's install-config.yaml that the tunnel needs; all others are the installer's."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Annotated, Any, Literal

from pydantic import Field

from bootbridge.bootstrap.plan.cloud import CloudSettings, read_settings
from bootbridge.bootstrap.plan.plan import ClusterNetwork, IPNetwork, Networking, Platform
from bootbridge.common import documents
from bootbridge.common.documents import FieldError, checked
from bootbridge.errors import OperatorError

HOST_PREFIX_V4, HOST_PREFIX_V6 = 23, 64
# Former platforms of the installer.
_RETIRED_PLATFORMS = {"alibabacloud", "libvirt"}
_MACHINE_NETWORKS = {Platform.POWERVS: (IPv4Network("192.168.0.0/24"),)}


@dataclass(frozen=True)
class MachineNetworkEntry:
    cidr: IPNetwork


@dataclass(frozen=True)
class ClusterNetworkEntry:
    cidr: IPNetwork
    host_prefix: int = 0

    def __post_init__(self) -> None:
        prefix, least, most = self.network.host_prefix, self.cidr.prefixlen, self.cidr.max_prefixlen
        if not least <= prefix <= most:
            hint = f"from {least} to {most}"
            raise FieldError(f"invalid prefix length {prefix}", subject="hostPrefix", hint=hint)

    @property
    def network(self) -> ClusterNetwork:
        default = HOST_PREFIX_V4 if self.cidr.version == 4 else HOST_PREFIX_V6
        return ClusterNetwork(self.cidr, self.host_prefix or default)


@dataclass(frozen=True)
class NetworkingSection:
    machine_network: tuple[MachineNetworkEntry | IPNetwork, ...] = ()
    # The deprecated name of machineNetwork.
    machine_cidr: IPNetwork | None = None
    cluster_network: tuple[ClusterNetworkEntry, ...] = ()
    service_network: tuple[IPNetwork, ...] = ()

    @property
    def machine(self) -> tuple[IPNetwork, ...]:
        given = [
            each.cidr if isinstance(each, MachineNetworkEntry) else each for each in self.machine_network
        ]
        return tuple(given) or ((self.machine_cidr,) if self.machine_cidr else ())


@dataclass(frozen=True)
class BootstrapInPlace:
    installation_disk: str = ""


def _single(platform: dict[Platform, Any]) -> dict[Platform, Any]:
    if len(platform) != 1:
        hint = f"one of: {', '.join(Platform)}"
        raise FieldError(f"{len(platform)} platforms given, exactly one is required", hint=hint)
    return platform


@dataclass(frozen=True)
class InstallConfig:
    __pydantic_config__ = documents.FOREIGN_CONFIG

    api_version: Literal["v1"]
    platforms: Annotated[dict[Platform, Any], Field(alias="platform"), checked(_single)] = field(repr=False)
    networking: NetworkingSection = NetworkingSection()
    bootstrap_in_place: BootstrapInPlace = BootstrapInPlace()

    @property
    def is_in_place(self) -> bool:
        """Whether the bootstrap runs on the cluster's only machine, where no tunnel is needed."""
        return bool(self.bootstrap_in_place.installation_disk)

    @property
    def platform(self) -> Platform:
        return next(iter(self.platforms))

    @property
    def cloud(self) -> CloudSettings:
        """Where the cluster is in its cloud, and who manages the firewall there."""
        return read_settings(self.platform, self.platforms[self.platform])

    @property
    def machine_network_is_certain(self) -> bool:
        """Whether nodes are in the machine network: the installer checks it, or the operator wrote it."""
        return bool(self.networking.machine) or self.platform not in (Platform.NONE, Platform.EXTERNAL)

    @property
    def networks(self) -> Networking:
        """The networks, with the installer's defaults for those that are not given."""
        given, default = self.networking, Networking()
        return Networking(
            machine=given.machine or _MACHINE_NETWORKS.get(self.platform, default.machine),
            cluster=tuple(each.network for each in given.cluster_network) or default.cluster,
            service=given.service_network or default.service,
        )


def parse(text: str | bytes, name: str = "install-config.yaml") -> InstallConfig:
    """Loads an install-config; `name` is the file in errors."""
    document = documents.without_nulls(documents.parse(text, name))
    platforms = document.get("platform") if isinstance(document, dict) else None
    for retired in _RETIRED_PLATFORMS & set(platforms if isinstance(platforms, dict) else ()):
        hint = "current installers do not support it; use platform none or external"
        raise OperatorError(f"retired platform {retired!r}", subject=f"{name}: platform", hint=hint)
    config = documents.convert(InstallConfig, document, name)
    try:
        config.cloud  # noqa: B018 # raises if a value is invalid
    except OperatorError as error:
        raise documents.named(error, name) from None
    return config
