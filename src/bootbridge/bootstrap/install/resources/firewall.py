"""The part in the cloud: the rule that lets nodes reach the server, by the cloud's own CLI."""

from __future__ import annotations

from dataclasses import replace

from bootbridge.bootstrap import firewall
from bootbridge.bootstrap.firewall.running import Result, require_programs
from bootbridge.bootstrap.install.context import Site
from bootbridge.bootstrap.install.resources.resource import Change, Outcome, Part
from bootbridge.errors import OperatorError


class FirewallRule(Part):
    """In the list only on request, or when our note says so; what is there, the cloud's CLI finds out."""

    name, title = "firewall", "firewall rule"

    def __init__(self, site: Site) -> None:
        self.site = site
        self._gone = False

    def find(self) -> list[str]:
        if self._gone:
            return []
        return [f"firewall rule {rule.name}" for rule in firewall.rules(self.site.plan)]

    def preview(self) -> Outcome:
        self._refuse_unmanaged()
        return Outcome(Change.CREATED, ", ".join(rule.name for rule in firewall.rules(self.site.plan)))

    def apply(self) -> Outcome:
        outcome = self.preview()
        actions = firewall.create(self.site.plan)
        require_programs(actions)
        self.site.note(replace(self.site.laid(), firewall=True))
        results = firewall.run(actions)
        _raise_failures(results)
        done = any(result.outcome is firewall.Outcome.DONE for result in results)
        return outcome if done else Outcome(Change.UNCHANGED, outcome.detail)

    def remove(self) -> None:
        self._refuse_unmanaged()
        _raise_failures(firewall.run(firewall.removal(self.site.plan), keep_going=True))
        self._gone = True

    def _refuse_unmanaged(self) -> None:
        if not firewall.is_managed(self.site.plan):
            hint = (
                f"let nodes reach TCP {self.site.plan.ports.agent} yourself; `bootbridge firewall` says how"
            )
            text = f"platform {self.site.plan.platform} has no rule that could be made"
            raise OperatorError(text, subject="--firewall", hint=hint)


def _raise_failures(results: list[Result]) -> None:
    failed = [f"{result.action.does}: {result.detail}" for result in results if result.failed]
    if failed:
        raise OperatorError("; ".join(failed))
