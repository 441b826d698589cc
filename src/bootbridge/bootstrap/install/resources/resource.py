"""What a part of the tunnel is: something that can be found, applied, waited for and removed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Change(StrEnum):
    """What applying a part did, or would do."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Outcome:
    change: Change
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.change}: {self.detail}" if self.detail else str(self.change)


class Part(ABC):
    """One part. Creation order is the order of the list of parts, removal order is its reverse."""

    name: ClassVar[str]  # as the receipt calls it
    title: ClassVar[str]
    in_cluster: ClassVar[bool] = False
    is_laid: ClassVar[bool] = True  # by `up`; if not, it comes by other hands, and `down` alone cares

    @abstractmethod
    def find(self) -> list[str]:
        """Everything of this part that is there now: paths, objects, processes."""

    @abstractmethod
    def preview(self) -> Outcome:
        """What `apply` would do; touches nothing."""

    @abstractmethod
    def apply(self) -> Outcome:
        """Bring it to what the plan says; nothing is touched that is so already."""

    @abstractmethod
    def remove(self) -> None:
        """Start to take it away; it is gone when `find` finds nothing."""

    def insist(self) -> str:
        """After `remove` has not been enough for a while: do what more can be done, and say it."""
        return ""

    def blocked(self) -> str:
        """Why it cannot be applied yet; empty when it can."""
        return ""

    def unready(self) -> str:
        """Why it does not work yet; empty when it does."""
        return ""

    def why_it_stays(self, what: str) -> str:
        """Of something found after `remove`: what keeps it."""
        return "still there"
