"""The steps that bring a lab up, in order, each with a name that a person can follow."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootbridge.bootstrap.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.lab.components import Components
from bootbridge.lab.control_plane import IMAGE as KUBERNETES_IMAGE
from bootbridge.lab.credentials import Credentials
from bootbridge.lab.images import TUNNEL_IMAGE, WEBHOOK_IMAGE, Images
from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import LabNode
from bootbridge.lab.node_runtime import PAUSE_IMAGE

READY_SECONDS = 180.0
CALL_SECONDS = 20.0


@dataclass(frozen=True)
class Builder:
    """Brings one lab up; every step may be looked at through `progress`."""

    lab: Lab
    components: Components
    images: Images
    progress: Progress
    tunnel_images: tuple[str, ...] = (TUNNEL_IMAGE,)

    def bring_up(self) -> None:
        """A bootstrap control plane that has no way to the pods, and cluster nodes that have joined it."""
        credentials = Credentials.create()
        layout = self.lab.layout
        with self._step("images"):
            for reference in (PAUSE_IMAGE, KUBERNETES_IMAGE, WEBHOOK_IMAGE, *self.tunnel_images):
                self.images.archive(reference)
        self.lab.begin()
        with self._step("machines"):
            self.lab.make_machines()
        with self._step("bootstrap node"):
            self._start_bootstrap(credentials)
        for node in layout.cluster_nodes:
            with self._step(node.name):
                self._start_cluster_node(node, credentials)
        with self._step("API server"):
            self._wait(self._apiserver_silent)
        with self._step("nodes ready"):
            self._wait(self._nodes_unready)

    def _start_bootstrap(self, credentials: Credentials) -> None:
        node = self.lab.layout.bootstrap
        wanted = (PAUSE_IMAGE, KUBERNETES_IMAGE, *self.tunnel_images)
        self.lab.start_etcd(self.components)
        self.lab.start_runtime(node, self.components, self.images, wanted)
        self.lab.start_control_plane(credentials, None)
        self.lab.start_kubelet(node, self.components, standalone=True)

    def _start_cluster_node(self, node: LabNode, credentials: Credentials) -> None:
        wanted = (PAUSE_IMAGE, WEBHOOK_IMAGE, *self.tunnel_images)
        self.lab.start_runtime(node, self.components, self.images, wanted)
        self.lab.write(node.name, credentials.kubelet(node, self.lab.layout.bootstrap))
        # For a production control plane later: its certificates are made while the authority is there.
        self.lab.write(node.name, credentials.control_plane(node, self.lab.layout))
        self.lab.start_kubelet(node, self.components, standalone=False)

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        self.progress.begin(title)
        try:
            yield
        except BaseException as error:
            self.progress.end(str(error) or type(error).__name__, good=False)
            raise
        self.progress.end("")

    def _wait(self, reason: Any) -> None:
        if still := self.progress.wait(reason, READY_SECONDS):
            raise OperatorError(
                f"not within {READY_SECONDS:.0f} s: {still}", hint=f"see {self.lab.directory}/logs"
            )

    def _apiserver_silent(self) -> str:
        done = self._kubectl("get", "--raw", "/readyz")
        return "" if done.returncode == 0 else "the bootstrap kube-apiserver is not ready"

    def _nodes_unready(self) -> str:
        done = self._kubectl("get", "nodes", "-o", "json")
        if done.returncode:
            return "the bootstrap kube-apiserver does not answer"
        ready = {node["metadata"]["name"] for node in json.loads(done.stdout)["items"] if _is_ready(node)}
        missing = [node.name for node in self.lab.layout.cluster_nodes if node.name not in ready]
        return f"{', '.join(missing)} not ready" if missing else ""

    def _kubectl(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.lab.kubectl(self.components, *words),
            capture_output=True,
            timeout=CALL_SECONDS,
            stdin=subprocess.DEVNULL,
        )


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def konnectivity_programs() -> Path | None:
    """The Go originals, where `make peers` has put them."""
    path = Path(__file__).resolve().parents[3] / "build" / "peers"
    return path if (path / "proxy-server").exists() else None
