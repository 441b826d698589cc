"""What every fuzz target shares: seeds from code, a corpus under build/, libFuzzer's own flags."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

FUZZED = ["bootbridge.wire", "hpack"]
MISSING = "fuzz: atheris is not installed; it comes with: pip install -e '.[fuzz]'"


def instrumented() -> contextlib.AbstractContextManager[object]:
    """Import what is to be fuzzed inside of this, so that libFuzzer sees which branches it takes."""
    if importlib.util.find_spec("atheris") is None:
        return contextlib.nullcontext()
    import atheris

    manager: contextlib.AbstractContextManager[object] = atheris.instrument_imports(include=FUZZED)
    return manager


def fuzz(check: Callable[[bytes], None], seeds: Iterable[bytes]) -> None:
    """Runs ``check`` on mutations of the seeds by libFuzzer; an exception is a finding.

    The flags on the command line are libFuzzer's: -max_total_time=60, or a file to replay.
    """
    try:
        import atheris
    except ImportError:
        sys.exit(MISSING)
    arguments = sys.argv[1:]
    replaying = any(not argument.startswith("-") for argument in arguments)
    findings = Path("build", "fuzz")
    corpus = findings / Path(sys.argv[0]).stem  # kept, so that the next run goes on from there
    corpus.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(seeds):
        (corpus / f"seed-{index}").write_bytes(seed)
    flags = ["-max_len=1024", "-timeout=10", "-rss_limit_mb=1024", f"-artifact_prefix={findings}/"]
    atheris.Setup([sys.argv[0], *flags, *arguments, *([] if replaying else [str(corpus)])], check)
    atheris.Fuzz()
