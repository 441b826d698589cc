"""Checks of an ignition file: whether the tunnel fits in, and if it is in, whether it is in right."""

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
from bootbridge.bootstrap.plan.paths import OPENSHIFT_PATHS
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.common.files import Asset, Tree
from bootbridge.errors import OperatorError

INJECT = "bootbridge inject FILE"


@dataclass(frozen=True)
class Both:
    """An injected file, and the installer's that it was made from."""

    injected: Ignition
    original: Ignition = field(repr=False)
    plan: Plan


def of_ignition(data: bytes, now: datetime, name: str) -> list[CheckResult]:
    """Check a bootstrap.ign, with or without a tunnel in it; one that is no ignition file is refused."""
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
    "not-a-pointer": "the file itself, not a pointer",
    "bootkube-script": f"{bootkube.PATH} is there",
    "not-in-place": "a bootstrap node of its own",
    "no-other-tunnel": "the installer's own tunnel is off",
    "anchors": "all four places in bootkube.sh are there once, in order",
    "certificates-valid": "no certificate of the installer's has expired",
}


def _trust_bundles(original: Ignition, now: datetime) -> CheckResult:
    expired = preflight.expired_certificates(original, now)
    found = [text for path, text in expired if not path.startswith(preflight.INSTALLERS_OWN)]
    if found:
        return warned("; ".join(found[:3]), "take expired certificates out of additionalTrustBundle")
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
        plan = tree.plan_in(ours, name)
    except OperatorError as error:
        return [*findings, failed(error.args[0], error.hint, "plan-record")]
    checked = run(CHECKS, Both(ignition, original, plan))
    return [*findings, *checked, *tree.of_tree(tree.PlannedTree(plan, ours))]


def _ours(ignition: Ignition, original: Ignition) -> Tree:
    paths = set(ignition.files) - set(original.files) - {OPENSHIFT_PATHS.injection_record}
    return {path: Asset(ignition.files[path].content(), ignition.files[path].mode) for path in sorted(paths)}


def _hooks(both: Both) -> CheckResult:
    """The whole script, line for line: hooks, flag, and their order."""
    wanted = bootkube.patch(both.original.content(bootkube.PATH) or b"", both.plan)
    if both.injected.content(bootkube.PATH) != wanted:
        return failed("bootkube.sh differs from the installer's by more than our lines", INJECT)
    return passed("setup, manifests and clean-up are called, each at its place")


def _override_flag(both: Both) -> CheckResult:
    """Right behind the command, where no later argument can come between."""
    flag = f"{bootkube.OVERRIDE_FLAG}={both.plan.paths.config_override_seen_by_render}"
    given = bootkube.override_lines(both.injected.content(bootkube.PATH) or b"")
    wrong = [line for line in given if line.removesuffix("\\").rstrip() != flag]
    faults = [f"bootkube.sh has {line}" for line in wrong] or (
        [] if len(given) == 1 else [f"{flag} is not there once"]
    )
    return judged(faults, flag, INJECT)


def _cleanup_unit(both: Both) -> CheckResult:
    path = both.plan.paths.cleanup_unit
    return judged([] if path in both.injected.files else [f"{path} is missing"], path, INJECT)


CHECKS: dict[str, Callable[[Both], CheckResult]] = {
    "bootkube-hooks": _hooks,
    "override-flag": _override_flag,
    "cleanup-unit": _cleanup_unit,
}
