"""Measures the time that attestation and the lock add to a join, compared with kubeadm alone."""

from __future__ import annotations

import statistics
import sys
import time

import pytest

from bootbridge.join_service.bootstrap_tokens import GROUP, node_group
from bootbridge.lab.bootstrapper_files import INSTANCE_CONFIG
from bootbridge.node import node_paths
from tests.e2e.results import concurrency_note
from tests.support.lab_instances import Instances
from tests.support.process_program import ROOT

pytestmark = pytest.mark.e2e

TIMES = 3
FIGURES = ROOT / "build" / "e2e-join.txt"


def seconds_of(cluster: Instances, node: str, *argv: str) -> float:
    """Runs a program on the instance and returns its duration."""
    started = time.monotonic()
    cluster.run(node, *argv)
    return time.monotonic() - started


def attested_join(cluster: Instances, node: str) -> float:
    """Returns the time without that of importing modules: on a real node, the bootstrapper already runs."""
    loading = seconds_of(
        cluster, node, sys.executable, "-c", "import bootbridge.cli.main, bootbridge.node.run"
    )
    run = ("-m", "bootbridge.cli.main", "node", "run", f"--config={INSTANCE_CONFIG}")
    return seconds_of(cluster, node, sys.executable, *run) - loading


def kubeadm_join(cluster: Instances, node: str) -> float:
    """Joins with kubeadm alone, with a token and a CA hash from the operator.

    The token is for this node, as a ticket's is: the cluster approves no other.
    """
    groups = f"--groups={GROUP},{node_group(node)}"
    made = cluster.run("node1", "kubeadm", "token", "create", groups, "--print-join-command")
    command = made.stdout.split()
    cluster.run(node, "systemctl", "start", "kubelet")
    loading = seconds_of(cluster, node, "kubeadm", "version")
    return seconds_of(cluster, node, *command, "--ignore-preflight-errors=SystemVerification") - loading


def test_the_time_that_attestation_adds_to_a_join_is_measured(
    cluster: Instances, spare: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.until(lambda: cluster.ready("node1"), "the first node is ready")
    plain, attested = [], []
    for _ in range(TIMES):
        cluster.make_blank(spare)
        attested.append(attested_join(cluster, spare))
        # The kubelet configuration requires a serving certificate, which only a ticket contains.
        certificate = cluster.serving_certificate(spare)
        cluster.make_blank(spare)
        target = cluster.lab.file(spare, node_paths.SERVING)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(certificate)
        plain.append(kubeadm_join(cluster, spare))
    cluster.make_blank(spare)
    added = statistics.median(attested) - statistics.median(plain)
    times = f"kubeadm alone {_shown(plain)}, attested {_shown(attested)}, added {added:.2f} s"
    line = f"join: {times}{concurrency_note()}"
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(line + "\n")
    with capsys.disabled():
        print(f"\n{line}")
    cluster.until(lambda: cluster.ready("node1"), "the first node is ready")


def _shown(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({', '.join(f'{each:.2f}' for each in seconds)})"
