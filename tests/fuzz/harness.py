"""What every fuzz target shares: seeds from code, a scratch directory, libFuzzer's own flags."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

MISSING = "fuzz: atheris is not installed; it comes with: pip install -e '.[fuzz]'"


def fuzz(check: Callable[[bytes], None], seeds: Iterable[bytes]) -> None:
    """Run ``check`` on whatever libFuzzer makes of the seeds; an exception is a finding.

    The flags on the command line are libFuzzer's: -max_total_time=60, or a file to replay.
    """
    try:
        import atheris
    except ImportError:
        sys.exit(MISSING)
    atheris.instrument_all()
    arguments = sys.argv[1:]
    replaying = any(not argument.startswith("-") for argument in arguments)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        for index, seed in enumerate(seeds):
            Path(scratch, f"seed-{index}").write_bytes(seed)
        findings = Path("build", "fuzz")
        findings.mkdir(parents=True, exist_ok=True)
        flags = ["-max_len=4096", "-timeout=10", "-rss_limit_mb=1024", f"-artifact_prefix={findings}/"]
        atheris.Setup([sys.argv[0], *flags, *arguments, *([] if replaying else [scratch])], check)
        atheris.Fuzz()
