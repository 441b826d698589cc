"""Follows a bootstrap until the tunnel is ready: stages, resources, agents per node, the first dial.

`observe` looks once and returns lines. The text of a line changes only when something has happened, so that
a log has a line for each change and no others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from bootbridge.bootstrap.diagnose.gather.analysis import analyse
from bootbridge.bootstrap.install import status
from bootbridge.bootstrap.install.context import InstallContext
from bootbridge.bootstrap.install.status import PRESENT, InstallStatus
from bootbridge.bootstrap.plan.plan import BootkubeStage, Flavour
from bootbridge.errors import OperatorError
from bootbridge.kube.kinds import NODE

RECORDS = "/var/log/openshift"
SERVICES = ("release-image", "bootkube")
NODES_SHOWN_MAX = 10
_STATUS_PAGE = "/status?agents_limit=1000&connections_limit=1"
_Json = Mapping[str, Any]


class WatchState(StrEnum):
    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"
    NOTE = "note"


@dataclass(frozen=True)
class WatchLine:
    title: str
    state: WatchState
    text: str
    started: datetime | None = None  # of what runs now; a terminal shows for how long

    def document(self) -> dict[str, str]:
        return {"title": self.title, "state": str(self.state), "text": self.text}


@dataclass(frozen=True)
class Observation:
    lines: tuple[WatchLine, ...]
    works: bool
    result: str = ""  # why there is nothing to wait for


def observe(context: InstallContext) -> Observation:
    """Looks at everything once, without waiting."""
    found = status.inspect(context)
    served = _server_status(context)
    completed, stages = _stages(context)
    lines = [*stages, *_resources(found), _server(found), *_agents(context, found, served), *_dials(served)]
    if found.works:
        result = "The tunnel is ready."
    else:
        result = f"The bootstrap has completed; {_end_of_tunnel(context, stages)}." if completed else ""
    return Observation(tuple(lines), found.works, result)


# --- stages of bootkube


def _stages(context: InstallContext) -> tuple[bool, list[WatchLine]]:
    """Returns whether bootkube has succeeded, and the lines of a node with stage records."""
    if context.plan.flavour is not Flavour.OPENSHIFT:
        return False, []
    records = {
        service: data
        for service in SERVICES
        if (data := context.host.read(f"{RECORDS}/{service}.json")) is not None
    }
    found = analyse(records)
    succeeded = found.succeeded and found.service == "bootkube"
    entries = _last_run(records.get("bootkube", b""))
    ended = sum(each.get("phase") == "stage end" for each in entries)
    state = WatchState.FAILED if found.failed else WatchState.DONE if succeeded else WatchState.RUNNING
    lines = [
        WatchLine("bootkube", state, f"{found.sentence} Stages ended: {ended}.", _running_since(entries))
    ]
    lines += [_stage(stage, entries) for stage in BootkubeStage]
    return succeeded, lines


def _stage(stage: str, entries: list[_Json]) -> WatchLine:
    own = [each for each in entries if each.get("stage") == stage]
    title = _title(stage)
    if not own:
        return WatchLine(title, WatchState.WAITING, "not started")
    last = own[-1]
    if last.get("phase") == "stage start":
        return WatchLine(title, WatchState.RUNNING, "running", _time(last))
    if last.get("result") == "failure":
        reason = str(last.get("errorMessage") or "").strip().rpartition("\n")[2]
        return WatchLine(title, WatchState.FAILED, f"failed: {reason}" if reason else "failed")
    return WatchLine(title, WatchState.DONE, "succeeded")


def _end_of_tunnel(context: InstallContext, stages: list[WatchLine]) -> str:
    if any(line.state is WatchState.FAILED for line in stages if line.title == _title(BootkubeStage.CLEANUP)):
        return f"the tunnel is not removed completely: see {context.plan.paths.receipt}"
    return "the tunnel was removed"


def _title(stage: str) -> str:
    return f"stage {stage.removeprefix('konnectivity-')}"


def _last_run(data: bytes) -> list[_Json]:
    """Returns the entries since the service was started last; systemd restarts it after a failure."""
    try:
        document = json.loads(data or b"[]")
    except ValueError:
        return []  # it is being written
    entries: list[_Json] = _objects({"entries": document}, "entries")
    starts = [at for at, each in enumerate(entries) if each.get("phase") == "service start"]
    return entries[starts[-1] :] if starts else entries


def _running_since(entries: list[_Json]) -> datetime | None:
    return _time(entries[-1]) if entries and entries[-1].get("phase") == "stage start" else None


def _time(entry: _Json) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(entry.get("timestamp")))
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


# --- the tunnel


def _resources(found: InstallStatus) -> Iterator[WatchLine]:
    for each in found.resources:
        state = (
            WatchState.DONE
            if each.works
            else WatchState.RUNNING
            if each.state == PRESENT
            else WatchState.WAITING
        )
        text = f"{each.state}: {each.detail}" if each.detail else each.state
        yield WatchLine(each.title, state, text)


def _server(found: InstallStatus) -> WatchLine:
    if found.server_ready:
        return WatchLine("server", WatchState.DONE, "ready")
    text = "no agent connected" if found.server_healthy else "no answer"
    return WatchLine("server", WatchState.RUNNING if found.server_healthy else WatchState.WAITING, text)


def _agents(context: InstallContext, found: InstallStatus, served: _Json) -> Iterator[WatchLine]:
    """Agents per node: of all nodes if the cluster lists them, else of those with an agent."""
    by_node: dict[str, int] = {}
    for agent in _objects(served, "agents"):
        node = str(agent.get("node") or agent.get("id") or "")
        by_node[node] = by_node.get(node, 0) + 1
    if not by_node:
        by_node = dict.fromkeys(found.agents or (), 1)
    nodes = _nodes(context)
    connected = sum(by_node.values())
    of = f" on {sum(node in by_node for node in nodes)} of {len(nodes)} nodes" if nodes else ""
    state = WatchState.DONE if connected and all(node in by_node for node in nodes) else WatchState.RUNNING
    yield WatchLine("agents", state if connected else WatchState.WAITING, f"{connected} connected{of}")
    names = sorted({*nodes, *by_node}, key=lambda node: (node in by_node, node))
    for node in names[:NODES_SHOWN_MAX]:
        count = by_node.get(node, 0)
        text = "no agent connected" if not count else "connected" if count == 1 else f"{count} connected"
        yield WatchLine(f"  node {node}", WatchState.DONE if count else WatchState.WAITING, text)
    if len(names) > NODES_SHOWN_MAX:
        yield WatchLine("  more nodes", WatchState.NOTE, str(len(names) - NODES_SHOWN_MAX))


def _nodes(context: InstallContext) -> list[str]:
    if context.cluster is None:
        return []
    try:
        return sorted(str(node["metadata"]["name"]) for node in context.cluster.list(NODE))
    except OperatorError:
        return []


def _dials(served: _Json) -> Iterator[WatchLine]:
    """The first successful dial, as far as the server remembers, and the last failure."""
    dials = served.get("dials")
    succeeded = dials.get("succeeded") if isinstance(dials, dict) else None
    if not isinstance(succeeded, int):
        return  # not our server, or no answer
    recent = [each for each in _objects(served, "recentDials") if each.get("outcome") == "established"]
    if not succeeded:
        yield WatchLine("first dial", WatchState.WAITING, "none succeeded yet")
    elif len(recent) >= succeeded:
        first = recent[-1]
        through = f" through {first['agent']}" if first.get("agent") else ""
        yield WatchLine(
            "first dial", WatchState.DONE, f"{first.get('time')} to {first.get('destination')}{through}"
        )
    else:
        oldest = f" before {recent[-1].get('time')}" if recent else ""
        yield WatchLine("first dial", WatchState.DONE, f"succeeded{oldest}")
    for last in _objects(served, "recentFailures")[:1]:
        reason = ": ".join(str(last[key]) for key in ("hop", "reason") if last.get(key))
        yield WatchLine(
            "last failed dial",
            WatchState.FAILED,
            f"{last.get('time')} to {last.get('destination')}: {reason}",
        )


def _server_status(context: InstallContext) -> _Json:
    code, body = context.host.http_get(context.plan.ports.server_admin, _STATUS_PAGE)
    try:
        document = json.loads(body) if code == 200 else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _objects(document: _Json, field: str) -> list[_Json]:
    value = document.get(field)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
