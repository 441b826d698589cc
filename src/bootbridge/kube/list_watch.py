"""The list-then-watch state machine, without I/O: follows a resource without missing a change.

::

    LIST ──listed──▶ WATCH ──events──▶ WATCH      each event moves the resourceVersion on
     ▲                 │
     │                 ├─ ended by the server ──▶ WATCH from the last version
     │                 ├─ connection lost ──────▶ WATCH from the last version, after a pause
     └─ 410 Gone,      │
        any error   ◀──┘

410 Gone means that the API server has compacted that version: list again, at once. After
any other error of a watch (for example 403 Forbidden) a list follows after a pause, so the
state machine falls back to polling. Pauses double up to a bound and are jittered; any event
resets them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from bootbridge.kube.requests import Json

GONE = 410
PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class List:
    """List from ``resource_version``: "0" accepts the API server's cache, "" requests the newest state."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Watch:
    resource_version: str


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


class EventEffect(Enum):
    """The effect of an event: ``objects`` changed, did not change, or the watch is over."""

    CHANGED = auto()
    UNCHANGED = auto()
    WATCH_ENDED = auto()


class ListWatch:
    """The caller runs ``next_step`` and reports its result; ``objects`` is the current local copy."""

    def __init__(self, rng: random.Random) -> None:
        self.objects: dict[str, Json] = {}
        self._rng = rng
        self._version = ""  # of the last list or event; empty: a list is due
        self._list_version = "0"
        self._failures = 0
        self._pause = 0.0
        self._progress = False

    def next_step(self) -> List | Watch | Pause:
        if self._pause:
            pause, self._pause = self._pause, 0.0
            return Pause(pause)
        if not self._version:
            return List(self._list_version)
        self._progress = False
        return Watch(self._version)

    def listed(self, answer: Json) -> bool:
        """Replaces all objects; returns False, and pauses, if the response is not a list."""
        version, items = _version(answer), answer.get("items") or []
        if not version or not isinstance(items, list):
            self.refused(0)
            return False
        self.objects = {key: item for item in items if (key := _key(item))}
        self._version, self._list_version = version, "0"
        return True

    def event(self, event: Json) -> EventEffect:
        kind, item = event.get("type"), event.get("object")
        if kind == "ERROR":
            self.refused(_code(item))
            return EventEffect.WATCH_ENDED
        key, version = _key(item), _version(item)
        if not version or (kind != "BOOKMARK" and not key):
            return EventEffect.UNCHANGED
        self._version, self._failures, self._progress = version, 0, True
        return self._apply(kind, key, item)

    def ended(self) -> None:
        """The API server ended the watch; after a watch without any event the next one waits."""
        if not self._progress:
            self._back_off()

    def lost(self) -> None:
        """No response, or the connection broke: keeps the objects and repeats the step after a pause."""
        self._back_off()

    def refused(self, status: int, retry_after: float = 0.0) -> None:
        """The API server answered a list or a watch with an error: list again."""
        self._version = ""
        if status == GONE:
            self._list_version = ""
            if not self._failures:
                self._failures = 1
                return
        self._back_off(min(retry_after, PAUSE_SECONDS_MAX))

    def _apply(self, kind: Any, key: str, item: Any) -> EventEffect:
        if kind in ("ADDED", "MODIFIED"):
            self.objects[key] = item
            return EventEffect.CHANGED
        if kind == "DELETED" and self.objects.pop(key, None) is not None:
            return EventEffect.CHANGED
        return EventEffect.UNCHANGED

    def _back_off(self, at_least: float = 0.0) -> None:
        self._failures = min(self._failures + 1, 16)
        longest = min(PAUSE_SECONDS_MIN * 2 ** (self._failures - 1), PAUSE_SECONDS_MAX)
        self._pause = max(at_least, longest * self._rng.uniform(0.5, 1.0))


def _metadata(item: Any) -> Mapping[str, Any]:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _key(item: Any) -> str:
    metadata = _metadata(item)
    name = metadata.get("name")
    return f"{metadata.get('namespace', '')}/{name}" if name and isinstance(name, str) else ""


def _version(item: Any) -> str:
    version = _metadata(item).get("resourceVersion")
    return version if isinstance(version, str) else ""


def _code(status: Any) -> int:
    code = status.get("code") if isinstance(status, dict) else None
    return code if isinstance(code, int) else 0
