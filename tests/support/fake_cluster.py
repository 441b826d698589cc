"""A fake API server with controllers of namespaces and DaemonSets.

They create a pod per node for a DaemonSet, count the ready ones, and delete the content of a deleted
namespace unless the test marks it as stuck.
"""

from __future__ import annotations

from pathlib import Path

from bootbridge.kube.errors import KubeError
from tests.support.fake_api_objects import Call, Json, Key
from tests.support.fake_api_server import ApiThread, FakeApiServer


class FakeCluster(FakeApiServer):
    """Runs in a thread from its creation to `close`."""

    def __init__(self, folder: Path, nodes: tuple[str, ...] = ("node0", "node1")) -> None:
        super().__init__(folder)
        self.nodes = nodes
        self.stuck: dict[str, str] = {}  # namespace: the message of its condition
        for name in ("default", "kube-system"):
            self.call("PATCH", f"/api/v1/namespaces/{name}", {"metadata": {"name": name}})
        self.close = ApiThread(self).close

    def _answer(self, call: Call) -> tuple[int, Json]:
        answer = super()._answer(call)
        self._reconcile()
        return answer

    def _store(self, key: Key, body: Json, *, dry_run: bool = False) -> Json:
        if key[0] == "namespaces":
            body = {"status": {"phase": "Active"}, **body} if key not in self.objects else body
        elif key[1]:  # else it is an object of the cluster, such as a node
            self._check_namespace(key[1])
        return super()._store(key, body, dry_run=dry_run)

    def _check_namespace(self, namespace: str) -> None:
        found = self.objects.get(("namespaces", "", namespace))
        if found is None:
            raise KubeError(404, "NotFound", f'namespaces "{namespace}" not found')
        if found["status"]["phase"] == "Terminating":
            raise KubeError(403, "Forbidden", f"namespace {namespace} is being terminated")

    def _delete(self, key: Key, options: Json) -> None:
        if key[0] == "daemonsets":
            for pod in self._keys("pods", key[1]):
                self.objects[pod]["metadata"]["deletionTimestamp"] = "now"
        if key[0] in ("pods", "namespaces") and options.get("gracePeriodSeconds") != 0:
            self.objects[key]["metadata"]["deletionTimestamp"] = "now"
        else:
            self._remove(key)

    def _reconcile(self) -> None:
        for key, found in list(self.objects.items()):
            if key[0] == "daemonsets":
                self._reconcile_daemonset(key, found)
        for key, found in list(self.objects.items()):
            if key[0] == "namespaces" and "deletionTimestamp" in found["metadata"]:
                self._finalise(key, found)

    def _reconcile_daemonset(self, key: Key, found: Json) -> None:
        _, namespace, name = key
        names = [f"{name}-{node}" for node in self.nodes]
        for node, pod_name in zip(self.nodes, names, strict=True):
            template = found["spec"]["template"]
            pod = {
                "metadata": {**template["metadata"], "name": pod_name, "namespace": namespace},
                "spec": {**template["spec"], "nodeName": node},
            }
            held = self.objects.get(("pods", namespace, pod_name))
            if held is not None and "deletionTimestamp" in held["metadata"]:
                continue
            if held is not None and _template(held) != _template(pod):
                held.pop("status", None)  # a rollout creates a new pod, which is not ready yet
            self._store(("pods", namespace, pod_name), pod)
        ready = sum(_is_ready(self.objects[pod]) for pod in self._keys("pods", namespace, names))
        found["status"] = {
            "desiredNumberScheduled": len(self.nodes),
            "numberReady": ready,
            "updatedNumberScheduled": ready,
            "observedGeneration": found["metadata"]["generation"],
        }

    def _finalise(self, key: Key, found: Json) -> None:
        name = key[2]
        found["status"]["phase"] = "Terminating"
        if name in self.stuck:
            condition = {"type": "NamespaceContentRemaining", "status": "True", "message": self.stuck[name]}
            found["status"]["conditions"] = [condition]
            return
        for other in [other for other in self.objects if other[1] == name]:
            self.objects[other]["metadata"]["deletionTimestamp"] = "now"
            if other[0] != "pods":
                self._remove(other)
        if not any(other[1] == name for other in self.objects):
            self._remove(key)

    def _keys(self, plural: str, namespace: str, names: list[str] | None = None) -> list[Key]:
        return [
            key
            for key in self.objects
            if key[:2] == (plural, namespace) and (names is None or key[2] in names)
        ]


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _template(pod: Json) -> tuple[Json | None, Json]:
    return pod["metadata"].get("annotations"), pod["spec"]
