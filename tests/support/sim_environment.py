"""A discrete-event simulation environment with a virtual clock: one seed decides every event and its time."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable
from random import Random

from bootbridge.ports.timers import CATCH_UP_SECONDS, RunningClock, Timers
from bootbridge.runtime.pump import Flushable
from bootbridge.wire.packets import Buffer

READ_BYTES = 16 * 1024
_SCRIBBLE = b"\xee" * READ_BYTES


class Violation(AssertionError):
    """A promise of ARCHITECTURE.md was broken; ``promise`` is its number, 0 is a crash."""

    def __init__(self, promise: int, text: str) -> None:
        super().__init__(text)
        self.promise = promise


class Environment:
    """Runs scheduled actions in the order of their times, and at equal times in the order of scheduling."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.random = self.rng.random
        self.now = 0.0
        self.steps = 0
        self.digest = 0
        self.tracing = False
        self.after_step: Callable[[], None] = lambda: None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    def clock(self) -> float:
        return self.now

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def count(self, low: int, high: int) -> int:
        """Returns a random integer in the closed interval."""
        return low + int((high - low + 1) * self.random())

    def record(self, data: Buffer, text: str = "") -> None:
        """Adds an event to the digest, which is equal for equal seeds, and prints it if tracing is on."""
        self.digest = zlib.crc32(data, self.digest)
        if self.tracing:
            print(f"{self.now:12.6f} {self.steps:6d} {text}")

    def trace(self, text: str) -> None:
        self.record(text.encode(), text)

    def step(self) -> bool:
        if not self._heap:
            return False
        when, _, action = heapq.heappop(self._heap)
        self.now = max(self.now, when)
        self.steps += 1
        action()
        self.after_step()
        return True

    def run_until(self, done: Callable[[], bool], deadline: float) -> bool:
        """Runs until ``done``; returns False if the deadline passes or no action is left before that."""
        while not done():
            if not self._heap or self._heap[0][0] > deadline:
                self.now = max(self.now, deadline)
                return done()
            self.step()
        return True

    def run_for(self, seconds: float) -> None:
        self.run_until(lambda: False, self.now + seconds)


class SimPump:
    """The turns and timers of one simulated process, as ``runtime.pump.Pump`` provides them for sockets."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.alive = True
        self.clock = RunningClock(env.clock)
        self.timers = Timers(self.clock.now)
        self.timers.on_earlier = self._arm
        self.dirty: list[Flushable] = []
        self.read_buffer = bytearray(READ_BYTES)
        self.view = memoryview(self.read_buffer)
        self.paused_until = -1.0
        self._later: list[Callable[[], None]] = []
        self._armed = float("inf")
        self._deferred = False

    def end_turn(self) -> None:
        dirty = self.dirty
        while dirty:
            dirty.pop().flush()

    def scribble(self, size: int) -> None:
        """Overwrites a received buffer, which is valid during its turn only, to reveal code that kept it."""
        self.read_buffer[:size] = _SCRIBBLE[:size]

    def flush_later(self, write_out: Callable[[], None]) -> None:
        if not self._later:
            self.env.after(0.0, self._flush_later)
        self._later.append(write_out)

    def _flush_later(self) -> None:
        if self.put_off(self._flush_later):
            return
        later, self._later = self._later, []
        if self.alive:
            for write_out in later:
                write_out()
            self.end_turn()

    def cpu_time(self) -> float:
        return 0.0  # a turn takes no time here

    def next_turn(self, action: Callable[[], None]) -> None:
        self.soon(0.0, action)

    def soon(self, seconds: float, action: Callable[[], object]) -> None:
        """Schedules a turn of this process, which is skipped if the process has crashed by then."""

        def turn() -> None:
            if self.alive and not self.put_off(turn):
                action()
                self.end_turn()

        self.env.after(seconds, turn)

    def _arm(self) -> None:
        deadline = self.timers.next_deadline()
        if not self._deferred and self.clock.in_real_time(deadline) < self._armed:
            self._armed = self.clock.set_alarm(deadline)
            self.env.at(self._armed, self._ring)

    def _ring(self) -> None:
        if not self.alive or self.put_off(self._ring):
            return
        if self.env.now < self._armed:
            return  # an alarm that a later one has replaced
        self._deferred = self.clock.take_resumed() and not self._deferred
        if self._deferred:
            self._armed = self.env.now + CATCH_UP_SECONDS
            self.env.at(self._armed, self._ring)
            return
        self._armed = float("inf")
        self.timers.fire_due()
        self.end_turn()
        self._arm()

    # --- faults

    def pause(self, seconds: float) -> None:
        """The process does not run for a while: SIGSTOP, a frozen cgroup, a live migration."""
        self.paused_until = max(self.paused_until, self.env.now + seconds)

    @property
    def paused(self) -> bool:
        return self.env.now < self.paused_until

    @property
    def settled(self) -> bool:
        """Whether it runs, and has done what was due at the end of its last pause."""
        return self.env.now > self.paused_until + CATCH_UP_SECONDS

    def put_off(self, action: Callable[[], None]) -> bool:
        """Whether the process is paused; if so, ``action`` is called when it runs again."""
        if self.paused:
            self.env.at(self.paused_until, action)
            return True
        return False
