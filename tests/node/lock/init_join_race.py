"""Races init against join: `python -m tests.node.lock.init_join_race --seeds 100000`."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from random import Random

from bootbridge.common.failures import Transient
from bootbridge.node.supervisor import FINISHED, INTERRUPTED
from bootbridge.runtime import tasks
from bootbridge.runtime.concurrency import run_unless
from bootbridge.runtime.grpc import RpcError
from bootbridge.trust.measurement import lock_value
from bootbridge.wire import grpc_messages as grpc
from tests.support import deterministic_loop
from tests.support.node_environment import (
    INIT_MEASUREMENT,
    JOIN_MEASUREMENT,
    Environment,
    PersistentState,
    cluster_of,
    init_request,
    quiet,
)


@dataclass(frozen=True)
class Result:
    winner: str
    user: str  # what the user who wanted an init has seen


def race(seed: int, *, stop: bool = False) -> Result:
    """Starts an instance, a client and a join service together; `stop` adds a stop request."""
    return deterministic_loop.run(_race(seed, stop), seed)


async def _race(seed: int, stop: bool) -> Result:
    chance = Random(seed)
    environment = Environment(seed, slow=chance.choice((0.0, 0.01, 1.0)), linger=5.0)
    supervisor = environment.assemble()
    # A cluster that can be joined may be there before or after the user comes.
    environment.faults["ticket"] = [Transient("not yet")] * chance.choice((0, 0, 1))
    user = tasks.spawn(_user(environment, chance.choice((0.0, 0.0, chance.uniform(0.0, 2.0)))), "user")
    stopper = tasks.spawn(_stopper(environment, chance.uniform(0.0, 2.0)), "stopper") if stop else None
    code = await supervisor.run(environment.stop)
    seen = await user
    if stopper is not None:
        await stopper
    winner = _winner(environment, code)
    _check(environment, winner, seen)
    return Result(winner, seen)


async def _user(environment: Environment, after: float) -> str:
    await asyncio.sleep(after)
    if await run_unless(environment.lock.wait_until_decided(), environment.listener.opened.wait()) is None:
        return "too late"
    try:
        events = await environment.listener.call(init_request(), acknowledge=True)
    except RpcError as failure:
        if failure.code not in (grpc.FAILED_PRECONDITION, grpc.UNAVAILABLE):
            raise
        return "refused"
    assert events[-1].success is not None, events
    return "success"


async def _stopper(environment: Environment, after: float) -> None:
    await asyncio.sleep(after)
    environment.stop.set()


def _winner(environment: Environment, code: int) -> str:
    holder = environment.lock.holder
    assert code == (FINISHED if holder else INTERRUPTED), (code, holder)
    return str(holder or "none")


def _check(environment: Environment, winner: str, seen: str) -> None:
    """Checks that the winner has completed and the loser has changed nothing."""
    persistent, calls = environment.persistent, Counter(environment.calls)
    assert not environment.violations, environment.violations
    assert (seen == "success") == (winner == "init"), (seen, winner)
    if winner == "none":
        assert persistent == PersistentState()
        return
    cluster = cluster_of(INIT_MEASUREMENT if winner == "init" else JOIN_MEASUREMENT)
    assert persistent.extensions == 1
    assert persistent.register == lock_value(cluster)
    assert persistent.member_of == cluster
    assert persistent.state is not None
    assert persistent.state.cluster_id == cluster
    assert calls[winner] == 1
    losers = ("ticket files", "join") if winner == "init" else ("join service", "init")
    assert not any(calls[each] for each in losers), calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    started, winners = time.monotonic(), Counter[str]()
    with quiet():
        for seed in range(given.first, given.first + given.seeds):
            try:
                winners[race(seed, stop=seed % 4 == 3).winner] += 1
            except BaseException:
                print(f"seed {seed}")
                raise
    print(f"{given.seeds} races in {time.monotonic() - started:.1f} s: {dict(winners)}")


if __name__ == "__main__":
    main()
