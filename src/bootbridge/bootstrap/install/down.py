"""Takes the tunnel away: resource by resource in reverse, never stopped by what fails, and proven at the end.

What remains is not what a removal reported, but what is found when everything is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from bootbridge.bootstrap.install import install_record
from bootbridge.bootstrap.install.receipt import Receipt, ReceiptItem
from bootbridge.bootstrap.install.resources import InstallContext, Resource, resources
from bootbridge.bootstrap.install.resources.host import Record
from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ApiUnreachableError

T = TypeVar("T")
WAIT_SECONDS = 60.0
PROBE_SECONDS = 10.0
# A removal that is not over by then may need more than asking.
FORCE_AFTER_SECONDS = 10.0


@dataclass
class Removal:
    """One removal. `wait_seconds` is the limit for each resource to be gone."""

    context: InstallContext
    progress: Progress
    recorded: bool = True
    wait_seconds: float = WAIT_SECONDS
    warnings: list[str] = field(default_factory=list)
    silent: bool = False  # the API server stayed away for as long as one waits: not again
    stuck: set[str] = field(default_factory=set)  # resources that were waited for in vain: not again

    def run(self) -> Receipt:
        self.silent = bool(self._ask_cluster(min(PROBE_SECONDS, self.wait_seconds)))
        order = list(reversed(resources(self.context)))
        found = self._unique(item for resource in order for item in self._found(resource))
        for resource in order:
            if not isinstance(resource, Record):
                self._take(resource)
        # The API server was restarted on the way.
        self._ask_cluster(0.0 if self.silent else self.wait_seconds)
        self._take_latecomers(order[:-1])
        remains = self._remains(order[:-1])
        self._take_record(order[-1], remains)
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
        """All that is there, in the order of removal; touches nothing."""
        self._ask_cluster(min(PROBE_SECONDS, self.wait_seconds))
        return self._unique(
            item for resource in reversed(resources(self.context)) for item in self._found(resource)
        )

    # --- one resource

    def _take(self, resource: Resource) -> None:
        self.progress.begin(resource.title)
        if self._skipped(resource):
            return
        try:
            if not self._patiently(resource.find):
                return
            self._patiently(resource.remove)
            left = self._wait_until_gone(resource)
        except OperatorError as error:
            left = str(error)
        if left:
            self.stuck.add(resource.name)
            self.warnings.append(f"{resource.title}: {left}")
        self.progress.end(left or "removed", good=not left)

    def _take_latecomers(self, order: list[Resource]) -> None:
        """What came when its resource was gone already: a server that the kubelet was just about to start."""
        for resource in order:
            if resource.name in self.stuck or self._skipped(resource):
                continue
            with contextlib.suppress(OperatorError):  # the last look says what cannot be looked for
                if resource.find():
                    self._take(resource)

    def _wait_until_gone(self, resource: Resource) -> str:
        patience = min(FORCE_AFTER_SECONDS, self.wait_seconds)
        if not self.progress.wait(lambda: self._left(resource), patience):
            return ""
        if done := resource.force_remove():
            self.warnings.append(f"{resource.title}: {done}")
        return self.progress.wait(lambda: self._left(resource), self.wait_seconds - patience)

    def _left(self, resource: Resource) -> str:
        left = self._patiently(resource.find)
        return f"{left[0]}: {resource.removal_blocker(left[0])}" if left else ""

    def _found(self, resource: Resource) -> Iterator[ReceiptItem]:
        if self._skipped(resource):
            return
        try:
            yield from [ReceiptItem(resource.name, what) for what in self._patiently(resource.find)]
        except OperatorError as error:
            self.warnings.append(f"{resource.title}: cannot be looked for: {error}")

    def _remains(self, order: list[Resource]) -> list[ReceiptItem]:
        return self._unique(item for resource in order for item in self._still_there(resource))

    def _still_there(self, resource: Resource) -> Iterator[ReceiptItem]:
        if self._skipped(resource):
            return
        try:
            yield from [
                ReceiptItem(resource.name, what, resource.removal_blocker(what)) for what in resource.find()
            ]
        except OperatorError as error:
            yield ReceiptItem(resource.name, resource.title, f"cannot be checked: {error}")

    def _unique(self, items: Iterator[ReceiptItem]) -> list[ReceiptItem]:
        """A file in the state directory is found by its own resource and by the record; the former wins."""
        unique: dict[str, ReceiptItem] = {}
        for item in items:
            unique.setdefault(item.name, item)
        return list(unique.values())

    # --- the record goes last, and only when nothing needs it any more

    def _take_record(self, record: Resource, remains: list[ReceiptItem]) -> None:
        if not remains:
            self._take(record)

    def _record_kept(self, record: Resource, remains: list[ReceiptItem]) -> list[ReceiptItem]:
        if not remains:
            return list(self._still_there(record))
        if not self.context.host.exists(self.context.plan.paths.plan_record):
            return []
        why = "kept for the next `bootbridge down`, as something else remains"
        return [ReceiptItem(record.name, self.context.plan.paths.plan_record, why)]

    # --- the cluster

    def _patiently(self, deed: Callable[[], T]) -> T:
        """An API server whose manifest was changed is away for a while: it is asked again when it is back."""
        try:
            return deed()
        except ApiUnreachableError:
            # Waited for once: whoever stays away is not waited for again with every resource.
            if not self.silent:
                self.silent = bool(self.progress.wait(self._cluster_trouble, self.wait_seconds))
            if self.silent:
                raise
            return deed()

    def _ask_cluster(self, seconds: float) -> str:
        if self.context.cluster is None:
            return self._no_cluster()
        self.progress.begin("API server")
        reason = self.progress.wait(self._cluster_trouble, seconds)
        if reason:
            self.warnings.append(f"the API server does not answer: {reason}")
            self.progress.end(reason, good=False)
        return reason

    def _cluster_trouble(self) -> str:
        return self.context.cluster.probe() if self.context.cluster else ""

    def _no_cluster(self) -> str:
        self.warnings.append("no kubeconfig was found, so the cluster was not asked")
        return "no kubeconfig"

    def _skipped(self, resource: Resource) -> bool:
        """A cluster that cannot be asked and that we never sent anything to has nothing of ours."""
        if not resource.in_cluster:
            return False
        noted = install_record.load(self.context.host, self.context.plan)
        never_touched = noted is not None and not noted.cluster
        if self.context.cluster is None:
            return noted is None or never_touched
        return never_touched and bool(self.context.cluster.unreachable_reason)
