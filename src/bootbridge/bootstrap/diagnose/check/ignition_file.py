"""Checks of an ignition file: whether the tunnel can be injected, or was injected correctly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from bootbridge.bootstrap.diagnose.check import tree
from bootbridge.bootstrap.diagnose.check.result import (
    CheckResult,
    failed,
    judged,
    not_run,
    passed,
    run,
    warned,
)
from bootbridge.bootstrap.ignition import bootkube, inject, preflight
from bootbridge.bootstrap.ignition.document import Ignition
from bootbridge.bootstrap.plan import record
from bootbridge.bootstrap.plan.paths import OPENSHIFT_PATHS
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.common.files import Asset, Tree
from bootbridge.errors import OperatorError

INJECT = "bootbridge inject FILE"


@dataclass(frozen=True)
class InjectedFile:
    """An injected file, and the installer's original that it was made from."""

    injected: Ignition
    original: Ignition = field(repr=False)
    plan: Plan


def of_ignition(data: bytes, now: datetime, name: str) -> list[CheckResult]:
    """Checks a bootstrap.ign, injected or not; raises OperatorError if it is not an ignition file."""
    ignition = Ignition.parse(data, name)
    parses = passed(f"spec {ignition.version}, {len(ignition.files)} files", "ignition")
    try:
        original = inject.restore_original(ignition, name)
    except OperatorError as error:
        return [parses, failed(error.args[0], error.hint, "removable")]
    return [parses, *_of_original(original, now), *_of_injection(ignition, original, name)]


def _of_original(original: Ignition, now: datetime) -> list[CheckResult]:
    findings = [
        failed(found.reason, found.fix, test) if found else passed(_GOOD[test], test)
        for test, found in preflight.preflight_checks(original, now)
    ]
    return [*findings, *run({"trust-bundles": lambda each: _trust_bundles(each, now)}, original)]


_GOOD = {
    "not-a-pointer": "the complete file, not a pointer",
    "bootkube-script": f"{bootkube.PATH} exists",
    "not-in-place": "a separate bootstrap node",
    "no-other-tunnel": "the installer's own tunnel is disabled",
    "anchors": "all four anchors in bootkube.sh exist once, in order",
    "certificates-valid": "no certificate of the installer has expired",
}


def _trust_bundles(original: Ignition, now: datetime) -> CheckResult:
    expired = preflight.expired_certificates(original, now)
    found = [text for path, text in expired if not path.startswith(preflight.INSTALLERS_OWN)]
    if found:
        return warned("; ".join(found[:3]), "remove expired certificates from additionalTrustBundle")
    return passed("no other certificate has expired")


def _of_injection(ignition: Ignition, original: Ignition, name: str) -> list[CheckResult]:
    if ignition is original:
        names = ["removable", *CHECKS, *tree.CHECKS]
        missing = failed("the tunnel is not in this file", INJECT, "injected")
        return [missing, *(not_run("the tunnel is not in this file", each) for each in names)]
    findings = [
        passed(f"{len(ignition.files) - len(original.files)} files added", "injected"),
        passed("--remove restores the installer's file, byte for byte", "removable"),
    ]
    ours = _ours(ignition, original)
    try:
        plan = record.find(ours, name)
    except OperatorError as error:
        return [*findings, failed(error.args[0], error.hint, "plan-record")]
    checked = run(CHECKS, InjectedFile(ignition, original, plan))
    return [*findings, *checked, *tree.of_tree(tree.PlannedTree(plan, ours))]


def _ours(ignition: Ignition, original: Ignition) -> Tree:
    paths = set(ignition.files) - set(original.files) - {OPENSHIFT_PATHS.injection_record}
    return {path: Asset(ignition.files[path].content(), ignition.files[path].mode) for path in sorted(paths)}


def _hooks(both: InjectedFile) -> CheckResult:
    """Compares the whole script: hooks, flag, and their order."""
    wanted = bootkube.patch(both.original.content(bootkube.PATH) or b"", both.plan)
    if both.injected.content(bootkube.PATH) != wanted:
        return failed("bootkube.sh differs from the installer's in lines that are not ours", INJECT)
    return passed("setup, manifests and clean-up are called, each at its anchor")


def _override_flag(both: InjectedFile) -> CheckResult:
    """The flag must follow the command directly, before all other arguments."""
    flag = f"{bootkube.OVERRIDE_FLAG}={both.plan.paths.config_override_seen_by_render}"
    given = bootkube.override_lines(both.injected.content(bootkube.PATH) or b"")
    wrong = [line for line in given if line.removesuffix("\\").rstrip() != flag]
    faults = [f"bootkube.sh has {line}" for line in wrong] or (
        [] if len(given) == 1 else [f"{flag} is not set exactly once"]
    )
    return judged(faults, flag, INJECT)


def _cleanup_unit(both: InjectedFile) -> CheckResult:
    path = both.plan.paths.cleanup_unit
    return judged([] if path in both.injected.files else [f"{path} is missing"], path, INJECT)


CHECKS: dict[str, Callable[[InjectedFile], CheckResult]] = {
    "bootkube-hooks": _hooks,
    "override-flag": _override_flag,
    "cleanup-unit": _cleanup_unit,
}
