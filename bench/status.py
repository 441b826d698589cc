"""Measures the CPU time of one `/status`, with 1,000 agents and 10,000 connections in the server's tables.

    python bench/status.py [--agents N] [--connections N]

The tables are those of a real core; its agents are real streams in memory. The routes are entered directly,
as an established dial does it.
"""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bootbridge.proxy_server.status_document import core_status  # noqa: E402
from bootbridge.runtime.status_page import ROWS_MAX, StatusQuery, encode  # noqa: E402
from bootbridge.tunnel.agent_registry import Strategy  # noqa: E402
from bootbridge.tunnel.frontend import ConnectFrontend  # noqa: E402
from bootbridge.tunnel.route import AgentRoute  # noqa: E402
from tests.support.sim_script import MemoryPort, ServerHarness  # noqa: E402

QUERIES = {
    "default page": StatusQuery(),
    "sorted by bytes": StatusQuery(sort="bytes"),
    "filtered, sorted by queue": StatusQuery(filter="node-99", sort="queued"),
    "largest page": StatusQuery(agents_limit=ROWS_MAX, connections_limit=ROWS_MAX),
}
ROUNDS = 5


def fill(harness: ServerHarness, agents: int, connections: int) -> None:
    for number in range(agents):
        high, low = divmod(number, 256)
        identifiers = (
            f"host=node-{number}&ipv4=10.{high}.{low}.1&cidr=10.{high}.{low}.0/24&default-route=true"
        )
        harness.agent(f"node-{number}", identifiers=identifiers)
    core, now = harness.core, harness.core.timers.now()
    streams = list(core.agent_registry)
    for number in range(connections):
        stream = streams[number % agents]
        record = core.dial_history.start(
            number + 1, "unix", "http-connect", f"10.1.{number % 250}.{number % 7}:443", now
        )
        record.try_agent(stream.agent_id, "cidr")
        core.dial_history.established(record, now)
        front = ConnectFrontend(core, MemoryPort(), "unix")
        stream.add_route(AgentRoute(core, front, stream, number // agents + 1, record))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=10_000)
    options = parser.parse_args()
    strategies = (Strategy.DEST_HOST, Strategy.CIDR, Strategy.DEFAULT_ROUTE)
    with ServerHarness(strategies=strategies) as harness:
        fill(harness, options.agents, options.connections)
        print(f"{options.agents} agents, {harness.core.route_count} connections; best of {ROUNDS}")
        for title, query in QUERIES.items():
            seconds = []
            for _ in range(ROUNDS):
                begun = time.process_time()
                page = encode(core_status(harness.core, query))
                seconds.append(time.process_time() - begun)
            print(f"{title:<28} {min(seconds) * 1000:6.1f} ms of CPU, {len(page) / 1024:6.0f} KiB")


if __name__ == "__main__":
    main()
