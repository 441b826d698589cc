"""Runs `bootbridge` and writes where its processor time went: python bench/sampled.py FILE join-service ...

Sampled, where cProfile would make each call of a small function look as if it cost something.
"""

from __future__ import annotations

import collections
import runpy
import signal
import sys
from pathlib import Path
from types import FrameType

INTERVAL_SECONDS = 0.001
LINES = 120


def main() -> None:
    out = Path(sys.argv[1])
    sys.argv = ["bootbridge", *sys.argv[2:]]
    inclusive: collections.Counter[str] = collections.Counter()
    own: collections.Counter[str] = collections.Counter()
    total = 0

    def sample(_signal: int, frame: FrameType | None) -> None:
        nonlocal total
        total += 1
        if frame is not None:
            own[f"{place(frame)}:{frame.f_lineno}"] += 1
        seen = set()
        while frame is not None:
            seen.add(place(frame))
            frame = frame.f_back
        inclusive.update(seen)

    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)
    try:
        runpy.run_module("bootbridge.cli.main", run_name="__main__", alter_sys=True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        tables = [("with all that it calls", inclusive), ("by itself", own)]
        lines = [f"{total} samples"]
        for title, counts in tables:
            lines += ["", title]
            lines += [f"{count / total:6.1%} {where}" for where, count in counts.most_common(LINES)]
        out.write_text("\n".join(lines) + "\n")


def place(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name} {frame.f_code.co_name}"


if __name__ == "__main__":
    main()
