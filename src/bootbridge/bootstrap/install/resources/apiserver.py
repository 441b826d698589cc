"""The egress setting in the kube-apiserver's static pod manifest."""

from __future__ import annotations

from bootbridge.bootstrap.install.context import InstallContext
from bootbridge.bootstrap.install.resources.resource import ApplyResult, Resource, ResourceChange
from bootbridge.bootstrap.render import apiserver_manifest, kubeadm
from bootbridge.bootstrap.render.apiserver_manifest import EgressSetting
from bootbridge.bootstrap.render.egress_selector import FLAG
from bootbridge.common.files import Asset
from bootbridge.common.yaml_text import to_yaml


class ApiserverSetting(Resource):
    """Edits the manifest; the kubelet then restarts the kube-apiserver with, or without, the flag."""

    name, title = "apiserver", "kube-apiserver setting"

    def __init__(self, context: InstallContext) -> None:
        self.context = context
        self.host = context.host
        self.setting = apiserver_manifest.egress_setting(context.plan)
        self.manifest = f"{context.plan.paths.static_pods}/kube-apiserver.yaml"
        self.original = f"{context.plan.paths.state}/kube-apiserver.original.yaml"
        self.kubeadm_patch = f"{context.plan.paths.state}/kubeadm-cluster-configuration.yaml"

    @property
    def is_static_pod(self) -> bool:
        return self.host.exists(self.manifest)

    def find(self) -> list[str]:
        data = self.host.read(self.manifest)
        settings = apiserver_manifest.find_setting(data, self._ours(), self.manifest) if data else []
        found = [f"{self.manifest}: {text}" for text in settings] + self.host.temporary_files(self.manifest)
        return found + [f"process {pid} (kube-apiserver with the setting)" for pid in self._pids()]

    def preview(self) -> ApplyResult:
        data = self.host.read(self.manifest)
        if data is None:
            return self._preview_patch()
        changed = apiserver_manifest.add(data, self.setting, self.manifest) != data
        return ApplyResult(ResourceChange.CHANGED, self.setting.arguments[0]) if changed else _SAME

    def apply(self) -> ApplyResult:
        result = self.preview()
        data = self.host.read(self.manifest)
        if data is None:
            self.host.write(self.kubeadm_patch, self._patch())
        elif result.change is ResourceChange.CHANGED:
            self.host.write(self.original, Asset(self._bare(data), 0o600))
            self._write(apiserver_manifest.add(data, self.setting, self.manifest))
        return result

    def _preview_patch(self) -> ApplyResult:
        """There is no manifest yet: the setting is written as a configuration for `kubeadm init`."""
        detail = f"merge {self.kubeadm_patch} into your kubeadm configuration before `kubeadm init`"
        if self.host.matches(self.kubeadm_patch, self._patch()):
            return ApplyResult(ResourceChange.UNCHANGED, detail)
        return ApplyResult(ResourceChange.CREATED, detail)

    def _patch(self) -> Asset:
        return Asset(to_yaml(kubeadm.patch(self.context.plan)), 0o644)

    def unready_reason(self) -> str:
        if not self.is_static_pod:
            return ""
        if not self._pids():
            return "the kubelet has not restarted the kube-apiserver yet"
        return self._unreachable_reason()

    def remove(self) -> None:
        data = self.host.read(self.manifest)
        if data is not None:
            self._write(self._without(data))
        for path in self.host.temporary_files(self.manifest):
            self.host.remove(path)

    def removal_blocker(self, name: str) -> str:
        if name.startswith("process"):
            return "the kubelet has not restarted it: is the kubelet running?"
        return super().removal_blocker(name)

    def _without(self, data: bytes) -> bytes:
        """Returns the original, byte for byte, unless the manifest has been changed since."""
        original = self.host.read(self.original)
        if original and apiserver_manifest.add(original, self.setting, self.manifest) == data:
            return original
        return self._bare(data)

    def _bare(self, data: bytes) -> bytes:
        return apiserver_manifest.remove(data, self._ours(), self.manifest)

    def _ours(self) -> EgressSetting:
        """What `down` may remove: not a flag that the manifest had before `up`."""
        original = self.host.read(self.original)
        if original:
            return self.setting.without(apiserver_manifest.command_line(original, self.original))
        if self.host.exists(self.kubeadm_patch):
            return self.setting
        return self.setting.without(self.setting.arguments[1:])

    def _write(self, data: bytes) -> None:
        if data != self.host.read(self.manifest):
            self.host.write(self.manifest, Asset(data, self.host.mode(self.manifest)))

    def _pids(self) -> list[int]:
        return self.host.processes_with_argument(self._argument_seen)

    @property
    def _argument_seen(self) -> str:
        """The flag as it is on the command line; below another root, with that root's path."""
        path = self.context.plan.paths.egress_config_seen_by_apiserver
        return f"--{FLAG}={self.host.path(path)}"

    def _unreachable_reason(self) -> str:
        cluster = self.context.cluster
        return cluster.probe() if cluster else ""


_SAME = ApplyResult(ResourceChange.UNCHANGED)
