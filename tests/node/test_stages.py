"""kubeadm's output is split into stages."""

from __future__ import annotations

import pytest

from bootbridge.node.init.messages import StageEvent
from bootbridge.node.stages import stages

# As kubeadm v1.36 writes it.
OUTPUT = """\
[init] Using Kubernetes version: v1.36.3
[preflight] Running pre-flight checks
\t[WARNING Hostname]: hostname "cp-0" could not be reached
[preflight] Pulling images required for setting up a Kubernetes cluster
[certs] Using certificateDir folder "/etc/kubernetes/pki"
[kubelet-check] Waiting for a healthy kubelet at http://127.0.0.1:10248/healthz
Your Kubernetes control-plane has initialized successfully!"""


def events_of(*lines: str) -> list[tuple[str, str, str]]:
    events: list[StageEvent] = []
    with stages("init", events.append) as reader:
        for line in lines:
            reader.line(line)
    return [(event.name, event.state, event.text) for event in events]


def test_a_bracketed_word_starts_a_stage_and_ends_the_previous_one() -> None:
    assert events_of(*OUTPUT.splitlines()) == [
        ("init", "started", ""),
        ("init", "output", "Using Kubernetes version: v1.36.3"),
        ("init", "done", ""),
        ("preflight", "started", ""),
        ("preflight", "output", "Running pre-flight checks"),
        ("preflight", "output", '\t[WARNING Hostname]: hostname "cp-0" could not be reached'),
        ("preflight", "output", "Pulling images required for setting up a Kubernetes cluster"),
        ("preflight", "done", ""),
        ("certs", "started", ""),
        ("certs", "output", 'Using certificateDir folder "/etc/kubernetes/pki"'),
        ("certs", "done", ""),
        ("kubelet-check", "started", ""),
        ("kubelet-check", "output", "Waiting for a healthy kubelet at http://127.0.0.1:10248/healthz"),
        ("kubelet-check", "output", "Your Kubernetes control-plane has initialized successfully!"),
        ("kubelet-check", "done", ""),
    ]


def test_the_current_stage_fails_with_the_reason() -> None:
    events: list[StageEvent] = []

    def run() -> None:
        with stages("join", events.append) as reader:
            reader.line("[kubelet-start] Starting")
            raise RuntimeError("ended with status 1")

    with pytest.raises(RuntimeError):
        run()
    assert events[-1] == StageEvent("kubelet-start", "failed", "ended with status 1")
