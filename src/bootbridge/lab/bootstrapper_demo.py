"""`lab demo --bootstrapper`: from blank instances to a cluster, with a rejected instance and its reboot."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.lab import instances, tpm
from bootbridge.lab.bring_up import is_ready
from bootbridge.lab.components import Components
from bootbridge.lab.images import Images
from bootbridge.lab.instances import InstancesBuilder
from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import LabNode

READY_SECONDS = 400.0
_REFUSED = re.compile(r'node: ticket refused reason="?(.*?)"? retry_in=')
# The PCR that measures the boot loader.
BOOT_LOADER_REGISTER = 4


@dataclass(frozen=True)
class BootstrapperDemo:
    """One run of the demo, reported to `progress`."""

    lab: Lab
    components: Components
    images: Images
    progress: Progress

    def run(self) -> None:
        """Runs all steps; the first failure raises OperatorError. The caller removes the lab."""
        InstancesBuilder(self.lab, self.components, self.images, self.progress).bring_up()
        self.progress.step(f"change {self._changed.name}", self._change_measurement)
        self.progress.line(f"output of `bootbridge node init {self.lab.layout.first.address}`:")
        if subprocess.run(instances.init_command(self.lab), stdin=subprocess.DEVNULL).returncode:
            raise OperatorError("failed, see the output above", subject="bootbridge node init")
        self.progress.step("joins", self._join)
        self.progress.step(f"rejection of {self._changed.name}", self._rejection)
        self.progress.step(f"reboot of {self._changed.name}", self._reboot)

    @property
    def _changed(self) -> LabNode:
        """The instance whose boot measurement is changed."""
        return self.lab.layout.all_nodes[-1]

    # --- steps

    def _change_measurement(self) -> str:
        tpm.measure(self.lab, self._changed, BOOT_LOADER_REGISTER, b"another boot loader")
        return f"its TPM measured another boot loader (PCR {BOOT_LOADER_REGISTER})"

    def _join(self) -> str:
        nodes = [node for node in self.lab.layout.all_nodes if node != self._changed]
        self._wait(lambda: self._missing(nodes))
        return f"{', '.join(node.name for node in nodes[1:])} joined"

    def _rejection(self) -> str:
        self._wait(lambda: "" if self._refusal() else f"no rejection of {self._changed.name} yet")
        if self._changed.name in self._ready():
            raise OperatorError("joined with a changed boot measurement", subject=self._changed.name)
        return f"rejected: {self._refusal()}"

    def _reboot(self) -> str:
        instances.reboot(self.lab, self._changed, self.components)
        self._wait(lambda: self._missing([self._changed]))
        return "joined with the expected boot measurement"

    # --- helpers

    def _wait(self, reason: Callable[[], str]) -> None:
        if still := self.progress.wait(reason, READY_SECONDS):
            raise OperatorError(f"timed out after {READY_SECONDS:g}s: {still}")

    def _refusal(self) -> str:
        log = self.lab.log(self._changed.name, instances.BOOTSTRAPPER).read_text(errors="replace")
        found = _REFUSED.search(log)
        return found[1] if found else ""

    def _missing(self, nodes: list[LabNode]) -> str:
        ready = self._ready()
        missing = [node.name for node in nodes if node.name not in ready]
        return f"{', '.join(missing)} not ready" if missing else ""

    def _ready(self) -> set[str]:
        done = self.lab.ask(self.components, "get", "nodes", "-o", "json")
        if done.returncode:
            return set()
        return {node["metadata"]["name"] for node in json.loads(done.stdout)["items"] if is_ready(node)}
