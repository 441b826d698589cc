"""The interface of a resource: find, preview, apply, wait, remove."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class ResourceChange(StrEnum):
    """What applying a resource did, or would do."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class ApplyResult:
    change: ResourceChange
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.change}: {self.detail}" if self.detail else str(self.change)


class Resource(ABC):
    """One thing that `up` creates and `down` removes. Reasons are texts; an empty text means none."""

    name: ClassVar[str]  # in receipts and JSON
    title: ClassVar[str]
    in_cluster: ClassVar[bool] = False
    installed_by_up: ClassVar[bool] = True  # False: others create it, and only `down` handles it

    @abstractmethod
    def find(self) -> list[str]:
        """Returns what exists of it now: paths, objects, processes."""

    @abstractmethod
    def preview(self) -> ApplyResult:
        """Returns what `apply` would do; changes nothing."""

    @abstractmethod
    def apply(self) -> ApplyResult:
        """Creates or changes it as the plan requires; does nothing if it matches already."""

    @abstractmethod
    def remove(self) -> None:
        """Starts the removal, which is complete when `find` returns nothing."""

    def force_remove(self) -> str:
        """Completes a removal that is stuck, if that is safe; returns what was done."""
        return ""

    def apply_blocker(self) -> str:
        """Why it cannot be applied yet."""
        return ""

    def unready_reason(self) -> str:
        """Why it is not ready yet."""
        return ""

    def removal_blocker(self, name: str) -> str:
        """Why `name`, which `find` returned after `remove`, still exists."""
        return "not removed yet"
