"""What a resource of the tunnel is: something that can be found, applied, waited for and removed."""

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
    """One resource. Creation order is the order of the list of resources, removal order is its reverse."""

    name: ClassVar[str]  # as the receipt calls it
    title: ClassVar[str]
    in_cluster: ClassVar[bool] = False
    installed_by_up: ClassVar[bool] = True  # by `up`; if not, it comes by other hands, and `down` alone cares

    @abstractmethod
    def find(self) -> list[str]:
        """Everything of this resource that is there now: paths, objects, processes."""

    @abstractmethod
    def preview(self) -> ApplyResult:
        """What `apply` would do; touches nothing."""

    @abstractmethod
    def apply(self) -> ApplyResult:
        """Bring it to what the plan says; nothing is touched that is so already."""

    @abstractmethod
    def remove(self) -> None:
        """Start to take it away; it is gone when `find` finds nothing."""

    def force_remove(self) -> str:
        """After `remove` has not been enough for a while: do what more can be done, and say it."""
        return ""

    def apply_blocker(self) -> str:
        """Why it cannot be applied yet; empty when it can."""
        return ""

    def unready_reason(self) -> str:
        """Why it does not work yet; empty when it does."""
        return ""

    def removal_blocker(self, what: str) -> str:
        """Of something found after `remove`: what keeps it."""
        return "still there"
