"""Displays a running init: as text with durations, or as JSON lines."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any, Protocol, TextIO

from bootbridge.common.progress import Progress
from bootbridge.common.terminal.figures import duration
from bootbridge.common.terminal.terminal import Mark, Terminal
from bootbridge.node.init.client import InitProgress
from bootbridge.node.init.messages import DONE, FAILED, OUTPUT, STARTED, StageEvent
from bootbridge.trust.evidence import AttestedPeer

# Longer texts are cut; the log of the instance has them in full.
TEXT_CHARACTERS_MAX = 1000


class InitReport(InitProgress, Protocol):
    """The progress of `InitClient`, and the outcome."""

    def started(self, init_id: str) -> None: ...

    def tick(self) -> None:
        """Called every second."""
        ...

    def succeeded(self, cluster_id: bytes, kubeconfig: str) -> None: ...
    def failed(self, reason: str, advice: str, log: str) -> None: ...


class TextReport:
    """Shows one line per stage; the output of a stage is shown while it runs, or when it fails."""

    def __init__(self, progress: Progress, out: TextIO) -> None:
        self._progress = progress
        self._out = out
        self._last_output = ""
        self._connected = False
        self._begin("instance")

    def waiting(self, reason: str) -> None:
        self._last_output = _cut(reason)
        self._progress.waiting(self._last_output)

    def connected(self, peer: AttestedPeer | None) -> None:
        if self._connected:
            self._progress.line("reconnected")
            return
        self._connected = True
        self._progress.end(_describe(peer))
        for warning in peer.warnings if peer else ():
            self._progress.line(f"warning: {_cut(warning)}")
        self._begin("init")

    def stage(self, event: StageEvent) -> None:
        if event.state == STARTED:
            self._begin(_cut(event.name))
        elif event.state == OUTPUT:
            self._last_output = _cut(event.text)
            self._progress.waiting(self._last_output)
        elif event.state == DONE:
            self._progress.end(_cut(event.text))
        elif event.state == FAILED:
            self._progress.end(_cut(event.text) or self._last_output, good=False)

    def started(self, init_id: str) -> None:
        self._progress.line(f"init ID {init_id}; if interrupted, run the same command again to resume")

    def tick(self) -> None:
        self._progress.waiting(self._last_output or "running")

    def succeeded(self, cluster_id: bytes, kubeconfig: str) -> None:
        self._progress.cancel()
        Terminal(self._out).summary(
            Mark.GOOD,
            f"Cluster created ({duration(self._progress.seconds)}), ID {cluster_id.hex()}.",
            details=[f"Admin kubeconfig: {kubeconfig}"],
            next_steps=[(f"kubectl --kubeconfig {shlex.quote(kubeconfig)} get nodes", "see instances join")],
        )

    def failed(self, reason: str, advice: str, log: str) -> None:
        self._progress.cancel()
        details = [f"What to do: {advice}"] if advice else []
        details += [f"Log of the instance: {log}"] if log else []
        self._progress.terminal.summary(Mark.BAD, _cut(f"Init failed: {reason}"), details=map(_cut, details))

    def _begin(self, title: str) -> None:
        self._last_output = ""
        self._progress.begin(title)


def _describe(peer: AttestedPeer | None) -> str:
    if peer is None:
        return "connected; no evidence required"
    return f"verified by {peer.identity or peer.kind}"


def _cut(text: str) -> str:
    return text[:TEXT_CHARACTERS_MAX]


class JsonReport:
    """Writes one JSON object per event and line."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out

    def waiting(self, reason: str) -> None:
        self._write("waiting", reason=reason)

    def connected(self, peer: AttestedPeer | None) -> None:
        if peer is None:
            self._write("connected")
        else:
            self._write(
                "connected",
                kind=peer.kind,
                identity=peer.identity,
                facts=dict(peer.facts),
                warnings=list(peer.warnings),
            )

    def stage(self, event: StageEvent) -> None:
        self._write("stage", stage=event.name, state=event.state, text=event.text)

    def started(self, init_id: str) -> None:
        self._write("started", initID=init_id)

    def tick(self) -> None:
        """Writes nothing."""

    def succeeded(self, cluster_id: bytes, kubeconfig: str) -> None:
        self._write("succeeded", clusterID=cluster_id.hex(), kubeconfig=kubeconfig)

    def failed(self, reason: str, advice: str, log: str) -> None:
        self._write("failed", reason=reason, advice=advice, log=log)

    def _write(self, event: str, **fields: Any) -> None:
        # ASCII only: text of an instance may contain terminal control sequences beyond those JSON escapes.
        self._out.write(json.dumps({"event": event, **fields}) + "\n")
        self._out.flush()
