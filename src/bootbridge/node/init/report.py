"""Shows an init as it goes: on a terminal line by line with its times, or as JSON lines for a program."""

from __future__ import annotations

import json
import sys
from typing import Any, Protocol, TextIO

from bootbridge.common.progress import Progress
from bootbridge.node.init.messages import DONE, FAILED, OUTPUT, STARTED, StageEvent
from bootbridge.trust.evidence import AttestedPeer

# More does not help whoever reads it; the log has it all.
TEXT_CHARACTERS_MAX = 1000


class InitReport(Protocol):
    """What `InitClient` tells, and how it ended."""

    def waiting(self, reason: str) -> None: ...
    def connected(self, peer: AttestedPeer | None) -> None: ...
    def stage(self, event: StageEvent) -> None: ...
    def begun(self, init_id: str) -> None: ...

    def tick(self) -> None:
        """Time has passed and nothing happened; called every second."""
        ...

    def succeeded(self, cluster_id: bytes, kubeconfig: str) -> None: ...
    def failed(self, reason: str, advice: str, log: str) -> None: ...


class TextReport:
    """Stages for people. What a stage says is shown only while it lasts, or when it fails."""

    def __init__(self, progress: Progress, out: TextIO) -> None:
        self._progress = progress
        self._out = out
        self._said = ""
        self._reached = False
        self._begin("instance")

    def waiting(self, reason: str) -> None:
        self._said = _cut(reason)
        self._progress.waiting(self._said)

    def connected(self, peer: AttestedPeer | None) -> None:
        if self._reached:
            self._progress.line("     connected again")
            return
        self._reached = True
        self._progress.end(_proof(peer))
        for warning in peer.warnings if peer else ():
            self._progress.line(f"     warning: {_cut(warning)}")
        self._begin("init")

    def stage(self, event: StageEvent) -> None:
        if event.state == STARTED:
            self._begin(_cut(event.name))
        elif event.state == OUTPUT:
            self._said = _cut(event.text)
            self._progress.waiting(self._said)
        elif event.state == DONE:
            self._progress.end(_cut(event.text))
        elif event.state == FAILED:
            self._progress.end(_cut(event.text) or self._said, good=False)

    def begun(self, init_id: str) -> None:
        self._progress.line(f"     init {init_id}; should this terminal be lost, the same command watches it")

    def tick(self) -> None:
        self._progress.waiting(self._said or "under way")

    def succeeded(self, cluster_id: bytes, kubeconfig: str) -> None:
        self._out.write(
            f"The cluster is there, with the ID {cluster_id.hex()}.\n"
            f"Its administrator's kubeconfig is {kubeconfig}: kubectl --kubeconfig {kubeconfig} get nodes\n"
        )

    def failed(self, reason: str, advice: str, log: str) -> None:
        lines = [f"The init failed: {reason}"]
        lines += [f"What to do: {advice}"] if advice else []
        lines += [f"The instance's log is in {log}"] if log else []
        for line in lines:
            self._progress.line(_cut(line))

    def _begin(self, title: str) -> None:
        self._said = ""
        self._progress.begin(title)


def _proof(peer: AttestedPeer | None) -> str:
    if peer is None:
        return "reached; nothing was asked to be proven"
    return f"proved by {peer.kind} {peer.identity}".rstrip()


def _cut(text: str) -> str:
    return text[:TEXT_CHARACTERS_MAX]


class JsonReport:
    """One object for each event, on one line."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out

    def waiting(self, reason: str) -> None:
        self._say("waiting", reason=reason)

    def connected(self, peer: AttestedPeer | None) -> None:
        if peer is None:
            self._say("connected")
        else:
            self._say(
                "connected",
                kind=peer.kind,
                identity=peer.identity,
                facts=dict(peer.facts),
                warnings=list(peer.warnings),
            )

    def stage(self, event: StageEvent) -> None:
        self._say("stage", stage=event.name, state=event.state, text=event.text)

    def begun(self, init_id: str) -> None:
        self._say("begun", initID=init_id)

    def tick(self) -> None:
        """Not worth a line."""

    def succeeded(self, cluster_id: bytes, kubeconfig: str) -> None:
        self._say("succeeded", clusterID=cluster_id.hex(), kubeconfig=kubeconfig)

    def failed(self, reason: str, advice: str, log: str) -> None:
        self._say("failed", reason=reason, advice=advice, log=log)

    def _say(self, event: str, **fields: Any) -> None:
        # In ASCII: what an instance says may hold what drives a terminal, and JSON escapes only some of it.
        self._out.write(json.dumps({"event": event, **fields}) + "\n")
        self._out.flush()
