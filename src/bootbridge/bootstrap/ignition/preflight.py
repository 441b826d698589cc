"""What stands against putting the tunnel into an ignition file: each reason with a name and a way out.

`inject` refuses on the first one, `check` shows them all.
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
# The certificates that the installer made; trust bundles of the operator's own are another matter.
INSTALLERS_OWN = "/opt/openshift/"
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----\r?\n.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True)
class PreflightProblem:
    """Why not, and what to do instead."""

    reason: str
    fix: str


def preflight_checks(ignition: Ignition, now: datetime) -> Iterator[tuple[str, PreflightProblem | None]]:
    """Every test by name, with what it found, in the order in which they make sense."""
    for name, test in TESTS.items():
        yield name, _outcome(test, ignition, now)


def refuse(ignition: Ignition, now: datetime, name: str) -> None:
    """Raise for the first problem, if there is one; `name` is what errors call the file."""
    for _, problem in preflight_checks(ignition, now):
        if problem:
            raise OperatorError(problem.reason, subject=name, hint=problem.fix)


def _outcome(
    test: Callable[[Ignition, datetime], PreflightProblem | None], ignition: Ignition, now: datetime
) -> PreflightProblem | None:
    try:
        return test(ignition, now)
    except OperatorError as error:
        reason = f"{error.subject}: {error.args[0]}" if error.subject else error.args[0]
        return PreflightProblem(reason, error.hint)


def _shim(ignition: Ignition, now: datetime) -> PreflightProblem | None:
    if not ignition.replaced_from_elsewhere:
        return None
    # The URL stays unsaid: it may be a signed one.
    reason = "is a shim: ignition.config.replace fetches the real file from elsewhere"
    return PreflightProblem(reason, "give the bootstrap.ign that is uploaded there")


def _script(ignition: Ignition, now: datetime) -> PreflightProblem | None:
    entry = ignition.files.get(bootkube.PATH)
    if entry is None:
        reason = f"holds no {bootkube.PATH}"
        return PreflightProblem(reason, "give bootstrap.ign; master.ign and worker.ign need no change")
    if not entry.is_inline:
        return PreflightProblem(
            f"{bootkube.PATH} is fetched from elsewhere", "put its contents inline, as a data URL"
        )
    if not entry.content():
        return PreflightProblem(f"{bootkube.PATH} has no contents", "create the ignition files anew")
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
    reason = f"is a bootstrap in place ({', '.join(found)}): its two control planes never live side by side"
    return PreflightProblem(reason, "such a cluster needs no tunnel; leave the file as it is")


def _other_tunnel(ignition: Ignition, now: datetime) -> PreflightProblem | None:
    given = bootkube.override_lines(_bootkube(ignition))
    if given:
        line = given[0].removesuffix("\\").rstrip()
        reason = f"carries a tunnel or another override already: bootkube.sh has {line[:100]!r}"
        return PreflightProblem(
            reason, "switch the installer's own tunnel off (feature gates), or use that one"
        )
    if b"record_service_stage_start" in (ignition.content(UPSTREAM_HOOKS) or b""):
        reason = f"carries the installer's own tunnel already: {UPSTREAM_HOOKS} does something"
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
    reason = f"{len(found)} certificates in it have expired: {found[0]}{more}"
    return PreflightProblem(reason, "create the ignition files anew; they must be used within 24 hours")


def expired_certificates(ignition: Ignition, now: datetime) -> Iterator[tuple[str, str]]:
    """Path and sentence for every expired certificate in a `.crt` file; all else is passed over."""
    for path, entry in ignition.files.items():
        if path.endswith(".crt") and entry.is_inline:
            for ended in _ends(entry.content()):
                if ended < now:
                    yield path, f"{path} ended on {ended:%Y-%m-%d %H:%M} UTC"


def _ends(pem: bytes) -> Iterator[datetime]:
    for block in _PEM.findall(pem):
        try:
            yield x509.load_pem_x509_certificate(block).not_valid_after_utc
        except ValueError:
            continue


def _bootkube(ignition: Ignition) -> bytes:
    entry = ignition.files.get(bootkube.PATH)
    return entry.content() if entry and entry.is_inline else b""


TESTS: dict[str, Callable[[Ignition, datetime], PreflightProblem | None]] = {
    "not-a-shim": _shim,
    "bootkube-script": _script,
    "not-in-place": _in_place,
    "no-other-tunnel": _other_tunnel,
    "anchors": _anchors,
    "certificates-valid": _expired,
}
