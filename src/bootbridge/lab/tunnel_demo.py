"""The demonstration with a real Kubernetes: a webhook that blocks, the bridge, its answers, the receipt."""

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
    """One run, told step by step through `progress`."""

    lab: Lab
    components: Components
    images: Images
    progress: Progress

    def run(self) -> None:
        """Every step must hold; the first that does not ends it. The clean-up is the caller's."""
        LabBuilder(self.lab, self.components, self.images, self.progress).bring_up()
        self.progress.step("webhook pods", self._start_workloads)
        self.progress.step("a pod, without bridge", self._blocked)
        self._laid()
        self.progress.step("the same pod", self._allowed)
        self.progress.step("a forbidden pod", self._denied)
        self.progress.step("logs from a node", self._logs)
        self._taken_away()

    # --- the story

    def _start_workloads(self) -> str:
        guarded = workloads.namespace(GUARDED, workloads.GUARDED)
        made = workloads.Workloads.create()
        self._must(
            "apply", "-f", "-", input=workloads.to_manifest_text([guarded, *made.served(), made.validating()])
        )
        if still := self.progress.wait(self._pods_unready, READY_SECONDS):
            raise OperatorError(f"not within {READY_SECONDS:.0f} s: {still}")
        return f"an admission webhook on {self.lab.layout.nodes} nodes, failurePolicy: Fail"

    def _blocked(self) -> str:
        done = self._create("first", {})
        if done.returncode == 0:
            raise OperatorError("was created: the webhook was not asked")
        return f"refused by the kube-apiserver: {_reason(done)}"

    def _laid(self) -> None:
        self.progress.line("     bootbridge up, on the bootstrap node:")
        self._bootbridge("up", *self.lab.tunnel_flags())

    def _allowed(self) -> str:
        done = self._create("first", {})
        if done.returncode:
            raise OperatorError(f"was not created: {_reason(done)}")
        return "created: the webhook was asked through the tunnel, and allows it"

    def _denied(self) -> str:
        done = self._create("second", {"deny": "true"})
        if done.returncode == 0 or "denied the request" not in _said(done):
            raise OperatorError(f"was not denied by the webhook: {_reason(done)}")
        return f"denied in the webhook's own words: {_reason(done)}"

    def _logs(self) -> str:
        selector = f"--selector=app={workloads.SERVICE}"
        lines = self._must("logs", f"--namespace={workloads.NAMESPACE}", selector, "--tail=-1").splitlines()
        calls = [line for line in lines if b"/validate" in line]
        if not calls:
            raise OperatorError("kubectl logs shows no call of the webhook")
        return f"kubectl logs: {calls[-1].decode(errors='replace')}"

    def _taken_away(self) -> None:
        self.progress.line("     bootbridge down:")
        self._bootbridge("down")

    # --- how

    def _pods_unready(self) -> str:
        where = f"--namespace={workloads.NAMESPACE}"
        done = self._kubectl("get", "daemonset", workloads.SERVICE, where, "-o", "json")
        if done.returncode:
            return _reason(done)
        status = json.loads(done.stdout)["status"]
        ready, nodes = status.get("numberReady", 0), self.lab.layout.nodes
        return "" if ready == nodes else f"{ready} of {nodes} webhook pods are ready"

    def _create(self, name: str, labels: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
        manifest = workloads.to_manifest_text([workloads.pod(name, GUARDED, labels)])
        return self._kubectl("create", "-f", "-", input=manifest)

    def _must(self, *words: str, input: bytes | None = None) -> bytes:
        done = self._kubectl(*words, input=input)
        if done.returncode:
            raise OperatorError(f"kubectl {words[0]}: {_reason(done)}")
        return done.stdout

    def _kubectl(self, *words: str, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        return self.lab.ask(self.components, *words, input=input, seconds=CALL_SECONDS)

    def _bootbridge(self, *words: str) -> None:
        if subprocess.run(self.lab.bootbridge(*words), stdin=subprocess.DEVNULL).returncode:
            raise OperatorError(f"bootbridge {words[0]} failed, see above")


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    return (done.stderr or done.stdout).decode(errors="replace")


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    """The last line of kubectl's complaint, without its preamble."""
    lines = _said(done).strip().splitlines() or ["it said nothing"]
    return lines[-1].partition('STDIN": ')[2] or lines[-1]
