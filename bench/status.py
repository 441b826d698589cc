"""Measures what the status page of our server costs with 1,000 agents and 10,000 connections.

    python bench/status.py [--agents N] [--connections N] [--rounds N] [--seconds N]

A real server, real agent streams with mTLS in one Go process, real tunnels. First the CPU time of the server
for one page and one `/status`; then a caller (dial, echo 64 bytes, close) and pings, in turns quiet and
beside an open page, which is fetched again as often as it says, as the page's script does.
"""

import argparse
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from generator import Entry, Generator, build_peers
from growth import raise_file_limit
from pairs import (
    OURS,
    OURS_COMPILED,
    BenchError,
    Implementation,
    Processes,
    Server,
    make_certificates,
    processes,
    start_server,
)

PATHS = {
    "page": "/",
    "/status": "/status",
    "/status, sorted by bytes": "/status?sort=bytes",
    "/status, filtered": "/status?filter=127.0.0.1&sort=queued",
    "/status, 1,000 rows": "/status?agents_limit=1000&connections_limit=1000",
}
REQUESTS = 10
# Where the page says after how many seconds it is to be updated.
PERIOD = re.compile(rb'id="updated" data-seconds="([0-9.]+)"')


def fetch(server: Server, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}{path}", timeout=30) as answer:
        body: bytes = answer.read()
        return body


def print_costs(server: Server) -> None:
    for title, path in PATHS.items():
        size = len(fetch(server, path))
        before = server.process.cpu_seconds()
        for _ in range(REQUESTS):
            fetch(server, path)
        spent = (server.process.cpu_seconds() - before) / REQUESTS
        print(f"{title:<28} {spent * 1000:6.1f} ms of CPU, {size / 1024:6.0f} KiB", flush=True)


@contextlib.contextmanager
def open_page(server: Server) -> Iterator[None]:
    """Somebody looks at the page meanwhile."""
    closed = threading.Event()

    def update() -> None:
        period = 0.0
        while not closed.wait(period):
            found = PERIOD.search(fetch(server, PATHS["page"]))
            if found is None:
                raise BenchError("the page does not say when it is to be updated")
            period = float(found[1])

    reader = threading.Thread(target=update)
    reader.start()
    try:
        yield
    finally:
        closed.set()
        reader.join()


def measure(generator: Generator, entry: Entry, seconds: float) -> dict[str, float]:
    caller = generator.caller(entry)
    time.sleep(seconds)
    called = generator.finish(caller)
    if called["failed"]:
        raise BenchError(f"{called['failed']} calls failed")
    ping = generator.run_beside("ping", entry, f"--seconds={seconds}")
    return {
        "call p50": called["p50_us"],
        "call p99": called["p99_us"],
        "ping p50": ping["p50_us"],
        "ping p99": ping["p99_us"],
    }


def print_latencies(options: argparse.Namespace, generator: Generator, server: Server) -> None:
    entry = Entry(server.mode, server.uds)
    quiet, beside = [], []
    for _ in range(options.rounds):
        quiet.append(measure(generator, entry, options.seconds))
        with open_page(server):
            beside.append(measure(generator, entry, options.seconds))
    for name in quiet[0]:
        one, other = [each[name] for each in quiet], [each[name] for each in beside]
        before, after = statistics.median(one), statistics.median(other)
        print(
            f"{name:<9} quiet {before:7.0f} µs ({_range(one)}), beside the page {after:7.0f} µs"
            f" ({_range(other)}), {after / before:.2f}×",
            flush=True,
        )


def _range(values: list[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"


def run(options: argparse.Namespace, children: Processes) -> None:
    generator = Generator(children)
    certs = make_certificates(children.directory)
    kind = Implementation(OURS, options.ours)
    server = start_server(children, kind, OURS, "http-connect", certs)
    generator.agents(f"127.0.0.1:{server.agent_port}", certs.of_agents(), options.agents)
    server.wait_for("/readyz")
    generator.hold(Entry(server.mode, server.uds), options.connections)
    print(
        f"{options.agents} agents, {options.connections} connections, RSS {server.process.rss_mib():.0f} MiB"
    )
    print_costs(server)
    print_latencies(options, generator, server)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3, help="figures are medians")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of one latency measurement")
    parser.add_argument("--ours", type=Path, default=OURS_COMPILED, help="directory of our commands")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    build_peers("load")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, processes(Path(directory)) as children:
        try:
            raise_file_limit(options.agents + options.connections + 1_000)
            run(options, children)
        except (BenchError, subprocess.SubprocessError, OSError) as error:
            print(f"bench-status: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("bench-status: interrupted; all processes are ended", file=sys.stderr)
            return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
