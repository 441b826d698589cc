"""Samples a server or agent in a cluster through `kubectl port-forward`, a child process.

kubectl, not our own client: its contexts, credential plugins and proxies are those that the operator uses.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bootbridge.errors import OperatorError
from bootbridge.top.fetch import NoAnswerError, ProgramUrl, RowQuery, StatusClient
from bootbridge.top.snapshot import AGENT, SERVER, Snapshot
from bootbridge.top.text import printable

FORWARD_SECONDS_MAX = 30.0
LIST_SECONDS_MAX = 30.0
END_SECONDS_MAX = 5.0
# Both of our manifests and of Konnectivity's examples.
_LABELS = ("app", "k8s-app")
_APPS = {SERVER: "konnectivity-server", AGENT: "konnectivity-agent"}
# Admin and health port, by flag and default.
_PORT_FLAGS = {
    SERVER: (("admin-port", 8095), ("health-port", 8092)),
    AGENT: (("admin-server-port", 8094), ("health-server-port", 8093)),
}
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> (\d+)")
_NAMES_SHOWN_MAX = 8


@dataclass(frozen=True)
class ClusterTarget:
    """What the operator asked for; an empty value is not decided."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    program: str = ""
    name: str = ""  # of a pod or a node

    def kubectl(self, *words: str) -> list[str]:
        program = shutil.which("kubectl")
        if program is None:
            hint = "install it, or forward the admin port yourself and give its URL"
            raise OperatorError("kubectl not found in PATH", hint=hint)
        flags = [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []
        flags += [f"--context={self.context}"] if self.context else []
        return [program, *flags, *words]


@dataclass(frozen=True)
class ProgramPod:
    program: str
    namespace: str
    name: str
    node: str
    running: bool
    ports: tuple[int, int]  # admin and health

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ForwardedProgram:
    """A program in a pod; forwards its ports when it is sampled, and again after the forwarding has ended."""

    def __init__(self, target: ClusterTarget) -> None:
        self._target = target
        self._forward: _Forward | None = None
        self.title = ""

    def sample(self, query: RowQuery | None = None) -> Snapshot:
        if self._forward is None or not self._forward.alive:
            self.close()
            pod = choose_pod(self._target, list_pods(self._target))
            self._forward = _Forward(self._target, pod)
            where = f" on {pod.node}" if pod.node else ""
            self.title = printable(f"{pod}{where}")
        try:
            return self._forward.client.sample(query)
        except NoAnswerError as error:
            raise NoAnswerError(f"{error}{self._forward.last_line}", subject=self.title) from error

    def close(self) -> None:
        if self._forward is not None:
            self._forward.close()
            self._forward = None


class _Forward:
    """One `kubectl port-forward` on free loopback ports."""

    def __init__(self, target: ClusterTarget, pod: ProgramPod) -> None:
        words = ["port-forward", "--address=127.0.0.1", f"--namespace={pod.namespace}", f"pod/{pod.name}"]
        self._process = subprocess.Popen(
            target.kubectl(*words, *(f":{port}" for port in pod.ports)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._ports: dict[int, int] = {}
        self._lines: deque[str] = deque(maxlen=5)
        self._changed = threading.Event()
        self._expected = len(pod.ports)
        threading.Thread(target=self._read, name="kubectl output", daemon=True).start()
        if not self._changed.wait(FORWARD_SECONDS_MAX) or len(self._ports) < self._expected:
            reason = self.last_line or f": timed out after {FORWARD_SECONDS_MAX:.0f}s"
            self.close()
            raise NoAnswerError(f"kubectl port-forward failed{reason}", subject=str(pod))
        admin, health = pod.ports
        url = ProgramUrl("127.0.0.1", self._ports[admin])
        self.client = StatusClient(url, {health: self._ports[health], admin: self._ports[admin]})

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def last_line(self) -> str:
        return f": {printable(self._lines[-1], 300)}" if self._lines else ""

    def _read(self) -> None:
        """Reads until the end, so that kubectl never waits for a full pipe."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := _FORWARDING.match(line):
                self._ports[int(found[2])] = int(found[1])
                if len(self._ports) == self._expected:
                    self._changed.set()
            elif line.strip() and not line.startswith(("Handling connection", "Forwarding from")):
                self._lines.append(line.strip())
        self._changed.set()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def list_pods(target: ClusterTarget) -> list[ProgramPod]:
    """Returns the pods of servers and agents; raises OperatorError with kubectl's own reason."""
    where = [f"--namespace={target.namespace}"] if target.namespace else ["--all-namespaces"]
    found: dict[tuple[str, str], ProgramPod] = {}
    for label in _LABELS:
        selector = f"--selector={label} in ({','.join(_APPS.values())})"
        for each in _get(target, "get", "pods", *where, selector, "--output=json"):
            if pod := _pod(each, label):
                found[pod.namespace, pod.name] = pod
    return sorted(found.values(), key=str)


def _get(target: ClusterTarget, *words: str) -> list[dict[str, Any]]:
    try:
        done = subprocess.run(
            target.kubectl(*words), capture_output=True, timeout=LIST_SECONDS_MAX, stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C.UTF-8"}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"timed out after {LIST_SECONDS_MAX:.0f}s", subject="kubectl get pods") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = printable(lines[-1] if lines else f"exit code {done.returncode}", 300)
        raise NoAnswerError(reason, subject="kubectl get pods")
    try:
        items = json.loads(done.stdout)["items"]
    except (ValueError, KeyError, TypeError):
        raise OperatorError("invalid JSON", subject="kubectl get pods") from None
    return [each for each in items if isinstance(each, dict)]


def _pod(each: Mapping[str, Any], label: str) -> ProgramPod | None:
    metadata, spec = each.get("metadata") or {}, each.get("spec") or {}
    app = (metadata.get("labels") or {}).get(label)
    program = next((name for name, value in _APPS.items() if value == app), "")
    if not program:
        return None
    words = [
        str(word)
        for container in spec.get("containers") or ()
        for word in (*(container.get("command") or ()), *(container.get("args") or ()))
    ]
    admin, health = (_port(words, *flag) for flag in _PORT_FLAGS[program])
    return ProgramPod(
        program,
        str(metadata.get("namespace") or "default"),
        str(metadata.get("name") or ""),
        str(spec.get("nodeName") or ""),
        (each.get("status") or {}).get("phase") == "Running",
        (admin, health),
    )


def _port(words: Sequence[str], flag: str, default: int) -> int:
    for word in words:
        name, _, value = word.lstrip("-").partition("=")
        if name == flag and value.isdecimal() and 0 < int(value) < 65536:
            return int(value)
    return default


def choose_pod(target: ClusterTarget, pods: Sequence[ProgramPod]) -> ProgramPod:
    """Returns the pod that was asked for: by name or node, else the only server, else the only agent."""
    running = [pod for pod in pods if pod.running]
    if not running:
        hint = "is the tunnel installed in this cluster? on the bootstrap node, run it without --context"
        labels = " or ".join(f"app={app}" for app in _APPS.values())
        raise NoAnswerError(f"no running pod with the label {labels}", subject="cluster", hint=hint)
    flag = f"--{target.program.removeprefix('proxy-')}" if target.program else ""
    chosen = [pod for pod in running if target.program in ("", pod.program)]
    if target.name:
        named = [pod for pod in chosen if target.name in (pod.name, pod.node)]
        if len(named) != 1:
            problem = f"{'several pods match' if named else 'no running pod or node'} {target.name!r}"
            raise NoAnswerError(problem, subject=flag, hint=f"running: {_listed(named or chosen)}")
        return named[0]
    servers = [pod for pod in chosen if pod.program == SERVER]
    if len(servers or chosen) == 1:
        return (servers or chosen)[0]
    kind = SERVER if servers else AGENT
    flag = f"--{kind.removeprefix('proxy-')}"
    raise OperatorError("required flag missing", subject=flag, hint=f"running: {_listed(servers or chosen)}")


def _listed(pods: Sequence[ProgramPod]) -> str:
    names = [f"{pod.name} on {pod.node}" if pod.node else pod.name for pod in pods]
    more = f" and {len(names) - _NAMES_SHOWN_MAX} more" if len(names) > _NAMES_SHOWN_MAX else ""
    return printable(", ".join(names[:_NAMES_SHOWN_MAX]) + more) or "none"
