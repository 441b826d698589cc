"""The resources on the node: plan record, egress configuration, certificates, socket, static pod."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import replace

from bootbridge.bootstrap.install.context import InstallContext
from bootbridge.bootstrap.install.resources.resource import ApplyResult, Resource, ResourceChange
from bootbridge.bootstrap.machine import certificates
from bootbridge.bootstrap.plan import record
from bootbridge.bootstrap.render import egress_selector, manifests
from bootbridge.common.files import Asset, Tree
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ApiRequestError, ApiUnreachableError
from bootbridge.kube.kinds import POD

PUBLIC, PRIVATE = 0o755, 0o700


class FileResource(Resource):
    """Files with known content; missing directories are created and recorded."""

    directory_mode = PUBLIC

    def __init__(self, context: InstallContext) -> None:
        self.context = context
        self.host = context.host
        self.paths = context.plan.paths

    @abstractmethod
    def wanted(self) -> Tree:
        """Returns the files that the plan requires."""

    @abstractmethod
    def file_paths(self) -> list[str]:
        """Returns their paths, which do not depend on their content."""

    def find(self) -> list[str]:
        present = [path for path in self.file_paths() if self.host.exists(path)]
        return present + [left for path in self.file_paths() for left in self.host.temporary_files(path)]

    def preview(self) -> ApplyResult:
        if not any(self.host.exists(path) for path in self.file_paths()):
            return ApplyResult(ResourceChange.CREATED)
        same = all(self.host.matches(path, asset) for path, asset in self.wanted().items())
        return ApplyResult(ResourceChange.UNCHANGED if same else ResourceChange.CHANGED)

    def apply(self) -> ApplyResult:
        result = self.preview()
        if result.change is not ResourceChange.UNCHANGED:
            for path, asset in self.wanted().items():
                self.write(path, asset)
        return result

    def write(self, path: str, asset: Asset) -> None:
        if not self.host.matches(path, asset):
            folder = path.rpartition("/")[0]
            self.context.record_directories(folder)
            self.host.make_directory(folder, self.directory_mode)
            self.host.write(path, asset)

    def remove(self) -> None:
        for path in self.find():
            self.host.remove(path)


class PlanRecordFile(FileResource):
    """The state directory with plan and install record: created first, removed last."""

    name, title = "record", "plan record"

    def wanted(self) -> Tree:
        return {self.paths.plan_record: Asset(record.dump(self.context.plan))}

    def file_paths(self) -> list[str]:
        return [self.paths.plan_record]

    def find(self) -> list[str]:
        created = [path for path in self.context.record().directories if self._is_empty(path)]
        return self.host.files_below(self.paths.state) + created

    def apply(self) -> ApplyResult:
        above = self.host.missing_directories(self.paths.state)[:-1]
        self.host.make_directory(self.paths.state, PUBLIC)
        record = self.context.record().with_directories(above)
        self.context.save(replace(record, kubeconfig=self.context.kubeconfig or record.kubeconfig))
        return super().apply()

    def remove(self) -> None:
        """Removes recorded directories, then the state directory, then the directories that contain it."""
        created = sorted(self.context.record().directories, key=len, reverse=True)
        above = [path for path in created if f"{self.paths.state}/".startswith(f"{path}/")]
        for path in created:
            if path not in above:
                self.host.remove_directory(path)
        self.host.remove_tree(self.paths.state)
        for path in above:
            self.host.remove_directory(path)

    def _is_empty(self, path: str) -> bool:
        found = self.host.path(path)
        return found.is_dir() and not any(found.iterdir()) and path != self.paths.state


class EgressConfig(FileResource):
    name, title = "egress-config", "egress configuration"

    def wanted(self) -> Tree:
        return {
            self.paths.egress_config: Asset(
                manifests.to_yaml(egress_selector.configuration(self.context.plan)), 0o644
            )
        }

    def file_paths(self) -> list[str]:
        return [self.paths.egress_config]

    def remove(self) -> None:
        super().remove()
        folder = self.paths.egress_config.rpartition("/")[0]
        if folder.startswith(f"{self.paths.state}/"):
            self.host.remove_directory(folder)


class CertificateFiles(FileResource):
    """All are replaced as soon as one does not match the plan or expires soon."""

    name, title = "certificates", "certificates"
    directory_mode = PRIVATE

    def wanted(self) -> Tree:
        held = self.context.certificates()
        if held is None or self._why_renew():
            held = certificates.issue(self.context.plan, self.context.addresses)
        return certificates.files(self.context.plan, held)

    def file_paths(self) -> list[str]:
        paths = self.paths
        return [paths.ca_cert, paths.server_key, paths.server_cert, paths.agent_key, paths.agent_cert]

    def preview(self) -> ApplyResult:
        if not any(self.host.exists(path) for path in self.file_paths()):
            return ApplyResult(ResourceChange.CREATED, self._names())
        why = self._why_renew() or self._wrong_mode()
        return (
            ApplyResult(ResourceChange.CHANGED, f"{why}; now for {self._names()}")
            if why
            else ApplyResult(ResourceChange.UNCHANGED)
        )

    def find(self) -> list[str]:
        others = (self.paths.tls, self.paths.apiserver_address)
        return [path for path in self.host.files_below(self.paths.tls) if path not in others] or (
            [self.paths.tls] if self.host.exists(self.paths.tls) else []
        )

    def remove(self) -> None:
        self.host.remove_tree(self.paths.tls)

    def _why_renew(self) -> str:
        return certificates.renewal_reason(
            self.context.certificates(), self.context.plan, self.context.addresses, self.context.now
        )

    def _wrong_mode(self) -> str:
        keys = (self.paths.server_key, self.paths.agent_key)
        opened = [path for path in keys if self.host.mode(path) != certificates.KEY_MODE]
        return f"{opened[0]} was readable by others" if opened else ""

    def _names(self) -> str:
        return ", ".join(map(str, self.context.addresses))


class ApiserverAddress(FileResource):
    """Address and CA of the kube-apiserver, without credentials: the server checks agents' tokens there."""

    name, title = "apiserver-address", "kube-apiserver address"
    in_cluster = True  # known once there is a cluster
    directory_mode = PRIVATE

    def wanted(self) -> Tree:
        if self.context.cluster is None:
            raise OperatorError("no access to the cluster", subject="--kubeconfig")
        text = json.dumps(self.context.cluster.address_only(), indent=1)
        return {self.paths.apiserver_address: Asset(f"{text}\n".encode(), certificates.CERT_MODE)}

    def file_paths(self) -> list[str]:
        return [self.paths.apiserver_address]


class SocketDirectory(Resource):
    """`up` creates the directory, the server creates the socket; `down` removes both."""

    name, title = "socket", "socket directory"

    def __init__(self, context: InstallContext) -> None:
        self.context = context
        self.host = context.host
        self.paths = context.plan.paths

    def find(self) -> list[str]:
        found = [self.paths.socket] if self.host.exists(self.paths.socket) else []
        if self._directory_is_ours and self.host.exists(self.paths.socket_directory):
            found.append(self.paths.socket_directory)
        return found

    def preview(self) -> ApplyResult:
        exists = self.host.exists(self.paths.socket_directory)
        return ApplyResult(ResourceChange.UNCHANGED if exists else ResourceChange.CREATED)

    def apply(self) -> ApplyResult:
        result = self.preview()
        self.context.record_directories(self.paths.socket_directory)
        self.host.make_directory(self.paths.socket_directory, PUBLIC)
        return result

    def remove(self) -> None:
        self.host.remove(self.paths.socket)
        if self._directory_is_ours:
            self.host.remove_directory(self.paths.socket_directory)

    def removal_blocker(self, name: str) -> str:
        if name == self.paths.socket_directory:
            return "directory not empty: it contains files that are not ours"
        return (
            "the server still listens on it"
            if self.host.socket_accepts(name)
            else super().removal_blocker(name)
        )

    @property
    def _directory_is_ours(self) -> bool:
        """On an OpenShift bootstrap node bootkube owns the directory."""
        return "bootbridge" in self.paths.socket_directory


class ServerPod(FileResource):
    """The static pod, the process that the kubelet starts from it, and its mirror pod in the API."""

    name, title = "static-pod", "server static pod"

    def wanted(self) -> Tree:
        values = self.context.values()
        if values is None:
            raise OperatorError("certificates missing", subject=self.paths.tls, hint="run `bootbridge up`")
        pod = manifests.server_pod(self.context.plan, values)
        return {self.paths.server_pod: Asset(manifests.to_yaml(pod), 0o600)}

    def file_paths(self) -> list[str]:
        return [self.paths.server_pod]

    def find(self) -> list[str]:
        pids = self.context.server_pids()
        found = super().find() + [f"process {pid} (proxy-server)" for pid in pids]
        port = self.context.plan.ports.agent
        return found + ([f"TCP port {port}"] if self.host.listens(port, pids) else []) + self._mirrors()

    def unready_reason(self) -> str:
        """Waits for healthy only: the server is ready when its first agent is connected."""
        status, text = self.host.http_get(self.context.plan.ports.server_health, "/healthz")
        if status == 200:
            return ""
        reason = text.decode("utf-8", "replace").strip()[:200]
        return f"no healthy answer from the server on port {self.context.plan.ports.server_health}: {reason}"

    def remove(self) -> None:
        for path in super().find():
            self.host.remove(path)

    def removal_blocker(self, name: str) -> str:
        if name.startswith("/"):
            return super().removal_blocker(name)
        return "the kubelet has not stopped it: is the kubelet running?"

    def _mirrors(self) -> list[str]:
        plan, cluster = self.context.plan, self.context.cluster
        if cluster is None:
            return []
        selector = ",".join(f"{key}={value}" for key, value in plan.server_labels.items())
        try:
            pods = cluster.list(POD, plan.server_pod_namespace, selector)
        except (ApiRequestError, ApiUnreachableError):
            return []  # the process decides; an unreachable API server is reported elsewhere
        return [f"Pod {plan.server_pod_namespace}/{pod['metadata']['name']}" for pod in pods]
