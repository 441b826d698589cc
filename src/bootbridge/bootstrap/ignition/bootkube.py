"""Adds the lines that install the tunnel to bootkube.sh, next to four anchor lines.

The anchors occur exactly once, and unchanged, in bootkube.sh of every OpenShift release since 4.1. A script
in which one is missing or occurs twice is rejected: a hook in the wrong place would show only much later, as
webhooks that time out.

The three hooks run again whenever systemd restarts a failed bootkube.sh, so their functions are idempotent.
Cleanup runs only at the end of a successful bootstrap, and hands what it cannot remove to a unit. A trap on
EXIT would also run it before a retry, which needs the tunnel, and the installer's service-record library
already uses that trap. After an abandoned bootstrap, an operator runs `systemctl start bootbridge-cleanup`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.errors import OperatorError

PATH = "/usr/local/bin/bootkube.sh"
MARKER = "# bootbridge:"
OVERRIDE_FLAG = "--config-override-files"
_BEGIN = f"{MARKER} begin; 'bootbridge inject --remove' removes this from the ignition file"
_END = f"{MARKER} end"


@dataclass(frozen=True)
class Anchor:
    """Holds a line of bootkube.sh, and the lines to add before or after it."""

    name: str
    line: str
    side: Literal["before", "after"]
    insertion: Callable[[Plan], list[str]]


def _setup(plan: Plan) -> list[str]:
    return [_BEGIN, f". {plan.paths.hook_script}", "bootbridge_setup", _END]


def _override(plan: Plan) -> list[str]:
    # Ends with a backslash, so that the command continues as before.
    return [f"{OVERRIDE_FLAG}={plan.paths.config_override_seen_by_render} \\"]


def _manifests(plan: Plan) -> list[str]:
    return [_BEGIN, "bootbridge_manifests", _END]


def _cleanup(plan: Plan) -> list[str]:
    return [_BEGIN, "bootbridge_cleanup", _END]


# In the order of the script.
ANCHORS = (
    Anchor(
        "A1 (before the kube-apiserver stage)", "if [ ! -f kube-apiserver-bootstrap.done ]", "before", _setup
    ),
    Anchor(
        "A2 (the kube-apiserver render command)",
        "/usr/bin/cluster-kube-apiserver-operator render \\",
        "after",
        _override,
    ),
    Anchor("A4 (before cluster-bootstrap)", 'echo "Starting cluster-bootstrap..."', "before", _manifests),
    Anchor("A5 (the end)", "touch /opt/openshift/.bootkube.done", "before", _cleanup),
)


def patch(script: bytes, plan: Plan) -> bytes:
    """Returns the script with the added lines. All other bytes stay unchanged."""
    places = anchor_lines(script)
    lines = script.split(b"\n")
    # From the end, so that earlier line numbers stay valid.
    for anchor, index in reversed(list(zip(ANCHORS, places, strict=True))):
        at = _above_comment(lines, index) if anchor.side == "before" else index + 1
        lines[at:at] = [_indent(lines[index]) + line.encode() for line in anchor.insertion(plan)]
    return b"\n".join(lines)


def _above_comment(lines: list[bytes], index: int) -> int:
    """Returns the first line of the comment that belongs to a line, or the line itself."""
    while index > 1 and lines[index - 1].lstrip(b" \t").startswith(b"#"):
        index -= 1
    return index


def anchor_lines(script: bytes) -> list[int]:
    """Returns the anchors' line indices. Raises if one is missing, duplicate or out of order."""
    lines = script.split(b"\n")
    places = [_unique_line(lines, anchor) for anchor in ANCHORS]
    for before, after, anchor in zip(places, places[1:], ANCHORS[1:], strict=False):
        if after < before:
            raise _anchor_error(anchor, "is out of order")
    return places


def _unique_line(lines: list[bytes], anchor: Anchor) -> int:
    wanted = anchor.line.encode()
    found = [index for index, line in enumerate(lines) if line.lstrip(b" \t") == wanted]
    if not found:
        raise _anchor_error(anchor, f"not found: {anchor.line!r}")
    if len(found) > 1:
        numbers = ", ".join(str(index + 1) for index in found)
        raise _anchor_error(anchor, f"is ambiguous: lines {numbers} are {anchor.line!r}")
    return found[0]


def _anchor_error(anchor: Anchor, text: str) -> OperatorError:
    hint = "unsupported bootkube.sh; releases 4.1 to 5.2 are supported"
    return OperatorError(f"anchor {anchor.name} {text}", subject=PATH, hint=hint)


def _indent(line: bytes) -> bytes:
    return line[: len(line) - len(line.lstrip(b" \t"))]


def is_patched(script: bytes) -> bool:
    return MARKER.encode() in script


def runs_in_place(script: bytes) -> bool:
    """Returns whether this is the single-node variant, where no second control plane runs in parallel."""
    return b"BOOTSTRAP_INPLACE=true" in {line.strip() for line in script.splitlines()}


def override_lines(script: bytes) -> list[str]:
    """Returns lines that already pass an override to the render command, as the installer's tunnel does."""
    wanted = OVERRIDE_FLAG.encode()
    return [line.strip().decode(errors="replace") for line in script.splitlines() if _has_flag(line, wanted)]


def _has_flag(line: bytes, flag: bytes) -> bool:
    words = line.strip()
    return flag in words and not words.startswith(b"#")
