"""Run every fuzz target for SECONDS: python -m tests.fuzz.run SECONDS."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from tests.fuzz.harness import MISSING

TARGETS = ("http2_server", "http2_client", "message_reader", "packets", "messages", "connect_request")


def main() -> int:
    if len(sys.argv) != 2 or not sys.argv[1].isdigit() or sys.argv[1] == "0":
        print("usage: python -m tests.fuzz.run SECONDS (for each target)", file=sys.stderr)
        return 2
    if importlib.util.find_spec("atheris") is None:
        print(MISSING, file=sys.stderr)
        return 1
    failed = [target for target in TARGETS if not holds(target, sys.argv[1])]
    if failed:
        print(
            f"fuzz: {', '.join(failed)} FAILED; replay with: python -m tests.fuzz.{failed[0]} build/fuzz/FILE"
        )
    return 1 if failed else 0


def holds(target: str, seconds: str) -> bool:
    command = [sys.executable, "-m", f"tests.fuzz.{target}", f"-max_total_time={seconds}"]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lines = result.stdout.splitlines()
    if result.returncode:
        print("\n".join([f"fuzz: {target} FAILED", *lines[-40:]]), flush=True)
        return False
    runs = next((line for line in reversed(lines) if line.startswith("Done ")), "finished")
    print(f"fuzz: {target}: {runs}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
