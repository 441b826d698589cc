"""Takes the tunnel away: part by part in reverse, never stopped by what fails, and proven at the end.

What remains is not what a removal reported, but what is found when everything is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from bootbridge.bootstrap.install import install_record
from bootbridge.bootstrap.install.receipt import Item, Receipt
from bootbridge.bootstrap.install.resources import Part, Site, parts
from bootbridge.bootstrap.install.resources.host import Record
from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ApiUnreachableError

T = TypeVar("T")
WAIT_SECONDS = 60.0
PROBE_SECONDS = 10.0
# A removal that is not over by then may need more than asking.
INSIST_AFTER_SECONDS = 10.0


@dataclass
class Teardown:
    """One removal. `wait_seconds` is the limit for each part to be gone."""

    site: Site
    progress: Progress
    recorded: bool = True
    wait_seconds: float = WAIT_SECONDS
    warnings: list[str] = field(default_factory=list)
    silent: bool = False  # the API server stayed away for as long as one waits: not again
    stuck: set[str] = field(default_factory=set)  # parts that were waited for in vain: not again

    def run(self) -> Receipt:
        self.silent = bool(self._ask_cluster(min(PROBE_SECONDS, self.wait_seconds)))
        order = list(reversed(parts(self.site)))
        found = self._unique(item for part in order for item in self._found(part))
        for part in order:
            if not isinstance(part, Record):
                self._take(part)
        # The API server was restarted on the way.
        self._ask_cluster(0.0 if self.silent else self.wait_seconds)
        self._take_latecomers(order[:-1])
        remains = self._remains(order[:-1])
        self._take_record(order[-1], remains)
        remains += self._record_kept(order[-1], remains)
        gone = tuple(item for item in found if item.what not in {left.what for left in remains})
        return Receipt(
            self.site.plan,
            self.recorded,
            self.site.now,
            found=tuple(found),
            removed=gone,
            remains=tuple(remains),
            warnings=tuple(dict.fromkeys(self.warnings)),
        )

    def survey(self) -> list[Item]:
        """All that is there, in the order of removal; touches nothing."""
        self._ask_cluster(min(PROBE_SECONDS, self.wait_seconds))
        return self._unique(item for part in reversed(parts(self.site)) for item in self._found(part))

    # --- one part

    def _take(self, part: Part) -> None:
        self.progress.begin(part.title)
        if self._skipped(part):
            return
        try:
            if not self._patiently(part.find):
                return
            self._patiently(part.remove)
            left = self._wait_until_gone(part)
        except OperatorError as error:
            left = str(error)
        if left:
            self.stuck.add(part.name)
            self.warnings.append(f"{part.title}: {left}")
        self.progress.end(left or "removed", good=not left)

    def _take_latecomers(self, order: list[Part]) -> None:
        """What came when its part was gone already: a server that the kubelet was just about to start."""
        for part in order:
            if part.name in self.stuck or self._skipped(part):
                continue
            with contextlib.suppress(OperatorError):  # the last look says what cannot be looked for
                if part.find():
                    self._take(part)

    def _wait_until_gone(self, part: Part) -> str:
        patience = min(INSIST_AFTER_SECONDS, self.wait_seconds)
        if not self.progress.wait(lambda: self._left(part), patience):
            return ""
        if done := part.insist():
            self.warnings.append(f"{part.title}: {done}")
        return self.progress.wait(lambda: self._left(part), self.wait_seconds - patience)

    def _left(self, part: Part) -> str:
        left = self._patiently(part.find)
        return f"{left[0]}: {part.why_it_stays(left[0])}" if left else ""

    def _found(self, part: Part) -> Iterator[Item]:
        if self._skipped(part):
            return
        try:
            yield from [Item(part.name, what) for what in self._patiently(part.find)]
        except OperatorError as error:
            self.warnings.append(f"{part.title}: cannot be looked for: {error}")

    def _remains(self, order: list[Part]) -> list[Item]:
        return self._unique(item for part in order for item in self._still_there(part))

    def _still_there(self, part: Part) -> Iterator[Item]:
        if self._skipped(part):
            return
        try:
            yield from [Item(part.name, what, part.why_it_stays(what)) for what in part.find()]
        except OperatorError as error:
            yield Item(part.name, part.title, f"cannot be checked: {error}")

    def _unique(self, items: Iterator[Item]) -> list[Item]:
        """A file in the state directory is found by its own part and by the record; the former wins."""
        unique: dict[str, Item] = {}
        for item in items:
            unique.setdefault(item.what, item)
        return list(unique.values())

    # --- the record goes last, and only when nothing needs it any more

    def _take_record(self, record: Part, remains: list[Item]) -> None:
        if not remains:
            self._take(record)

    def _record_kept(self, record: Part, remains: list[Item]) -> list[Item]:
        if not remains:
            return list(self._still_there(record))
        if not self.site.host.exists(self.site.plan.paths.plan_record):
            return []
        why = "kept for the next `bootbridge down`, as something else remains"
        return [Item(record.name, self.site.plan.paths.plan_record, why)]

    # --- the cluster

    def _patiently(self, deed: Callable[[], T]) -> T:
        """An API server whose manifest was changed is away for a while: it is asked again when it is back."""
        try:
            return deed()
        except ApiUnreachableError:
            # Waited for once: whoever stays away is not waited for again with every part.
            if not self.silent:
                self.silent = bool(self.progress.wait(self._cluster_trouble, self.wait_seconds))
            if self.silent:
                raise
            return deed()

    def _ask_cluster(self, seconds: float) -> str:
        if self.site.cluster is None:
            return self._no_cluster()
        self.progress.begin("API server")
        reason = self.progress.wait(self._cluster_trouble, seconds)
        if reason:
            self.warnings.append(f"the API server does not answer: {reason}")
            self.progress.end(reason, good=False)
        return reason

    def _cluster_trouble(self) -> str:
        return self.site.cluster.probe() if self.site.cluster else ""

    def _no_cluster(self) -> str:
        self.warnings.append("no kubeconfig was found, so the cluster was not asked")
        return "no kubeconfig"

    def _skipped(self, part: Part) -> bool:
        """A cluster that cannot be asked and that we never sent anything to has nothing of ours."""
        if not part.in_cluster:
            return False
        noted = install_record.load(self.site.host, self.site.plan)
        never_touched = noted is not None and not noted.cluster
        if self.site.cluster is None:
            return noted is None or never_touched
        return never_touched and bool(self.site.cluster.unreachable_reason)
