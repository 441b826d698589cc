"""The egress setting in the ClusterConfiguration that kubeadm keeps in the cluster.

`kubeadm init` with our configuration stores it, and every later `kubeadm upgrade` or control-plane join
would restore the setting after the tunnel was removed. Only `down` handles it.
"""

from __future__ import annotations

from typing import Any

import yaml

from bootbridge.bootstrap.install.resources.cluster import ClusterResource
from bootbridge.bootstrap.install.resources.resource import ApplyResult, ResourceChange
from bootbridge.bootstrap.render import apiserver_manifest
from bootbridge.common.yaml_text import to_yaml
from bootbridge.errors import OperatorError
from bootbridge.kube.kinds import CONFIG_MAP
from bootbridge.kube.objects import Ref
from bootbridge.kube.requests import Json

KEY = "ClusterConfiguration"


class KubeadmConfig(ClusterResource):
    """The removal edits the ConfigMap; it does not delete it."""

    name, title, kind = "apiserver", "kubeadm configuration", CONFIG_MAP
    installed_by_up = False

    def manifest(self, values: object) -> Json:
        raise NotImplementedError("kubeadm writes it")

    def ref(self) -> Ref:
        return Ref(CONFIG_MAP, "kubeadm-config", "kube-system")

    def find(self) -> list[str]:
        return [f"{self.ref()}: apiServer of {KEY}"] if self._with_setting() else []

    def preview(self) -> ApplyResult:
        return ApplyResult(ResourceChange.UNCHANGED)

    def apply(self) -> ApplyResult:
        return self.preview()

    def remove(self) -> None:
        held = self._with_setting()
        if held:
            text = to_yaml(self._without(_configuration(held))).decode()
            version = {"resourceVersion": held["metadata"].get("resourceVersion")}
            self.cluster.merge(self.ref(), {"metadata": version, "data": {KEY: text}})

    def removal_blocker(self, name: str) -> str:
        return "kubeadm still holds the setting, and would restore it at the next upgrade"

    def _with_setting(self) -> Json | None:
        held = self.cluster.get(self.ref())
        if held is None:
            return None
        configuration = _configuration(held)
        return held if self._without(configuration) != configuration else None

    def _without(self, configuration: dict[str, Any]) -> dict[str, Any]:
        """Returns it without our flags and volumes; both flags are ours if the egress setting is."""
        setting = apiserver_manifest.egress_setting(self.plan)
        server = dict(configuration.get("apiServer") or {})
        flags = _flags(server.get("extraArgs"))
        if setting.arguments[0] not in flags:
            return configuration
        _replace(server, "extraArgs", _kept_flags(server.get("extraArgs"), setting.arguments))
        volumes = server.get("extraVolumes") or []
        _replace(server, "extraVolumes", [v for v in volumes if v.get("hostPath") not in setting.paths])
        rest = {**configuration, "apiServer": server}
        if not server:
            del rest["apiServer"]
        return rest


def _configuration(held: Json) -> dict[str, Any]:
    try:
        document = yaml.safe_load((held.get("data") or {}).get(KEY) or "")
    except yaml.YAMLError as error:
        raise OperatorError(
            f"invalid YAML in {KEY}", subject="ConfigMap kube-system/kubeadm-config"
        ) from error
    return document if isinstance(document, dict) else {}


def _flags(given: Any) -> list[str]:
    """Reads both formats: v1beta3 has a map, v1beta4 a list of names and values."""
    if isinstance(given, dict):
        return [f"--{name}={value}" for name, value in given.items()]
    return [f"--{entry.get('name')}={entry.get('value')}" for entry in given or ()]


def _kept_flags(given: Any, ours: tuple[str, ...]) -> Any:
    if isinstance(given, dict):
        return {name: value for name, value in given.items() if f"--{name}={value}" not in ours}
    return [entry for entry in given or () if f"--{entry.get('name')}={entry.get('value')}" not in ours]


def _replace(owner: dict[str, Any], key: str, value: Any) -> None:
    owner.pop(key, None)
    if value:
        owner[key] = value
