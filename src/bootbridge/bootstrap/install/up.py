"""Lays the tunnel: resource by resource, in order, each waited for before the next stands on it.

Every resource is left alone when it is as it should be, so running it again continues
where it stopped, whatever stopped it. Nothing that worked is undone by what fails later.
"""

from __future__ import annotations

from dataclasses import dataclass

from bootbridge.bootstrap.install.resources import ApiserverSetting, InstallContext, Resource, resources
from bootbridge.bootstrap.install.resources.resource import ApplyResult, ResourceChange
from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError

WAIT_SECONDS = 300.0


@dataclass(frozen=True)
class InstallResult:
    """What was done to each resource, and what the operator has to do next, if anything."""

    applied: tuple[tuple[Resource, ApplyResult], ...]
    next_step: str = ""

    @property
    def unchanged(self) -> bool:
        return all(outcome.change is ResourceChange.UNCHANGED for _, outcome in self.applied)


def install(
    context: InstallContext, progress: Progress, *, wait_seconds: float = WAIT_SECONDS, wait: bool = True
) -> InstallResult:
    """Bring all resources to what the plan says; `wait_seconds` is the limit for each of them."""
    patience = wait_seconds if wait else 0.0
    done = []
    for resource in _within_reach(context):
        progress.begin(resource.title)
        try:
            done.append((resource, _install_resource(context, resource, progress, patience, wait)))
        except OperatorError as error:
            progress.end(str(error), good=False)
            raise _stopped(resource, error) from error
        except KeyboardInterrupt:
            progress.end(
                "interrupted; `bootbridge up` goes on from here, `bootbridge down` undoes it", good=False
            )
            raise
    return InstallResult(tuple(done), next_step(context))


def dry_run(context: InstallContext) -> InstallResult:
    """What `lay` would do; touches nothing."""
    return InstallResult(
        tuple((resource, resource.preview()) for resource in _within_reach(context)), next_step(context)
    )


def next_step(context: InstallContext) -> str:
    """What comes after, when this node has no cluster yet."""
    if context.cluster is not None:
        return ""
    return "there is no cluster yet: bring it up with the file above, then run `bootbridge up` again"


def _install_resource(
    context: InstallContext, resource: Resource, progress: Progress, patience: float, wait: bool
) -> ApplyResult:
    if reason := progress.wait(resource.apply_blocker, patience):
        raise OperatorError(reason)
    outcome = resource.apply()
    if (
        wait
        and _can_be_ready(context, resource)
        and (reason := progress.wait(resource.unready_reason, patience))
    ):
        raise OperatorError(f"not ready after {patience:.0f} s: {reason}")
    progress.end(str(outcome))
    return outcome


def _within_reach(context: InstallContext) -> list[Resource]:
    """Without a cluster, the resources on the node alone."""
    laid = [resource for resource in resources(context) if resource.installed_by_up]
    return [resource for resource in laid if context.cluster is not None or not resource.in_cluster]


def _can_be_ready(context: InstallContext, resource: Resource) -> bool:
    """Before there is a cluster, its kubelet starts nothing."""
    return context.cluster is not None or isinstance(resource, ApiserverSetting)


def _stopped(resource: Resource, error: OperatorError) -> OperatorError:
    said = f"{resource.title}: {error}"
    return OperatorError(
        said, hint="mend it and run `bootbridge up` again, or take all away with `bootbridge down`"
    )
