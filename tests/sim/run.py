"""make sim: many seeds, each one simulation. A failure prints one line, and its seed replays it exactly.

python -m tests.sim.run --seeds 2000 [--start 0] [--jobs 2]
python -m tests.sim.run --seed 1234 --trace
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.sim.limits import small_limits
from tests.sim.scenario import Scenario
from tests.support.sim_environment import Violation


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    steps: int
    digest: int
    seconds: float
    promise: int | None = None
    text: str = ""

    @property
    def line(self) -> str:
        return (
            f"FAILED seed {self.seed} step {self.steps} promise {self.promise} commit {commit()}: {self.text}"
        )


def run_seed(seed: int, *, trace: bool = False) -> Result:
    scenario = Scenario.__new__(Scenario)
    try:
        scenario.__init__(seed, trace=trace)  # type: ignore[misc]
        with small_limits(scenario.limits):
            scenario.run()
    except Violation as violation:
        return _result(scenario, violation.promise, str(violation))
    except Exception as error:
        if trace:
            traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        return _result(
            scenario, 0, f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        )
    return _result(scenario, None, "")


def _result(scenario: Scenario, promise: int | None, text: str) -> Result:
    env = scenario.env
    return Result(scenario.seed, env.steps, env.digest, env.now, promise, text.replace("\n", " ")[:600])


def commit() -> str:
    argv = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, cwd=Path(__file__).parent)
    except FileNotFoundError:
        return "unknown"  # a machine without git
    return done.stdout.strip() or "unknown"


def run_block(seeds: range) -> list[Result]:
    """Returns the failures of a block of seeds, then one result with the total number of steps."""
    gc.disable()  # collected between seeds: a scenario is one large reference cycle
    failures = []
    steps = 0
    for seed in seeds:
        result = run_seed(seed)
        steps += result.steps
        if result.promise is not None:
            failures.append(result)
        if seed % 20 == 0:
            gc.collect()
    return [*failures, Result(seeds.start, steps, 0, 0.0)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.run", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one seed only")
    parser.add_argument("--trace", action="store_true", help="print every event of it")
    parser.add_argument("--jobs", type=int, default=1, help="processes to use")
    parser.add_argument("--failures", type=int, default=10, help="stop after so many failures")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _run_one(options.seed, options.trace)
    return _run_many(options)


def _run_one(seed: int, trace: bool) -> int:
    result = run_seed(seed, trace=trace)
    print(f"seed {seed}: {result.steps} steps, {result.seconds:.1f} simulated s, trace {result.digest:08x}")
    if result.promise is not None:
        print(result.line)
    return int(result.promise is not None)


def _run_many(options: argparse.Namespace) -> int:
    size = 50
    end = options.start + options.seeds
    blocks = [range(at, min(at + size, end)) for at in range(options.start, end, size)]
    began = time.monotonic()
    failed = steps = done = 0
    for block, results in zip(blocks, _spread(blocks, options.jobs), strict=False):
        *failures, total = results
        steps += total.steps
        done += len(block)
        failed += len(failures)
        for failure in failures:
            print(failure.line, flush=True)
        if done % 1000 == 0 and done < options.seeds:
            print(
                f"{done} seeds, {failed} failed, {done / (time.monotonic() - began):.0f} seeds/s", flush=True
            )
        if failed >= options.failures:
            break
    seconds = time.monotonic() - began
    print(
        f"{done} seeds, {steps} steps, {failed} failed, {seconds:.1f} s, {done / seconds:.0f} seeds/s",
        flush=True,
    )
    return int(failed > 0)


def _spread(blocks: list[range], jobs: int) -> Iterable[list[Result]]:
    if jobs <= 1:
        yield from map(run_block, blocks)
        return
    pool = ProcessPoolExecutor(jobs)
    try:
        yield from pool.map(run_block, blocks)
    finally:
        pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    raise SystemExit(main())
