"""Admissions without a break while something goes wrong, and what must hold for every single one of them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bootbridge.demo.webhook import DENIAL
from bootbridge.lab.credentials import ADMIN_KUBECONFIG
from bootbridge.lab.extension_server import GROUP, MUTATED
from bootbridge.lab.workloads import WEBHOOK_SECONDS
from tests.support.lab import GUARDED, WAIT_SECONDS, Cluster

# A busy machine may be late with an answer; a call that hangs would take the storm's whole patience.
SLACK_SECONDS = 20.0
# The longest that Kubernetes lets a webhook take.
PATIENCE_SECONDS = 30
STEADY = 10
# What the kube-apiserver says when the webhook's time has run out.
TIME_RAN_OUT = "deadline exceeded"


@dataclass(frozen=True)
class Answer:
    """To one request; status 0 is none at all. `refusable`: the webhook would refuse it."""

    at: float
    seconds: float
    refusable: bool
    status: int
    said: str

    @property
    def judged(self) -> bool:
        """Whether the webhook itself has decided."""
        return DENIAL in self.said if self.refusable else self.status == 201 and MUTATED in self.said

    @property
    def skipped(self) -> bool:
        """Whether it was let in without the webhook's word."""
        return self.status == 201 and not self.judged


class Storm:
    """Requests one after the other, from the bootstrap node."""

    def __init__(self, cluster: Cluster) -> None:
        script = Path(__file__).with_name("admission_client.py")
        argv = [sys.executable, "-I", str(script), ADMIN_KUBECONFIG, GUARDED]
        command = cluster.lab.namespaces("bootstrap").command(argv)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.answers: list[Answer] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.answers.append(Answer(**json.loads(line)))

    def judged_again(self, since: float, within: float) -> float:
        """Wait until requests begun after `since` are judged in a row; how long the last failure is ago."""
        deadline = time.monotonic() + within
        while True:
            later = [answer for answer in self.answers if answer.at >= since]
            if len(later) >= STEADY and all(answer.judged for answer in later[-STEADY:]):
                return later[-STEADY].at - since
            last = later[-1] if later else "nothing was answered"
            assert time.monotonic() < deadline, f"no recovery within {within:.0f} s: {last}"
            time.sleep(0.1)

    def failed(self, since: float) -> list[Answer]:
        return [answer for answer in self.answers if answer.at >= since and not answer.judged]

    def timed_out(self) -> list[Answer]:
        """Those for which the kube-apiserver waited in vain, as long as a webhook may take."""
        return [answer for answer in self.answers if TIME_RAN_OUT in answer.said]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def patience(cluster: Cluster, seconds: int = PATIENCE_SECONDS) -> Iterator[None]:
    """Webhooks may take longer meanwhile: one who waits in vain is told from a machine that is only slow."""
    _let_webhooks_take(cluster, seconds)
    try:
        yield
    finally:
        _let_webhooks_take(cluster, WEBHOOK_SECONDS)


def _let_webhooks_take(cluster: Cluster, seconds: int) -> None:
    patch = json.dumps([{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": seconds}])
    for kind, verb in (("validating", "validate"), ("mutating", "mutate")):
        name = f"{kind}webhookconfiguration/{verb}.{GROUP}"
        cluster.kubectl("patch", name, "--type=json", f"--patch={patch}")


@contextmanager
def storm(cluster: Cluster, webhook_seconds: int = WEBHOOK_SECONDS) -> Iterator[Storm]:
    """A storm around a fault; afterwards it is checked that none hung and none was waved through."""
    blowing = Storm(cluster)
    try:
        blowing.judged_again(time.monotonic(), WAIT_SECONDS)
        yield blowing
    finally:
        blowing.end()
    hung = [answer for answer in blowing.answers if answer.seconds > webhook_seconds + SLACK_SECONDS]
    assert not hung, f"{len(hung)} requests outlived their timeout, the first: {hung[0]}"
    skipped = [answer for answer in blowing.answers if answer.skipped]
    assert not skipped, f"{len(skipped)} requests passed without the webhook's word: {skipped[0]}"
