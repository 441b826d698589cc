"""Continuous admission requests during a fault, and the assertions that hold for each of them."""

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

# A busy machine may respond late; a request that hangs takes the client's whole timeout of 60 s.
SLACK_SECONDS = 20.0
# The maximum that Kubernetes allows for a webhook.
LONG_WEBHOOK_SECONDS = 30
STEADY = 10
# The kube-apiserver's error when a webhook exceeds its timeout.
TIMEOUT_ERROR = "deadline exceeded"


@dataclass(frozen=True)
class AdmissionResult:
    """Holds the result of one request; status 0 is no response. `deniable`: the webhook denies it."""

    at: float
    seconds: float
    deniable: bool
    status: int
    message: str

    @property
    def decided(self) -> bool:
        """Returns whether the webhook decided the request."""
        return DENIAL in self.message if self.deniable else self.status == 201 and MUTATED in self.message

    @property
    def skipped(self) -> bool:
        """Returns whether the request was admitted without the webhook."""
        return self.status == 201 and not self.decided


class AdmissionLoad:
    """Sends requests in sequence from the bootstrap node, and collects the results."""

    def __init__(self, cluster: Cluster) -> None:
        script = Path(__file__).with_name("admission_client.py")
        argv = [sys.executable, "-I", str(script), ADMIN_KUBECONFIG, GUARDED]
        command = cluster.lab.namespaces("bootstrap").command(argv)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.results: list[AdmissionResult] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.results.append(AdmissionResult(**json.loads(line)))

    def wait_for_recovery(self, since: float, within: float) -> float:
        """Waits until the webhook decided STEADY consecutive requests begun after `since`.

        Returns the seconds from `since` to the first of them.
        """
        deadline = time.monotonic() + within
        while True:
            later = [result for result in self.results if result.at >= since]
            if len(later) >= STEADY and all(result.decided for result in later[-STEADY:]):
                return later[-STEADY].at - since
            last = later[-1] if later else "no request has ended"
            assert time.monotonic() < deadline, f"no recovery within {within:.0f} s: {last}"
            time.sleep(0.1)

    def failed(self, since: float) -> list[AdmissionResult]:
        return [result for result in self.results if result.at >= since and not result.decided]

    def timed_out(self) -> list[AdmissionResult]:
        """Returns the results of requests whose webhook call exceeded its timeout."""
        return [result for result in self.results if TIMEOUT_ERROR in result.message]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def longer_webhook_timeout(cluster: Cluster, seconds: int = LONG_WEBHOOK_SECONDS) -> Iterator[None]:
    """Raises the webhooks' timeout during the block, so that a slow machine does not cause one."""
    _set_webhook_timeout(cluster, seconds)
    try:
        yield
    finally:
        _set_webhook_timeout(cluster, WEBHOOK_SECONDS)


def _set_webhook_timeout(cluster: Cluster, seconds: int) -> None:
    patch = json.dumps([{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": seconds}])
    for kind, verb in (("validating", "validate"), ("mutating", "mutate")):
        name = f"{kind}webhookconfiguration/{verb}.{GROUP}"
        cluster.kubectl("patch", name, "--type=json", f"--patch={patch}")


@contextmanager
def admission_load(cluster: Cluster, webhook_seconds: int = WEBHOOK_SECONDS) -> Iterator[AdmissionLoad]:
    """Sends requests during the block; then asserts that none hung or bypassed the webhook."""
    load = AdmissionLoad(cluster)
    try:
        load.wait_for_recovery(time.monotonic(), WAIT_SECONDS)
        yield load
    finally:
        load.end()
    hung = [result for result in load.results if result.seconds > webhook_seconds + SLACK_SECONDS]
    assert not hung, f"{len(hung)} requests exceeded their timeout, the first: {hung[0]}"
    skipped = [result for result in load.results if result.skipped]
    assert not skipped, f"{len(skipped)} requests were admitted without the webhook, the first: {skipped[0]}"
