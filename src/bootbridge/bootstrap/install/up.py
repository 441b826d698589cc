"""Installs the resources in order; each must be ready before the next is applied.

A resource that matches the plan is not touched, so that a second run continues where the first one
stopped. A failure rolls nothing back.
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
    """What was done to each resource, and what the operator has to do next, or an empty text."""

    applied: tuple[tuple[Resource, ApplyResult], ...]
    next_step: str = ""

    @property
    def unchanged(self) -> bool:
        return all(applied.change is ResourceChange.UNCHANGED for _, applied in self.applied)


def install(
    context: InstallContext, progress: Progress, *, wait_seconds: float = WAIT_SECONDS, wait: bool = True
) -> InstallResult:
    """Applies all resources; `wait_seconds` limits the wait for each. Raises at the first failure."""
    timeout = wait_seconds if wait else 0.0
    done = []
    for resource in _applicable(context):
        progress.begin(resource.title)
        try:
            done.append((resource, _install_resource(context, resource, progress, timeout, wait)))
        except OperatorError as error:
            progress.end(str(error), good=False)
            raise _stopped(resource, error) from error
        except KeyboardInterrupt:
            progress.end(
                "interrupted; continue with `bootbridge up`, or remove everything with `bootbridge down`",
                good=False,
            )
            raise
    return InstallResult(tuple(done), next_step(context))


def dry_run(context: InstallContext) -> InstallResult:
    """Returns what `install` would do; changes nothing."""
    return InstallResult(
        tuple((resource, resource.preview()) for resource in _applicable(context)), next_step(context)
    )


def next_step(context: InstallContext) -> str:
    """What the operator has to do next; empty if there is a cluster."""
    if context.cluster is not None:
        return ""
    return "there is no cluster yet: run `kubeadm init` with the file above, then `bootbridge up` again"


def _install_resource(
    context: InstallContext, resource: Resource, progress: Progress, timeout: float, wait: bool
) -> ApplyResult:
    if reason := progress.wait(resource.apply_blocker, timeout):
        raise OperatorError(reason)
    applied = resource.apply()
    if (
        wait
        and _can_be_ready(context, resource)
        and (reason := progress.wait(resource.unready_reason, timeout))
    ):
        raise OperatorError(f"not ready after {timeout:.0f}s: {reason}")
    progress.end(str(applied))
    return applied


def _applicable(context: InstallContext) -> list[Resource]:
    """All resources of `up`; without a cluster, only those on the node."""
    installed = [resource for resource in resources(context) if resource.installed_by_up]
    return [resource for resource in installed if context.cluster is not None or not resource.in_cluster]


def _can_be_ready(context: InstallContext, resource: Resource) -> bool:
    """Before there is a cluster, the kubelet starts no pods."""
    return context.cluster is not None or isinstance(resource, ApiserverSetting)


def _stopped(resource: Resource, error: OperatorError) -> OperatorError:
    hint = "fix this and run `bootbridge up` again, or remove everything with `bootbridge down`"
    return OperatorError(str(error), subject=resource.title, hint=hint)
