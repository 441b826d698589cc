"""Checks whether the tunnel can be added to an ignition file.

Each check has a name, and a failed one a reason and a fix. `inject` stops at the first problem, `check` shows
all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from bootbridge.bootstrap.ignition import bootkube
from bootbridge.bootstrap.ignition.document import Ignition
from bootbridge.errors import OperatorError

UPSTREAM_HOOKS = "/usr/local/bin/konnectivity.sh"
_IN_PLACE_SCRIPT = "/usr/local/bin/bootstrap-in-place.sh"
_IN_PLACE_UNIT = "install-to-disk.service"
# Certificates below it are the installer's. Others, such as trust bundles, may be expired.
INSTALLERS_OWN = "/opt/openshift/"
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----\r?\n.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True)
class PreflightProblem:
    reason: str
    fix: str


def preflight_checks(ignition: Ignition, now: datetime) -> Iterator[tuple[str, PreflightProblem | None]]:
    """Yields the name of every check, with its problem or None."""
    for name, check in CHECKS.items():
        yield name, _problem(check, ignition, now)


def raise_first_problem(ignition: Ignition, now: datetime, name: str) -> None:
    """Raises OperatorError for the first problem. `name` is the file in errors."""
    for _, problem in preflight_checks(ignition, now):
        if problem:
            raise OperatorError(problem.reason, subject=name, hint=problem.fix)


def _problem(
    check: Callable[[Ignition, datetime], PreflightProblem | None], ignition: Ignition, now: datetime
) -> PreflightProblem | None:
    try:
        return check(ignition, now)
    except OperatorError as error:
        reason = f"{error.subject}: {error.args[0]}" if error.subject else error.args[0]
        return PreflightProblem(reason, error.hint)


def _pointer(ignition: Ignition, now: datetime) -> PreflightProblem | None:
    if not ignition.is_pointer:
        return None
    # The URL is omitted: its signature may be a secret.
    reason = "is a pointer: ignition.config.replace fetches the real file"
    return PreflightProblem(reason, "give the bootstrap.ign that it points to")


def _script(ignition: Ignition, now: datetime) -> PreflightProblem | None:
    entry = ignition.files.get(bootkube.PATH)
    if entry is None:
        reason = f"{bootkube.PATH} not found"
        return PreflightProblem(reason, "give bootstrap.ign; master.ign and worker.ign stay unchanged")
    if not entry.is_inline:
        return PreflightProblem(f"{bootkube.PATH} is fetched from a URL", "embed its contents as a data URL")
    if not entry.content():
        return PreflightProblem(f"{bootkube.PATH} is empty", "create the ignition files again")
    return None


def _in_place(ignition: Ignition, now: datetime) -> PreflightProblem | None:
    signs = {
        "BOOTSTRAP_INPLACE=true in bootkube.sh": bootkube.runs_in_place(_bootkube(ignition)),
        _IN_PLACE_SCRIPT: _IN_PLACE_SCRIPT in ignition.files,
        _IN_PLACE_UNIT: _IN_PLACE_UNIT in ignition.units,
    }
    found = [sign for sign, is_there in signs.items() if is_there]
    if not found:
        return None
    reason = f"is a bootstrap in place ({', '.join(found)}): it runs only one control plane at a time"
    return PreflightProblem(reason, "such a cluster needs no tunnel; use the file unchanged")


def _other_tunnel(ignition: Ignition, now: datetime) -> PreflightProblem | None:
    given = bootkube.override_lines(_bootkube(ignition))
    if given:
        line = given[0].removesuffix("\\").rstrip()
        reason = f"contains another tunnel or override: bootkube.sh has {line[:100]!r}"
        return PreflightProblem(
            reason, "switch the installer's own tunnel off (feature gates), or use that one"
        )
    if b"record_service_stage_start" in (ignition.content(UPSTREAM_HOOKS) or b""):
        reason = f"contains the installer's tunnel: {UPSTREAM_HOOKS} is not empty"
        return PreflightProblem(reason, "switch it off (feature gates), or use that one")
    return None


def _anchors(ignition: Ignition, now: datetime) -> PreflightProblem | None:
    bootkube.anchor_lines(_bootkube(ignition))
    return None


def _expired(ignition: Ignition, now: datetime) -> PreflightProblem | None:
    found = [text for path, text in expired_certificates(ignition, now) if path.startswith(INSTALLERS_OWN)]
    if not found:
        return None
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    reason = f"{len(found)} expired certificates: {found[0]}{more}"
    return PreflightProblem(reason, "create the ignition files again; they must be used within 24 hours")


def expired_certificates(ignition: Ignition, now: datetime) -> Iterator[tuple[str, str]]:
    """Yields path and text for every expired certificate in a `.crt` file."""
    for path, entry in ignition.files.items():
        if path.endswith(".crt") and entry.is_inline:
            for ended in _ends(entry.content()):
                if ended < now:
                    yield path, f"{path} expired on {ended:%Y-%m-%d %H:%M} UTC"


def _ends(pem: bytes) -> Iterator[datetime]:
    for block in _PEM.findall(pem):
        try:
            yield x509.load_pem_x509_certificate(block).not_valid_after_utc
        except ValueError:
            continue


def _bootkube(ignition: Ignition) -> bytes:
    entry = ignition.files.get(bootkube.PATH)
    return entry.content() if entry and entry.is_inline else b""


CHECKS: dict[str, Callable[[Ignition, datetime], PreflightProblem | None]] = {
    "not-a-pointer": _pointer,
    "bootkube-script": _script,
    "not-in-place": _in_place,
    "no-other-tunnel": _other_tunnel,
    "anchors": _anchors,
    "certificates-valid": _expired,
}
