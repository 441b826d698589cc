"""Which pictures there are, the run that makes each, and the source files that it shows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.tools.pictures import runs

# The modules that decide what is shown, not those that only compute it: a picture shows texts and layout.
LOOK = tuple(
    f"src/bootbridge/common/{name}.py"
    for name in ("progress", "terminal/terminal", "terminal/styles", "terminal/figures")
)
PAGE = (
    *(
        f"src/bootbridge/status_page/{name}.py"
        for name in (
            "destinations",
            "layout",
            "path_drawing",
            "problems",
            "server_graph",
            "server_page",
            "tables",
            "view",
        )
    ),
    "src/bootbridge/status_page/status.css",
)


@dataclass(frozen=True)
class Run:
    """One run; `pictures` are the files that it makes, each with patterns of the sources that it shows."""

    make: Callable[[Path], runs.Pictures]
    needs: tuple[str, ...]
    pictures: dict[str, tuple[str, ...]] = field(default_factory=dict)


RUNS = {
    "demo": Run(
        runs.demo,
        needs=("root", "tmux"),
        pictures={
            "demo.svg": (
                *(f"src/bootbridge/demo/{name}.py" for name in ("latency", "output", "scenario", "steps")),
                *LOOK,
            )
        },
    ),
    "files": Run(
        runs.files,
        needs=("tmux",),
        pictures={
            "render.svg": (
                "src/bootbridge/cli/render.py",
                "src/bootbridge/bootstrap/render/output_directory.py",
                *LOOK,
            ),
            "inject.svg": (
                *(f"src/bootbridge/cli/{name}.py" for name in ("inject", "check")),
                *(
                    f"src/bootbridge/bootstrap/diagnose/check/{name}.py"
                    for name in ("ignition_file", "result", "tree")
                ),
                *LOOK,
            ),
            "firewall.svg": (
                "src/bootbridge/cli/firewall.py",
                "src/bootbridge/bootstrap/firewall/gcp.py",
                *LOOK,
            ),
            "certs.svg": (*(f"src/bootbridge/cli/{name}.py" for name in ("certs", "certs_report")), *LOOK),
            "image.svg": ("src/bootbridge/cli/image.py", *LOOK),
            "node.svg": ("src/bootbridge/cli/node.py", *LOOK),
        },
    ),
    "tunnel": Run(
        runs.tunnel,
        needs=("root", "tmux", "chromium"),
        pictures={
            "top.svg": (*(f"src/bootbridge/top/{name}.py" for name in ("layout", "tables", "text", "view")),),
            "dial.svg": (*(f"src/bootbridge/cli/{name}.py" for name in ("dial", "frontend_flags")), *LOOK),
            **dict.fromkeys(runs.PAGES, PAGE),
        },
    ),
    "lab": Run(
        runs.lab,
        needs=("root", "tmux", "nft", "Kubernetes"),
        pictures={
            "up.svg": (
                "src/bootbridge/cli/up.py",
                "src/bootbridge/bootstrap/install/up.py",
                "src/bootbridge/bootstrap/install/resources/*.py",
                *LOOK,
            ),
            "status.svg": (
                "src/bootbridge/cli/status.py",
                "src/bootbridge/bootstrap/install/status.py",
                *LOOK,
            ),
            "lab.svg": ("src/bootbridge/cli/lab.py", *LOOK),
            "gather.svg": ("src/bootbridge/cli/gather.py", *LOOK),
            "down.svg": ("src/bootbridge/cli/down.py", "src/bootbridge/bootstrap/install/down.py", *LOOK),
            "doctor.svg": (
                "src/bootbridge/cli/doctor.py",
                *(
                    f"src/bootbridge/bootstrap/diagnose/doctor/{name}.py"
                    for name in ("agents", "step", "steps")
                ),
                *LOOK,
            ),
        },
    ),
}
# Drawn by hand, so there is nothing that it could be older than.
DRAWN = ("architecture.svg",)


def sources_of(picture: str) -> tuple[str, ...]:
    """Returns the patterns of the sources that a picture shows."""
    return next(run.pictures[picture] for run in RUNS.values() if picture in run.pictures)


def missing(run: Run) -> list[str]:
    """Returns what this machine lacks for a run, each with the way to get it."""
    return [problem for need in run.needs if (problem := _CHECKS[need]())]


def _program(name: str, package: str) -> str:
    return "" if shutil.which(name) else f"{name} (apt-get install {package})"


def _kubernetes() -> str:
    from bootbridge.errors import OperatorError
    from bootbridge.lab import components

    try:
        components.find()
    except OperatorError as error:
        return f"Kubernetes (make kubernetes): {error}"
    return ""


_CHECKS: dict[str, Callable[[], str]] = {
    "root": lambda: "" if os.geteuid() == 0 else "root, for network namespaces",
    "tmux": lambda: _program("tmux", "tmux"),
    "nft": lambda: _program("nft", "nftables"),
    "chromium": lambda: _program("chromium", "chromium"),
    "Kubernetes": _kubernetes,
}
