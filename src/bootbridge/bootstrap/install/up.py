"""Lays the tunnel: part by part, in order, each waited for before the next stands on it.

Every part is left alone when it is as it should be, so running it again continues
where it stopped, whatever stopped it. Nothing that worked is undone by what fails later.
"""

from __future__ import annotations

from dataclasses import dataclass

from bootbridge.bootstrap.install.resources import ApiserverSetting, Part, Site, parts
from bootbridge.bootstrap.install.resources.resource import Change, Outcome
from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError

WAIT_SECONDS = 300.0


@dataclass(frozen=True)
class Laying:
    """What was done to each part, and what the operator has to do next, if anything."""

    outcomes: tuple[tuple[Part, Outcome], ...]
    next_step: str = ""

    @property
    def unchanged(self) -> bool:
        return all(outcome.change is Change.UNCHANGED for _, outcome in self.outcomes)


def lay(site: Site, progress: Progress, *, wait_seconds: float = WAIT_SECONDS, wait: bool = True) -> Laying:
    """Bring all parts to what the plan says; `wait_seconds` is the limit for each of them."""
    patience = wait_seconds if wait else 0.0
    done = []
    for part in _within_reach(site):
        progress.begin(part.title)
        try:
            done.append((part, _lay_part(site, part, progress, patience, wait)))
        except OperatorError as error:
            progress.end(str(error), good=False)
            raise _stopped(part, error) from error
        except KeyboardInterrupt:
            progress.end(
                "interrupted; `bootbridge up` goes on from here, `bootbridge down` undoes it", good=False
            )
            raise
    return Laying(tuple(done), next_step(site))


def foresee(site: Site) -> Laying:
    """What `lay` would do; touches nothing."""
    return Laying(tuple((part, part.preview()) for part in _within_reach(site)), next_step(site))


def next_step(site: Site) -> str:
    """What comes after, when this node has no cluster yet."""
    if site.cluster is not None:
        return ""
    return "there is no cluster yet: bring it up with the file above, then run `bootbridge up` again"


def _lay_part(site: Site, part: Part, progress: Progress, patience: float, wait: bool) -> Outcome:
    if reason := progress.wait(part.blocked, patience):
        raise OperatorError(reason)
    outcome = part.apply()
    if wait and _can_be_ready(site, part) and (reason := progress.wait(part.unready, patience)):
        raise OperatorError(f"not ready after {patience:.0f} s: {reason}")
    progress.end(str(outcome))
    return outcome


def _within_reach(site: Site) -> list[Part]:
    """Without a cluster, the parts on the node alone."""
    laid = [part for part in parts(site) if part.is_laid]
    return [part for part in laid if site.cluster is not None or not part.in_cluster]


def _can_be_ready(site: Site, part: Part) -> bool:
    """Before there is a cluster, its kubelet starts nothing."""
    return site.cluster is not None or isinstance(part, ApiserverSetting)


def _stopped(part: Part, error: OperatorError) -> OperatorError:
    said = f"{part.title}: {error}"
    return OperatorError(
        said, hint="mend it and run `bootbridge up` again, or take all away with `bootbridge down`"
    )
