"""`lab demo`: a webhook blocks a pod, the tunnel is installed, the webhook decides, the tunnel is removed."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.lab import workloads
from bootbridge.lab.bring_up import LabBuilder
from bootbridge.lab.components import Components
from bootbridge.lab.images import Images
from bootbridge.lab.lab import Lab

GUARDED = "guarded"
CALL_SECONDS = 60.0
READY_SECONDS = 300.0


@dataclass(frozen=True)
class TunnelDemo:
    """One run of the demo, reported to `progress`."""

    lab: Lab
    components: Components
    images: Images
    progress: Progress

    def run(self) -> None:
        """Runs all steps; the first failure raises OperatorError. The caller removes the lab."""
        LabBuilder(self.lab, self.components, self.images, self.progress).bring_up()
        self.progress.step("webhook pods", self._start_workloads)
        self.progress.step("pod without tunnel", self._blocked)
        self._install()
        self.progress.step("same pod with tunnel", self._allowed)
        self.progress.step("pod with deny=true", self._denied)
        self.progress.step("kubectl logs", self._logs)
        self._remove()

    # --- steps

    def _start_workloads(self) -> str:
        guarded = workloads.namespace(GUARDED, workloads.GUARDED)
        made = workloads.Workloads.create()
        self._must(
            "apply", "-f", "-", input=workloads.to_manifest_text([guarded, *made.served(), made.validating()])
        )
        if still := self.progress.wait(self._pods_problem, READY_SECONDS):
            raise OperatorError(f"timed out after {READY_SECONDS:g}s: {still}")
        return f"admission webhook on {self.lab.layout.nodes} nodes, failurePolicy: Fail"

    def _blocked(self) -> str:
        done = self._create("first", {})
        if done.returncode == 0:
            raise OperatorError("created, although the webhook is unreachable")
        return f"rejected by the kube-apiserver: {_reason(done)}"

    def _install(self) -> None:
        self.progress.line("output of `bootbridge up` on the bootstrap node:")
        self._bootbridge("up", *self.lab.tunnel_flags())

    def _allowed(self) -> str:
        done = self._create("first", {})
        if done.returncode:
            raise OperatorError(f"not created: {_reason(done)}")
        return "created: allowed by the webhook, called through the tunnel"

    def _denied(self) -> str:
        done = self._create("second", {"deny": "true"})
        if done.returncode == 0 or "denied the request" not in _output(done):
            raise OperatorError(f"not denied by the webhook: {_reason(done)}")
        return f"denied by the webhook: {_reason(done)}"

    def _logs(self) -> str:
        selector = f"--selector=app={workloads.SERVICE}"
        lines = self._must("logs", f"--namespace={workloads.NAMESPACE}", selector, "--tail=-1").splitlines()
        calls = [line for line in lines if b"/validate" in line]
        if not calls:
            raise OperatorError("no webhook call in the output", subject="kubectl logs")
        return calls[-1].decode(errors="replace")

    def _remove(self) -> None:
        self.progress.line("output of `bootbridge down`:")
        self._bootbridge("down")

    # --- helpers

    def _pods_problem(self) -> str:
        where = f"--namespace={workloads.NAMESPACE}"
        done = self._kubectl("get", "daemonset", workloads.SERVICE, where, "-o", "json")
        if done.returncode:
            return _reason(done)
        status = json.loads(done.stdout)["status"]
        ready, nodes = status.get("numberReady", 0), self.lab.layout.nodes
        return "" if ready == nodes else f"{ready} of {nodes} webhook pods ready"

    def _create(self, name: str, labels: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
        manifest = workloads.to_manifest_text([workloads.pod(name, GUARDED, labels)])
        return self._kubectl("create", "-f", "-", input=manifest)

    def _must(self, *words: str, input: bytes | None = None) -> bytes:
        done = self._kubectl(*words, input=input)
        if done.returncode:
            raise OperatorError(_reason(done), subject=f"kubectl {words[0]}")
        return done.stdout

    def _kubectl(self, *words: str, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        return self.lab.ask(self.components, *words, input=input, seconds=CALL_SECONDS)

    def _bootbridge(self, *words: str) -> None:
        if subprocess.run(self.lab.bootbridge(*words), stdin=subprocess.DEVNULL).returncode:
            raise OperatorError("failed, see the output above", subject=f"bootbridge {words[0]}")


def _output(done: subprocess.CompletedProcess[bytes]) -> str:
    return (done.stderr or done.stdout).decode(errors="replace")


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    """Returns the last line of kubectl's error, without its prefix."""
    lines = _output(done).strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1].partition('STDIN": ')[2] or lines[-1]
