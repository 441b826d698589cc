"""The cloud's firewall rule that lets nodes reach the server, managed with the cloud's CLI."""

from __future__ import annotations

from dataclasses import replace

from bootbridge.bootstrap import firewall
from bootbridge.bootstrap.firewall.runner import ActionResult, require_programs
from bootbridge.bootstrap.install.context import InstallContext
from bootbridge.bootstrap.install.resources.resource import ApplyResult, Resource, ResourceChange
from bootbridge.errors import OperatorError


class FirewallRule(Resource):
    """In the list only on request, or if the install record names it; its CLI reports what exists."""

    name, title = "firewall", "firewall rule"

    def __init__(self, context: InstallContext) -> None:
        self.context = context
        self._removed = False

    def find(self) -> list[str]:
        if self._removed:
            return []
        return [f"firewall rule {rule.name}" for rule in firewall.rules(self.context.plan)]

    def preview(self) -> ApplyResult:
        self._refuse_unmanaged()
        return ApplyResult(
            ResourceChange.CREATED, ", ".join(rule.name for rule in firewall.rules(self.context.plan))
        )

    def apply(self) -> ApplyResult:
        result = self.preview()
        actions = firewall.create(self.context.plan)
        require_programs(actions)
        self.context.save(replace(self.context.record(), firewall=True))
        results = firewall.run(actions)
        # Region and project that the CLI used by default: `down` must find the rule there.
        cloud = firewall.completed(self.context.plan, results).cloud
        self.context.save(replace(self.context.record(), cloud=cloud))
        _raise_failures(results)
        done = any(result.outcome is firewall.ActionOutcome.DONE for result in results)
        return result if done else ApplyResult(ResourceChange.UNCHANGED, result.detail)

    def remove(self) -> None:
        self._refuse_unmanaged()
        cloud = self.context.record().cloud
        plan = replace(self.context.plan, cloud=cloud) if cloud else self.context.plan
        _raise_failures(firewall.run(firewall.remove(plan), keep_going=True))
        self._removed = True

    def _refuse_unmanaged(self) -> None:
        if reason := firewall.unmanaged_reason(self.context.plan):
            port, platform = self.context.plan.ports.agent, self.context.plan.platform
            hint = f"open TCP {port} to the nodes by hand; `bootbridge firewall show` lists what to open"
            text = f"not supported on platform {platform}: {reason}"
            raise OperatorError(text, subject="--firewall", hint=hint)


def _raise_failures(results: list[ActionResult]) -> None:
    failed = [f"{result.action.description}: {result.detail}" for result in results if result.failed]
    if failed:
        raise OperatorError("; ".join(failed))
