"""Tests HEAD on a fresh Debian with Python and make only: `make test-debian12`, `make test-debian13`.

Ends with 3 if it cannot run here.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.debian import root

REPOSITORY = Path(__file__).parents[2]
SUITES = {"12": "bookworm", "13": "trixie", "14": "forky"}
NEEDED = ("debootstrap", "unshare", "git", "apt-config")


def main() -> int:
    release = sys.argv[1] if len(sys.argv) == 2 else ""
    if release not in SUITES:
        print(f"debian: {release!r}: unknown release of Debian (use one of {', '.join(SUITES)})")
        return 2
    if os.geteuid() != 0:
        print("debian: not root (run as root: debootstrap and chroot need it)")
        return 3
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        print(f"debian: programs missing: {', '.join(missing)}")
        return 3
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _test(release)
    except subprocess.CalledProcessError as error:
        print(f"debian {release}: FAILED (see above): {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _test(release: str) -> None:
    started = time.monotonic()
    machine = root.Machine.read()
    base = root.base(SUITES[release], REPOSITORY / "build/debian", machine)
    with root.copy(base, machine) as copy:
        # As a newcomer gets it: neither files that git ignores nor changes that are not committed.
        clone = ["git", "clone", "--quiet", "--no-hardlinks", str(REPOSITORY), str(copy / "root/bootbridge")]
        subprocess.run(clone, check=True)
        root.enter(copy, machine, "bash", "/root/bootbridge/tests/debian/inside")
    print(f"debian {release}: passed in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
