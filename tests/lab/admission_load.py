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
from bootbridge.lab.credentials import ADMIN_KUBECONFIG, APISERVER_PORT
from bootbridge.lab.extension_server import GROUP, MUTATED
from bootbridge.lab.workloads import WEBHOOK_SECONDS
from tests.support.lab import GUARDED, WAIT_SECONDS, Cluster

# A busy machine may respond late; a request that hangs takes the client's whole timeout of 60 s.
SLACK_SECONDS = 20.0
# The maximum that Kubernetes allows for a webhook.
LONG_WEBHOOK_SECONDS = 30
STEADY = 10
# The kube-apiserver's errors when it cannot call a webhook, and when the webhook exceeds its timeout.
CALL_FAILED = "failed calling webhook"
TIMEOUT_ERROR = "deadline exceeded"


@dataclass(frozen=True)
class AdmissionResult:
    """Holds the result of one request; status 0 is no response. `deniable`: the webhook denies it."""

    stream: int
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

    @property
    def rejected(self) -> bool:
        """Returns whether the kube-apiserver rejected the request because it could not call the webhook."""
        return CALL_FAILED in self.message


class AdmissionLoad:
    """Sends requests from the bootstrap node, in sequence for each stream, and collects the results."""

    def __init__(self, cluster: Cluster, port: int = APISERVER_PORT, streams: int = 1) -> None:
        script = Path(__file__).with_name("admission_client.py")
        argv = [sys.executable, "-I", str(script), ADMIN_KUBECONFIG, GUARDED, str(port), str(streams)]
        command = cluster.lab.namespaces("bootstrap").command(argv)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self._streams = range(streams)
        self.results: list[AdmissionResult] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.results.append(AdmissionResult(**json.loads(line)))

    def wait_for_recovery(self, since: float, within: float) -> float:
        """Waits until the webhook decided STEADY consecutive requests of each stream, begun after `since`.

        Returns the seconds from `since` to the first of them.
        """
        deadline = time.monotonic() + within
        while True:
            later = self.since(since)
            last = [[each for each in later if each.stream == stream][-STEADY:] for stream in self._streams]
            if all(len(each) == STEADY and all(result.decided for result in each) for each in last):
                return max(each[0].at for each in last) - since
            shown = later[-1] if later else "no request has ended"
            assert time.monotonic() < deadline, f"no recovery within {within:.0f} s: {shown}"
            time.sleep(0.1)

    def since(self, moment: float) -> list[AdmissionResult]:
        """Returns the results of requests begun after that moment."""
        return [result for result in self.results if result.at >= moment]

    def failed(self, since: float) -> list[AdmissionResult]:
        return [result for result in self.since(since) if not result.decided]

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
def admission_load(
    cluster: Cluster, webhook_seconds: int = WEBHOOK_SECONDS, port: int = APISERVER_PORT, streams: int = 1
) -> Iterator[AdmissionLoad]:
    """Sends requests during the block; then asserts that none hung or bypassed the webhook."""
    load = AdmissionLoad(cluster, port, streams)
    try:
        load.wait_for_recovery(time.monotonic(), WAIT_SECONDS)
        yield load
    finally:
        load.end()
    hung = [result for result in load.results if result.seconds > webhook_seconds + SLACK_SECONDS]
    assert not hung, f"{len(hung)} requests exceeded their timeout, the first: {hung[0]}"
    skipped = [result for result in load.results if result.skipped]
    assert not skipped, f"{len(skipped)} requests were admitted without the webhook, the first: {skipped[0]}"
