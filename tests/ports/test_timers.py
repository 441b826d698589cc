"""Timers fire in order, never after they were cancelled, and keep no memory of those that were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bootbridge.ports.timers import ALARM_SECONDS_MAX, PAUSE_SECONDS_MIN, RunningClock, Timer, Timers


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_timers_fire_in_the_order_of_their_deadlines_and_equal_ones_in_order_of_arrival() -> None:
    """Two with one deadline fire first come, first served."""
    clock = Clock()
    timers = Timers(clock)
    fired: list[str] = []
    for name, delay in (("b", 2.0), ("a", 1.0), ("c", 2.0)):
        timers.after(delay, lambda name=name: fired.append(name))  # type: ignore[misc]
    clock.time = 2.0
    timers.fire_due()
    assert fired == ["a", "b", "c"]
    assert len(timers) == 0
    assert timers.next_deadline() is None


def test_a_timer_that_is_set_while_others_fire_fires_in_its_own_time() -> None:
    """An action may set the next timer, also one that is due at once."""
    clock = Clock()
    timers = Timers(clock)
    fired: list[float] = []
    timers.after(1.0, lambda: timers.after(0.0, lambda: fired.append(clock.time)))
    timers.after(1.0, lambda: timers.after(5.0, lambda: fired.append(clock.time)))
    clock.time = 1.0
    timers.fire_due()
    assert fired == [1.0]
    assert timers.next_deadline() == 6.0


def test_a_hundred_thousand_cancelled_timers_leave_nothing_behind() -> None:
    """A minute of many short connections must not cost a minute's worth of memory."""
    timers = Timers(Clock())
    keep = timers.after(60.0, lambda: None)
    for _ in range(100_000):
        timers.after(30.0, lambda: None).cancel()
    assert len(timers) == 1
    assert len(timers._heap) < 200
    assert not keep.cancelled


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans(), st.booleans()), max_size=300))
def test_exactly_the_timers_that_were_not_cancelled_fire(
    plan: list[tuple[float, bool, bool]],
) -> None:
    """Also if timers are cancelled before or between firings, once or repeatedly."""
    clock = Clock()
    timers = Timers(clock)
    fired: list[int] = []
    made: list[Timer] = []
    for index, (delay, _, _) in enumerate(plan):
        made.append(timers.after(delay, lambda index=index: fired.append(index)))  # type: ignore[misc]
    for timer, (_, early, _) in zip(made, plan, strict=True):
        if early:
            timer.cancel()
            timer.cancel()
    clock.time = 50.0
    timers.fire_due()
    for timer, (_, _, late) in zip(made, plan, strict=True):
        if late:
            timer.cancel()
    clock.time = 100.0
    timers.fire_due()
    expected = {i for i, (delay, early, late) in enumerate(plan) if not early and (delay <= 50.0 or not late)}
    assert set(fired) == expected
    assert fired == sorted(fired, key=lambda index: (plan[index][0], index))
    assert len(timers) == 0


# --- the clock of a process that may be paused


def test_a_pause_does_not_count() -> None:
    """An alarm that comes far too late shows that the process did not run."""
    real = Clock()
    clock = RunningClock(real)
    assert clock.set_alarm(0.5) == 0.5
    real.time = 0.4
    assert clock.now() == 0.4
    real.time = 100.0
    assert clock.now() == 0.5
    assert clock.take_resumed()
    assert not clock.take_resumed()
    assert clock.set_alarm(1.5) == 101.0
    real.time = 101.0
    assert clock.now() == 1.5
    assert not clock.take_resumed()


def test_a_pause_that_ends_shortly_after_a_distant_deadline_does_not_count() -> None:
    """Alarms before the deadline show it: the deadline itself is hardly late."""
    real = Clock()
    clock = RunningClock(real)
    assert clock.set_alarm(30.0) == ALARM_SECONDS_MAX
    real.time = 30.1
    assert clock.now() == ALARM_SECONDS_MAX
    assert clock.take_resumed()


def test_a_late_alarm_of_a_busy_process_counts() -> None:
    real = Clock()
    clock = RunningClock(real)
    clock.set_alarm(0.5)
    real.time = 0.5 + PAUSE_SECONDS_MIN
    assert clock.now() == real.time
    assert not clock.take_resumed()


def test_time_without_an_alarm_counts() -> None:
    """Nothing was to happen in it, so nothing shows whether the process ran."""
    real = Clock()
    clock = RunningClock(real)
    assert clock.set_alarm(None) == float("inf")
    real.time = 1000.0
    assert clock.now() == 1000.0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 100)), max_size=50))
def test_the_clock_never_goes_back(steps: list[tuple[float, float]]) -> None:
    real = Clock()
    clock = RunningClock(real)
    seen = 0.0
    for alarm_in, passed in steps:
        clock.set_alarm(seen + alarm_in)
        real.time += passed
        assert seen - 1e-9 <= clock.now() <= real.time + 1e-9  # but for rounding
        seen = clock.now()
