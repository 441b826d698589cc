"""What proxy-server and proxy-agent of OpenShift's release payload can do, per release.

`check`, the node's shell and the matrix in docs/install.md use this one table. The shell also asks the image
which flags it knows, with `--help`, because the image of a z-stream can be older than its branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bootbridge.bootstrap.plan.plan import PAYLOAD_IMAGE_NAME, Plan, Protocol
from bootbridge.errors import OperatorError

Release = tuple[int, int]
Family = Literal["IPv4", "IPv6", "dual stack"]
FAMILIES: tuple[Family, ...] = ("IPv4", "IPv6", "dual stack")
# Left out if the image does not know them; every other flag is required. Without the first, the health port
# is on all interfaces; without the second, the admin port is on 127.0.0.1 nevertheless.
HEALTH_FLAG = "health-bind-address"
ADMIN_FLAG = "admin-bind-address"
OPTIONAL_FLAGS = (HEALTH_FLAG, ADMIN_FLAG)
# Agents without this flag join host and port without brackets, so an IPv6 address needs them.
BRACKETS_FLAG = ADMIN_FLAG


@dataclass(frozen=True)
class PayloadPrograms:
    """Holds the facts about the programs of a range of releases."""

    releases: str
    since: Release
    until: Release
    snapshot: str  # of upstream's sources; empty: not in the payload
    optional_flags: tuple[str, ...] = OPTIONAL_FLAGS  # that they know
    agent_end: str = ""  # at SIGTERM
    evidence: str = ""

    @property
    def exist(self) -> bool:
        return bool(self.snapshot)

    @property
    def binds_health(self) -> bool:
        return HEALTH_FLAG in self.optional_flags


@dataclass(frozen=True)
class Support:
    """Says whether a combination works, and what is particular about it."""

    works: bool
    remark: str = ""

    def __str__(self) -> str:
        return ("yes" if self.works else "no") + (f": {self.remark}" if self.remark else "")


FIRST_RELEASE = "4.11"
PAYLOAD_PROGRAMS = (
    PayloadPrograms(
        "4.1 to 4.10",
        since=(4, 1),
        until=(4, 10),
        snapshot="",
        evidence="the build data of these releases define no such image",
    ),
    PayloadPrograms(
        "4.11 to 4.13, and 4.14 before 2023-12-01",
        since=(4, 11),
        until=(4, 14),
        snapshot="2022, v0.0.3x",
        optional_flags=(),
        agent_end="at once",
        evidence="`unknown flag` by the payload's programs of 4.12; tested: upstream v0.0.30 of 2022-03",
    ),
    PayloadPrograms(
        "4.14 since 2023-12-01, to 4.22",
        since=(4, 14),
        until=(4, 22),
        snapshot="2023-10-20, between v0.28 and v0.29",
        agent_end="at once",
        evidence="the payload's programs of 4.14 and 4.20 were run; only dependencies differ in between",
    ),
    PayloadPrograms(
        "4.23, 5.0 and later",
        since=(4, 23),
        until=(99, 0),
        snapshot="2026-06-12, v0.36 and 8 changes",
        agent_end="when its grace period is over",
        evidence="the payload's programs of main were run; tested: upstream v0.36.0",
    ),
)
NOT_IN_PAYLOAD = "not in the payload, give --image"
OPEN_HEALTH = "health port closed by nft"
BRACKETS = "IPv6 address in brackets"
ONE_ADDRESS = "agents dial the first address only"


def support(programs: PayloadPrograms, *, ours: bool, family: Family) -> Support:
    """Returns whether the tunnel works with an image on a release; the protocol makes no difference."""
    if ours:
        return Support(True)
    if not programs.exist:
        return Support(False, NOT_IN_PAYLOAD)
    remarks = [
        *([] if programs.binds_health else [OPEN_HEALTH]),
        *([BRACKETS] if family != "IPv4" and BRACKETS_FLAG not in programs.optional_flags else []),
        *([ONE_ADDRESS] if family == "dual stack" else []),
    ]
    return Support(True, ", ".join(remarks))


def programs_of(release: Release | None) -> tuple[PayloadPrograms, ...]:
    """Returns the programs that a release can have; all, if the release is not known."""
    return tuple(each for each in PAYLOAD_PROGRAMS if release is None or each.since <= release <= each.until)


def raise_if_missing(plan: Plan) -> None:
    """Raises OperatorError if the plan's release is known, and its payload has no programs."""
    if plan.image.from_payload and not any(each.exist for each in programs_of(plan.cloud.minor_release)):
        text = f"{PAYLOAD_IMAGE_NAME} is not in the payload of release {plan.cloud.release}"
        hint = f"give --image=REFERENCE; payloads have it since {FIRST_RELEASE}"
        raise OperatorError(text, subject="--image", hint=hint)


def family_of(plan: Plan) -> Family:
    """Returns the IP family of a plan's cluster."""
    families = plan.networks.families
    return "dual stack" if len(families) > 1 else "IPv4" if families[0] == 4 else "IPv6"


def matrix() -> str:
    """Returns the Markdown table in docs/install.md."""
    return "\n".join(_matrix_lines()) + "\n"


def _matrix_lines() -> Iterator[str]:
    yield f"| release | image | protocol | {' | '.join(FAMILIES)} |"
    yield "|---" * (3 + len(FAMILIES)) + "|"
    for programs in PAYLOAD_PROGRAMS:
        for ours in (False, True):
            for protocol in Protocol:
                cells = (str(support(programs, ours=ours, family=family)) for family in FAMILIES)
                image = "ours" if ours else "payload"
                yield f"| {programs.releases} | {image} | {protocol} | {' | '.join(cells)} |"
    yield ""
    yield "| release | upstream's sources of | agent at SIGTERM | evidence |"
    yield "|---|---|---|---|"
    for programs in PAYLOAD_PROGRAMS:
        sources = programs.snapshot or "–"
        yield f"| {programs.releases} | {sources} | {programs.agent_end or '–'} | {programs.evidence} |"
