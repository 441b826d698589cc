"""Removes all resources in reverse order, continues after failures, and verifies the result.

What remains is not what a removal reported, but what a final search finds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from bootbridge.bootstrap.install import install_record
from bootbridge.bootstrap.install.receipt import Receipt, ReceiptItem
from bootbridge.bootstrap.install.resources import InstallContext, Resource, resources
from bootbridge.bootstrap.install.resources.host import PlanRecordFile
from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ApiUnreachableError

T = TypeVar("T")
WAIT_SECONDS = 60.0
PROBE_SECONDS = 10.0
# A removal that is not complete after this time may be stuck.
FORCE_AFTER_SECONDS = 10.0


@dataclass
class Removal:
    """One run of `down`; `wait_seconds` limits the wait for each resource."""

    context: InstallContext
    progress: Progress
    recorded: bool = True
    wait_seconds: float = WAIT_SECONDS
    warnings: list[str] = field(default_factory=list)
    unreachable: bool = False  # the API server did not answer in time; it is not waited for again
    stuck: set[str] = field(default_factory=set)  # resources whose removal timed out; not tried again

    def run(self) -> Receipt:
        self.unreachable = bool(self._wait_for_cluster(min(PROBE_SECONDS, self.wait_seconds)))
        order = list(reversed(resources(self.context)))
        found = self._unique(item for resource in order for item in self._found(resource))
        for resource in order:
            if not isinstance(resource, PlanRecordFile):
                self._remove(resource)
        # The removal of the egress setting restarted the API server.
        self._wait_for_cluster(0.0 if self.unreachable else self.wait_seconds)
        self._remove_late_arrivals(order[:-1])
        remains = self._remains(order[:-1])
        self._remove_record(order[-1], remains)
        remains += self._record_kept(order[-1], remains)
        gone = tuple(item for item in found if item.name not in {left.name for left in remains})
        return Receipt(
            self.context.plan,
            self.recorded,
            self.context.now,
            found=tuple(found),
            removed=gone,
            remains=tuple(remains),
            warnings=tuple(dict.fromkeys(self.warnings)),
        )

    def dry_run(self) -> list[ReceiptItem]:
        """Returns what exists, in the order of removal; changes nothing."""
        self._wait_for_cluster(min(PROBE_SECONDS, self.wait_seconds))
        return self._unique(
            item for resource in reversed(resources(self.context)) for item in self._found(resource)
        )

    # --- one resource

    def _remove(self, resource: Resource) -> None:
        self.progress.begin(resource.title)
        if self._skipped(resource):
            return
        try:
            if not self._retried(resource.find):
                return
            self._retried(resource.remove)
            left = self._wait_until_gone(resource)
        except OperatorError as error:
            left = str(error)
        if left:
            self.stuck.add(resource.name)
            self.warnings.append(f"{resource.title}: {left}")
        self.progress.end(left or "removed", good=not left)

    def _remove_late_arrivals(self, order: list[Resource]) -> None:
        """Removes what appeared after its removal, such as a server that the kubelet was about to start."""
        for resource in order:
            if resource.name in self.stuck or self._skipped(resource):
                continue
            with contextlib.suppress(OperatorError):  # the final search reports it
                if resource.find():
                    self._remove(resource)

    def _wait_until_gone(self, resource: Resource) -> str:
        timeout = min(FORCE_AFTER_SECONDS, self.wait_seconds)
        if not self.progress.wait(lambda: self._left(resource), timeout):
            return ""
        if done := resource.force_remove():
            self.warnings.append(f"{resource.title}: {done}")
        return self.progress.wait(lambda: self._left(resource), self.wait_seconds - timeout)

    def _left(self, resource: Resource) -> str:
        left = self._retried(resource.find)
        return f"{left[0]}: {resource.removal_blocker(left[0])}" if left else ""

    def _found(self, resource: Resource) -> Iterator[ReceiptItem]:
        if self._skipped(resource):
            return
        try:
            yield from [ReceiptItem(resource.name, name) for name in self._retried(resource.find)]
        except OperatorError as error:
            self.warnings.append(f"{resource.title}: search failed: {error}")

    def _remains(self, order: list[Resource]) -> list[ReceiptItem]:
        return self._unique(item for resource in order for item in self._still_there(resource))

    def _still_there(self, resource: Resource) -> Iterator[ReceiptItem]:
        if self._skipped(resource):
            return
        try:
            yield from [
                ReceiptItem(resource.name, name, resource.removal_blocker(name)) for name in resource.find()
            ]
        except OperatorError as error:
            yield ReceiptItem(resource.name, resource.title, f"verification failed: {error}")

    def _unique(self, items: Iterator[ReceiptItem]) -> list[ReceiptItem]:
        """Drops duplicates: a file in the state directory is found by its resource and by the plan record."""
        unique: dict[str, ReceiptItem] = {}
        for item in items:
            unique.setdefault(item.name, item)
        return list(unique.values())

    # --- the plan record is removed last, and only if nothing remains

    def _remove_record(self, record: Resource, remains: list[ReceiptItem]) -> None:
        if not remains:
            self._remove(record)

    def _record_kept(self, record: Resource, remains: list[ReceiptItem]) -> list[ReceiptItem]:
        if not remains:
            return list(self._still_there(record))
        if not self.context.host.exists(self.context.plan.paths.plan_record):
            return []
        reason = "kept for the next `bootbridge down`, because something else remains"
        return [ReceiptItem(record.name, self.context.plan.paths.plan_record, reason)]

    # --- the cluster

    def _retried(self, act: Callable[[], T]) -> T:
        """Calls `act`; if the API server is restarting, waits for it once and calls `act` again."""
        try:
            return act()
        except ApiUnreachableError:
            if not self.unreachable:
                self.unreachable = bool(self.progress.wait(self._unreachable_reason, self.wait_seconds))
            if self.unreachable:
                raise
            return act()

    def _wait_for_cluster(self, seconds: float) -> str:
        if self.context.cluster is None:
            return self._no_cluster()
        self.progress.begin("API server")
        reason = self.progress.wait(self._unreachable_reason, seconds)
        if reason:
            self.warnings.append(f"API server unreachable: {reason}")
            self.progress.end(reason, good=False)
        return reason

    def _unreachable_reason(self) -> str:
        return self.context.cluster.probe() if self.context.cluster else ""

    def _no_cluster(self) -> str:
        self.warnings.append("kubeconfig not found: the cluster was not searched")
        return "no kubeconfig"

    def _skipped(self, resource: Resource) -> bool:
        """Whether an unreachable cluster can be ignored, because nothing was ever sent to it."""
        if not resource.in_cluster:
            return False
        record = install_record.load(self.context.host, self.context.plan)
        never_touched = record is not None and not record.cluster
        if self.context.cluster is None:
            return record is None or never_touched
        return never_touched and bool(self.context.cluster.unreachable_reason)
