"""A kubelet without containers: runs what static pod manifests and the API's pods say, as local processes.

Paths in a container's arguments are mapped to where its volumes lie, an agent gets ports of its own, as a
pod has its own network, and readiness is probed over HTTP. All processes are gone after `close`.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.support.process_program import OURS, ROOT, free_port

Json = dict[str, Any]
Call = Callable[[str, str, Json | None], tuple[int, Json]]
PROGRAMS = {
    "/usr/bin/proxy-server": [str(OURS / "proxy-server")],
    "/usr/bin/proxy-agent": [str(OURS / "proxy-agent")],
    "kube-apiserver": [sys.executable, str(ROOT / "tests/support/apiserver_front.py")],
}
HOST_IP = "127.0.0.1"
# All processes share one loopback: a pod listens on its own address, and its admin port is changed.
POD_IPS = "127.0.4."
HEALTH_PORT, ADMIN_PORT = "--health-server-port=", "--admin-server-port="
PERIOD_SECONDS = 0.1
GRACE_SECONDS = 0.5
AT_ONCE: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}


class Container:
    """One process, and the address of its health port."""

    def __init__(self, argv: list[str], health: tuple[str, int], log: Path, version: str = "") -> None:
        self.argv, self.health, self.version = argv, health, version
        with log.open("ab") as out:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    @property
    def ready(self) -> bool:
        connection = http.client.HTTPConnection(*self.health, timeout=1)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class FakeKubelet:
    """Watches `root`/etc/kubernetes/manifests, and the pods of all `nodes` in the API."""

    def __init__(self, root: Path, folder: Path, call: Call, nodes: tuple[str, ...]) -> None:
        self.root, self.folder, self._call, self.nodes = root, folder, call, nodes
        folder.mkdir(exist_ok=True)
        self.log = folder / "containers.log"
        self.history: list[str] = []
        self.may_start = threading.Event()  # cleared: manifests are read, but nothing is started yet
        self.may_start.set()
        self.about_to_start = ""
        self._static: dict[str, tuple[str, Container, Json]] = {}
        self._pods: dict[str, Container] = {}
        self._pod_ips: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self.may_start.set()
        self._thread.join(30)
        for container in [*self._pods.values(), *(entry[1] for entry in self._static.values())]:
            container.end()

    @property
    def pids(self) -> list[int]:
        running = [*self._pods.values(), *(entry[1] for entry in list(self._static.values()))]
        return sorted(container.process.pid for container in running)

    def _work(self) -> None:
        while not self._ended.wait(PERIOD_SECONDS):
            self._static_pods()
            self._api_pods()

    # --- static pods

    def _static_pods(self) -> None:
        folder = self.root / "etc/kubernetes/manifests"
        files = {path.name: path for path in folder.glob("[!.]*.yaml")} if folder.is_dir() else {}
        for name in [name for name in self._static if name not in files]:
            self._end_static(name)
        for name, path in files.items():
            self._run_static(name, path)

    def _run_static(self, name: str, path: Path) -> None:
        try:
            data = path.read_bytes()
            pod = yaml.safe_load(data)
        except (FileNotFoundError, yaml.YAMLError):
            return
        if not pod:  # the file is being written
            return
        version = hashlib.sha256(data).hexdigest()
        held = self._static.get(name)
        if held and held[0] == version and held[1].process.poll() is None:
            return
        if held:
            self._end_static(name)
        volumes = {
            volume["name"]: self.root / volume["hostPath"]["path"].lstrip("/")
            for volume in pod["spec"].get("volumes") or ()
            if "hostPath" in volume
        }
        container = pod["spec"]["containers"][0]
        argv = self._argv(container, volumes, {})
        self.about_to_start = container["name"]
        self.may_start.wait()
        self._static[name] = (version, Container(argv, (HOST_IP, 0), self.log), pod)
        self.history.append(f"started {container['name']}")
        self._mirror("POST", pod)

    def _end_static(self, name: str) -> None:
        _, container, pod = self._static.pop(name)
        container.end()
        self.history.append(f"ended {pod['spec']['containers'][0]['name']}")
        self._mirror("DELETE", pod)

    def _mirror(self, method: str, pod: Json) -> None:
        namespace = pod["metadata"].get("namespace", "default")
        name = f"{pod['metadata']['name']}-{self.nodes[0]}"
        path = f"/api/v1/namespaces/{namespace}/pods"
        if method == "DELETE":
            self._call("DELETE", f"{path}/{name}", AT_ONCE)
            return
        annotations = {"kubernetes.io/config.mirror": "1"}
        metadata = {**pod["metadata"], "name": name, "annotations": annotations}
        spec = {**pod["spec"], "nodeName": self.nodes[0]}
        self._call("POST", path, {**pod, "metadata": metadata, "spec": spec})

    # --- pods from the API

    def _api_pods(self) -> None:
        status, answer = self._call("GET", "/api/v1/pods", None)
        if status != 200:
            return
        pods = {
            f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pod
            for pod in answer["items"]
            if "kubernetes.io/config.mirror" not in (pod["metadata"].get("annotations") or {})
        }
        for key in [key for key in self._pods if key not in pods]:
            self._pods.pop(key).end()
        for key, pod in pods.items():
            self._run_pod(key, pod)

    def _run_pod(self, key: str, pod: Json) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        if "deletionTimestamp" in pod["metadata"]:
            if key in self._pods:
                self._pods.pop(key).end()
            self._call("DELETE", path, AT_ONCE)
            return
        if not pod["spec"].get("nodeName"):
            self._bind(path, pod)
            return
        held = self._pods.get(key)
        if held and held.version != _version(pod):
            # A rollout: the DaemonSet's controller replaces the pod.
            self._pods.pop(key).end()
            held = None
        if held is None or held.process.poll() is not None:
            self._report(path, pod, {"phase": "Running", **self._addresses(key)})
            started = self._start_pod(key, pod)
            if started is None:
                return
            held = self._pods[key] = started
        ready = "True" if held.ready else "False"
        conditions = (pod.get("status") or {}).get("conditions") or ()
        reported = {condition["type"]: condition["status"] for condition in conditions}
        if reported.get("Ready") != ready:
            conditions = [{"type": "Ready", "status": ready}]
            self._report(path, pod, {"phase": "Running", "conditions": conditions, **self._addresses(key)})

    def _addresses(self, key: str) -> Json:
        ip = self._pod_ips.setdefault(key, f"{POD_IPS}{len(self._pod_ips) + 1}")
        return {"hostIP": HOST_IP, "podIP": ip, "podIPs": [{"ip": ip}]}

    def _report(self, path: str, pod: Json, status: Json) -> None:
        query = "fieldManager=kubelet&force=true"
        self._call("PATCH", f"{path}/status?{query}", {**_named(pod), "status": status})

    def _bind(self, path: str, pod: Json) -> None:
        """The scheduler's work: a DaemonSet's pod says itself which node it is for."""
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        node = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        binding = {**_named(pod), "kind": "Binding", "target": {"kind": "Node", "name": node}}
        self._call("POST", f"{path}/binding", binding)

    def _start_pod(self, key: str, pod: Json) -> Container | None:
        volumes = {}
        for volume in pod["spec"].get("volumes") or ():
            if "secret" in volume:
                found = self._secret(key, pod["metadata"]["namespace"], volume["secret"]["secretName"])
                if found is None:
                    return None
                volumes[volume["name"]] = found
            for source in (volume.get("projected") or {}).get("sources") or ():
                volumes[volume["name"]] = self._token(key, pod, source["serviceAccountToken"])
        container = pod["spec"]["containers"][0]
        fields = {
            "spec.nodeName": pod["spec"].get("nodeName", ""),
            "status.hostIP": HOST_IP,
            "status.podIP": self._pod_ips[key],
        }
        environment = {
            entry["name"]: fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            for entry in container.get("env") or ()
        }
        argv = self._argv(container, volumes, environment)
        argv = [f"{ADMIN_PORT}{free_port()}" if word.startswith(ADMIN_PORT) else word for word in argv]
        health_port = next(
            int(word.removeprefix(HEALTH_PORT)) for word in argv if word.startswith(HEALTH_PORT)
        )
        argv.append(f"--health-server-host={self._pod_ips[key]}")
        return Container(argv, (self._pod_ips[key], health_port), self.log, _version(pod))

    def _token(self, key: str, pod: Json, source: Json) -> Path:
        """Requests the token of a projected volume. A fake cluster issues none: it gets a placeholder."""
        metadata, spec = pod["metadata"], pod["spec"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata.get("uid", "")}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "boundObjectRef": bound,
                "expirationSeconds": source["expirationSeconds"],
            },
        }
        account = spec.get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        _, answer = self._call("POST", path, request)
        folder = self.folder / f"{key.replace('/', '_')}_token"
        folder.mkdir(exist_ok=True, mode=0o700)
        (folder / source["path"]).write_text((answer.get("status") or {}).get("token") or "placeholder")
        return folder

    def _secret(self, key: str, namespace: str, name: str) -> Path | None:
        status, secret = self._call("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}", None)
        if status != 200:
            return None
        folder = self.folder / key.replace("/", "_")
        folder.mkdir(exist_ok=True, mode=0o700)
        for file, text in secret["data"].items():
            (folder / file).write_bytes(base64.b64decode(text))
        return folder

    def _argv(self, container: Json, volumes: dict[str, Path], environment: dict[str, str]) -> list[str]:
        words = [*container["command"], *(container.get("args") or ())]
        places = {
            mount["mountPath"]: volumes[mount["name"]]
            for mount in container.get("volumeMounts") or ()
            if mount["name"] in volumes
        }
        return [*PROGRAMS[words[0]], *(_mapped(word, places, environment) for word in words[1:])]


def _mapped(word: str, places: dict[str, Path], environment: dict[str, str]) -> str:
    for name, value in environment.items():
        word = word.replace(f"$({name})", value)
    for mounted, here in places.items():
        word = word.replace(f"={mounted}/", f"={here}/")
    return word


def _version(pod: Json) -> str:
    return repr((pod["metadata"].get("annotations"), pod["spec"]))


def _named(pod: Json) -> Json:
    names = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": names}
