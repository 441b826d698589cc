"""Reads what the tunnel needs to know from an OpenShift install-config.yaml, naming the field at fault."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from bootbridge.bootstrap.plan.plan import ClusterNetwork, IPNetwork, Networking, Platform
from bootbridge.common.yaml_text import YAML_ERRORS
from bootbridge.errors import OperatorError

HOST_PREFIX_V4, HOST_PREFIX_V6 = 23, 64
_POWERVS_MACHINE_NETWORK = "192.168.0.0/24"


@dataclass(frozen=True)
class InstallConfig:
    """The subset that decides about the tunnel; everything else in the file is the installer's."""

    cluster_name: str
    platform: Platform
    networks: Networking
    fips: bool
    bootstrap_in_place: bool
    control_plane_replicas: int
    feature_set: str


def parse(text: str | bytes, name: str = "install-config.yaml") -> InstallConfig:
    """Read an install-config; `name` is what errors call the file."""
    return _Reader(name).install_config(_document(text, name))


def _document(text: str | bytes, name: str) -> Mapping[str, Any]:
    try:
        document = yaml.safe_load(text)
    except YAML_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = getattr(error, "problem", None) or "it cannot be read"
        raise OperatorError(f"no YAML{where}: {what}", subject=name) from error
    if not isinstance(document, dict):
        raise OperatorError("holds no mapping", subject=name, hint="give the installer's install-config.yaml")
    return document


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name

    def install_config(self, document: Mapping[str, Any]) -> InstallConfig:
        if document.get("apiVersion") != "v1":
            raise self._wrong("apiVersion", f"{document.get('apiVersion')!r} is unknown", "v1 is read")
        platform = self._platform(self._mapping(document, "platform"))
        return InstallConfig(
            cluster_name=self._text(self._mapping(document, "metadata"), "name", "metadata."),
            platform=platform,
            networks=self._networks(self._mapping(document, "networking"), platform),
            fips=self._flag(document, "fips"),
            bootstrap_in_place=bool(self._mapping(document, "bootstrapInPlace").get("installationDisk")),
            control_plane_replicas=self._replicas(self._mapping(document, "controlPlane")),
            feature_set=self._text(document, "featureSet", ""),
        )

    def _platform(self, given: Mapping[str, Any]) -> Platform:
        known = ", ".join(Platform)
        if len(given) != 1:
            text = f"{len(given)} platforms are given, one is needed"
            raise self._wrong("platform", text, f"one of: {known}")
        (name,) = given
        try:
            return Platform(name)
        except ValueError:
            raise self._wrong("platform", f"unknown platform {name!r}", f"one of: {known}") from None

    def _networks(self, given: Mapping[str, Any], platform: Platform) -> Networking:
        machine_default = (_POWERVS_MACHINE_NETWORK,) if platform is Platform.POWERVS else ()
        machine = [
            self._network(entry, f"networking.machineNetwork[{index}].cidr")
            for index, entry in enumerate(self._cidrs(given, "machineNetwork") or machine_default)
        ]
        service = [
            self._network(entry, f"networking.serviceNetwork[{index}]")
            for index, entry in enumerate(self._list(given, "serviceNetwork"))
        ]
        defaults = Networking()
        return Networking(
            machine=tuple(machine) or defaults.machine,
            cluster=self._cluster_networks(given) or defaults.cluster,
            service=tuple(service) or defaults.service,
        )

    def _cidrs(self, given: Mapping[str, Any], key: str) -> list[Any]:
        if key == "machineNetwork" and "machineCIDR" in given and key not in given:
            return [given["machineCIDR"]]  # the deprecated spelling
        return [entry.get("cidr") if isinstance(entry, dict) else entry for entry in self._list(given, key)]

    def _cluster_networks(self, given: Mapping[str, Any]) -> tuple[ClusterNetwork, ...]:
        found = []
        for index, entry in enumerate(self._list(given, "clusterNetwork")):
            field = f"networking.clusterNetwork[{index}]"
            if not isinstance(entry, dict):
                raise self._wrong(field, "is no mapping", "write cidr and hostPrefix")
            network = self._network(entry.get("cidr"), f"{field}.cidr")
            prefix = entry.get("hostPrefix") or (HOST_PREFIX_V4 if network.version == 4 else HOST_PREFIX_V6)
            if not isinstance(prefix, int) or not network.prefixlen <= prefix <= network.max_prefixlen:
                raise self._wrong(f"{field}.hostPrefix", f"{prefix!r} does not fit into {network}")
            found.append(ClusterNetwork(network, prefix))
        return tuple(found)

    def _network(self, value: object, field: str) -> IPNetwork:
        try:
            if isinstance(value, str):
                return ipaddress.ip_network(value)
        except ValueError:
            pass
        raise self._wrong(field, f"{value!r} is no network", "write it like 10.0.0.0/16 or fd00::/48")

    def _replicas(self, given: Mapping[str, Any]) -> int:
        replicas = given.get("replicas", 3)
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
            raise self._wrong("controlPlane.replicas", f"{replicas!r} is no count of at least 1")
        return replicas

    def _mapping(self, given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = given.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(key, "is no mapping")
        return value

    def _list(self, given: Mapping[str, Any], key: str) -> Sequence[Any]:
        value = given.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(f"networking.{key}", "is no list")
        return value

    def _text(self, given: Mapping[str, Any], key: str, prefix: str) -> str:
        value = given.get(key, "")
        if not isinstance(value, str):
            raise self._wrong(f"{prefix}{key}", f"{value!r} is no text")
        return value

    def _flag(self, given: Mapping[str, Any], key: str) -> bool:
        value = given.get(key, False)
        if not isinstance(value, bool):
            raise self._wrong(key, f"{value!r} is neither true nor false")
        return value

    def _wrong(self, field: str, text: str, hint: str = "") -> OperatorError:
        return OperatorError(text, subject=f"{self._name}: {field}", hint=hint)
