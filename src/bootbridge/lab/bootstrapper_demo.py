"""The bootstrapper, shown once from blank instances to a cluster: init, joins, a refusal, a reboot."""

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
# What a changed boot loader would be measured into.
BOOT_LOADER_REGISTER = 4


@dataclass(frozen=True)
class BootstrapperDemo:
    """One run, told step by step through `progress`."""

    lab: Lab
    components: Components
    images: Images
    progress: Progress

    def run(self) -> None:
        """Every step must hold; the first that does not ends it. The clean-up is the caller's."""
        InstancesBuilder(self.lab, self.components, self.images, self.progress).bring_up()
        self.progress.step(f"{self._odd.name}, another boot", self._boot_something_else)
        self.progress.line(f"     bootbridge node init {self.lab.layout.first.address}, as the operator:")
        if subprocess.run(instances.init_command(self.lab), stdin=subprocess.DEVNULL).returncode:
            raise OperatorError("bootbridge node init failed, see above")
        self.progress.step("the others", self._join)
        self.progress.step(self._odd.name, self._told_why)
        self.progress.step(f"{self._odd.name}, rebooted", self._reboot)

    @property
    def _odd(self) -> LabNode:
        """The instance that is not as it should be, at first."""
        return self.lab.layout.all_nodes[-1]

    # --- the story

    def _boot_something_else(self) -> str:
        tpm.measure(self.lab, self._odd, BOOT_LOADER_REGISTER, b"another boot loader")
        return f"its TPM has measured something else into PCR {BOOT_LOADER_REGISTER}"

    def _join(self) -> str:
        nodes = [node for node in self.lab.layout.all_nodes if node != self._odd]
        self._wait(lambda: self._missing(nodes))
        return f"{', '.join(node.name for node in nodes[1:])} have joined by themselves"

    def _told_why(self) -> str:
        self._wait(lambda: "" if self._refusal() else f"{self._odd.name} has not been refused yet")
        if self._odd.name in self._ready():
            raise OperatorError(f"{self._odd.name} was let in")
        return f"refused: {self._refusal()}"

    def _reboot(self) -> str:
        instances.reboot(self.lab, self._odd, self.components)
        self._wait(lambda: self._missing([self._odd]))
        return "booted as it should, and has joined"

    # --- how

    def _wait(self, reason: Callable[[], str]) -> None:
        if still := self.progress.wait(reason, READY_SECONDS):
            raise OperatorError(f"not within {READY_SECONDS:.0f} s: {still}")

    def _refusal(self) -> str:
        said = self.lab.log(self._odd.name, instances.BOOTSTRAPPER).read_text(errors="replace")
        found = _REFUSED.search(said)
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
