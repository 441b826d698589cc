"""Makes the pictures of README and docs from real runs.

    make pictures                                            # all that this machine can make
    make pictures RUNS=demo                                  # those of one run
    python -m tests.tools.pictures --keep up.svg             # its sources changed, but not what it shows

Look at every picture before you commit it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.tools.pictures import record
from tests.tools.pictures.catalogue import RUNS, Run, missing, sources_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="pictures", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"any of {', '.join(RUNS)} (default all)")
    parser.add_argument("--keep", action="append", default=[], metavar="PICTURE", help="record it as current")
    arguments = parser.parse_args()
    if unknown := set(arguments.runs) - set(RUNS):
        parser.error(f"unknown run: {', '.join(sorted(unknown))}")
    for picture in arguments.keep:
        _record(picture)
    if arguments.keep:
        return 0
    # A list: each run is made, also after one that cannot run here.
    return max([_make(name, RUNS[name]) for name in arguments.runs or RUNS])


def _make(name: str, run: Run) -> int:
    if lacking := missing(run):
        pictures = ", ".join(run.pictures)
        print(f"pictures: NOT MADE: {pictures} ({name} needs {'; '.join(lacking)})", file=sys.stderr)
        return 3
    folder = Path(tempfile.mkdtemp(prefix="bootbridge-"))
    try:
        for picture, content in run.make(folder):
            (record.FOLDER / picture).write_bytes(content)
            _record(picture)
            print(f"pictures: docs/pictures/{picture}, {len(content) / 1000:.0f} kB")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _record(picture: str) -> None:
    record.write(picture, record.digest(record.sources(sources_of(picture))))


if __name__ == "__main__":
    sys.exit(main())
