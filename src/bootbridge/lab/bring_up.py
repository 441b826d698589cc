"""The steps of `lab up`, in order, with their progress."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.lab import inotify, network
from bootbridge.lab.components import Components
from bootbridge.lab.control_plane import IMAGE as KUBERNETES_IMAGE
from bootbridge.lab.credentials import Credentials
from bootbridge.lab.images import TUNNEL_IMAGE, WEBHOOK_IMAGE, Images
from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import LabNode
from bootbridge.lab.node_runtime import PAUSE_IMAGE

READY_SECONDS = 180.0
JOB_SECONDS = 600.0

Jobs = dict[str, Callable[[], None]]


@dataclass(frozen=True)
class LabBuilder:
    """Brings one lab up and reports each step to `progress`."""

    lab: Lab
    components: Components
    images: Images
    progress: Progress
    tunnel_images: tuple[str, ...] = (TUNNEL_IMAGE,)
    credentials: Credentials = field(default_factory=Credentials.create)

    def bring_up(self) -> None:
        """Starts a bootstrap control plane without a route to the pods, and cluster nodes that join it."""
        self.lab.check_not_in_use()
        network.check_ipv6(self.lab.layout)
        inotify.check_available(self.lab.layout)
        self._together("images", self._image_builds())
        self.lab.create_directory()
        with self._step("machines"):
            self.lab.create_machines()
        starts: Jobs = {"bootstrap": self._start_bootstrap}
        for node in self.lab.layout.cluster_nodes:
            starts[node.name] = partial(self._start_cluster_node, node)
        self._together("nodes", starts)
        with self._step("API server"):
            self._wait(self._apiserver_problem)
        with self._step("nodes ready"):
            self._wait(self._nodes_problem)
        self.lab.mark_as_up()

    def _image_builds(self) -> Jobs:
        """Two jobs: the images with a Python runtime share one layer, which one job builds once."""
        pythons = [WEBHOOK_IMAGE, TUNNEL_IMAGE]
        others = [
            PAUSE_IMAGE,
            KUBERNETES_IMAGE,
            *(each for each in self.tunnel_images if each not in pythons),
        ]
        return {
            "tunnel and webhook": lambda: self.images.prepare(pythons),
            "Kubernetes": lambda: self.images.prepare(others),
        }

    def _start_bootstrap(self) -> None:
        """Imports the image of the control plane first: the others are imported while it starts."""
        node = self.lab.layout.bootstrap
        self.lab.start_etcd(self.components)
        self.lab.start_runtime(node, self.components)
        self.lab.start_control_plane(self.credentials, None)
        namespaces = self.lab.namespaces(node.name)
        self.images.import_into(namespaces, PAUSE_IMAGE, KUBERNETES_IMAGE)
        self.lab.start_kubelet(node, self.components, standalone=True)
        self.images.import_into(namespaces, *self.tunnel_images)

    def _start_cluster_node(self, node: LabNode) -> None:
        self.lab.start_runtime(node, self.components)
        self.lab.write(node.name, self.credentials.kubelet(node, self.lab.layout.bootstrap))
        # For a permanent control plane later: the authority's key is not kept.
        self.lab.write(node.name, self.credentials.control_plane(node, self.lab.layout))
        namespaces = self.lab.namespaces(node.name)
        self.images.import_into(namespaces, PAUSE_IMAGE)
        self.lab.start_kubelet(node, self.components, standalone=False)
        self.images.import_into(namespaces, WEBHOOK_IMAGE, *self.tunnel_images)

    def _together(self, title: str, jobs: Jobs) -> None:
        """Runs jobs at the same time as one step; the first failure fails it."""
        with self._step(title):
            running = {name: _in_background(job) for name, job in jobs.items()}
            self._wait(lambda: _unfinished(running), JOB_SECONDS)

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        self.progress.begin(title)
        try:
            yield
        except BaseException as error:
            self.progress.end(str(error) or type(error).__name__, good=False)
            raise
        self.progress.end("")

    def _wait(self, reason: Callable[[], str], seconds: float = READY_SECONDS) -> None:
        if still := self.progress.wait(reason, seconds):
            hint = f"see the logs in {self.lab.directory}/logs"
            raise OperatorError(f"timed out after {seconds:g}s: {still}", hint=hint)

    def _apiserver_problem(self) -> str:
        ready = self.lab.apiserver_is_ready(self.components)
        return "" if ready else "bootstrap kube-apiserver not ready"

    def _nodes_problem(self) -> str:
        done = self.lab.ask(self.components, "get", "nodes", "-o", "json")
        if done.returncode:
            return "bootstrap kube-apiserver does not answer"
        ready = {node["metadata"]["name"] for node in json.loads(done.stdout)["items"] if is_ready(node)}
        missing = [node.name for node in self.lab.layout.cluster_nodes if node.name not in ready]
        return f"{', '.join(missing)} not ready" if missing else ""


def _in_background(job: Callable[[], None]) -> Future[None]:
    """Runs a job in a daemon thread: after Ctrl-C the lab is taken down without waiting for it."""
    result: Future[None] = Future()

    def work() -> None:
        try:
            job()
            result.set_result(None)
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return result


def _unfinished(running: Mapping[str, Future[None]]) -> str:
    """Returns the jobs that still run; raises the exception of a failed one."""
    for job in running.values():
        if job.done():
            job.result()
    return ", ".join(name for name, job in running.items() if not job.done())


def is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
