"""The lines that make bootkube.sh lay the tunnel, and the four places where they go.

The places are lines that stood, exactly once and unchanged, in every OpenShift release since
4.1; everything else in the script moves. A line that is missing or there twice is refused by
name: a hook in the wrong place would show only much later, as webhooks that time out.

Three of the calls stand outside the script's own guards, so they run again whenever systemd
restarts a failed bootkube.sh; the functions they call are made for that. Clean-up is called only at
the end of a bootstrap that worked. A trap on EXIT would run it after every failed attempt, in
front of a retry that needs the tunnel, and the service-record library owns that trap anyway. A
bootstrap that is given up is cleaned up by hand: `systemctl start bootbridge-cleanup`.
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
_BEGIN = f"{MARKER} begin; 'bootbridge inject --remove' takes this out of the ignition file"
_END = f"{MARKER} end"


@dataclass(frozen=True)
class Anchor:
    """A line of bootkube.sh, and what goes beside it."""

    name: str
    line: str
    side: Literal["before", "after"]
    insertion: Callable[[Plan], list[str]]


def _setup(plan: Plan) -> list[str]:
    return [_BEGIN, f". {plan.paths.hook_script}", "bootbridge_setup", _END]


def _override(plan: Plan) -> list[str]:
    # Its own backslash: whatever follows, the command goes on as it did.
    return [f"{OVERRIDE_FLAG}={plan.paths.config_override_seen_by_render} \\"]


def _manifests(plan: Plan) -> list[str]:
    return [_BEGIN, "bootbridge_manifests", _END]


def _cleanup(plan: Plan) -> list[str]:
    return [_BEGIN, "bootbridge_cleanup", _END]


# In the order in which they stand in the script.
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
    """The script with the tunnel's lines in it, everything else byte for byte as it was."""
    places = anchor_lines(script)
    lines = script.split(b"\n")
    # From the end, so that what is found stays where it was found.
    for anchor, index in reversed(list(zip(ANCHORS, places, strict=True))):
        at = index if anchor.side == "before" else index + 1
        lines[at:at] = [_indent(lines[index]) + line.encode() for line in anchor.insertion(plan)]
    return b"\n".join(lines)


def anchor_lines(script: bytes) -> list[int]:
    """Where the anchors stand, as indices of lines; refused by name if one is not there once, in order."""
    lines = script.split(b"\n")
    places = [_only_place(lines, anchor) for anchor in ANCHORS]
    for before, after, anchor in zip(places, places[1:], ANCHORS[1:], strict=False):
        if after < before:
            raise _unfit(anchor, "stands before the anchor that it should follow")
    return places


def _only_place(lines: list[bytes], anchor: Anchor) -> int:
    wanted = anchor.line.encode()
    found = [index for index, line in enumerate(lines) if line.lstrip(b" \t") == wanted]
    if not found:
        raise _unfit(anchor, f"is missing: no line reads {anchor.line!r}")
    if len(found) > 1:
        numbers = ", ".join(str(index + 1) for index in found)
        raise _unfit(anchor, f"is not unique: lines {numbers} read {anchor.line!r}")
    return found[0]


def _unfit(anchor: Anchor, text: str) -> OperatorError:
    hint = "this script has a shape that bootbridge does not know; every release from 4.1 to 5.2 fits"
    return OperatorError(f"anchor {anchor.name} {text}", subject=PATH, hint=hint)


def _indent(line: bytes) -> bytes:
    return line[: len(line) - len(line.lstrip(b" \t"))]


def is_patched(script: bytes) -> bool:
    return MARKER.encode() in script


def runs_in_place(script: bytes) -> bool:
    """Whether this is the single-node variant, where two control planes never live side by side."""
    return b"BOOTSTRAP_INPLACE=true" in {line.strip() for line in script.splitlines()}


def override_lines(script: bytes) -> list[str]:
    """Lines that already hand an override to the render command: the installer's own tunnel, say."""
    wanted = OVERRIDE_FLAG.encode()
    return [line.strip().decode(errors="replace") for line in script.splitlines() if _gives(line, wanted)]


def _gives(line: bytes, flag: bytes) -> bool:
    words = line.strip()
    return flag in words and not words.startswith(b"#")
