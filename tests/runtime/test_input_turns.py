"""How much of one connection's input is taken in one turn, on a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bootbridge.ports.timers import RunningClock
from bootbridge.runtime.input_turns import (
    MEASURED_BYTES_MIN,
    NEW_SECONDS,
    PART_BYTES,
    PART_BYTES_MAX,
    READ_SECONDS_MAX,
    SLOW_SECONDS,
    TURN_SECONDS,
    InputTurns,
)
from bootbridge.runtime.pump import READ_BYTES

BULK = READ_SECONDS_MAX / READ_BYTES / 4  # seconds for a byte
SMALL_FRAMES = 25 * READ_SECONDS_MAX / READ_BYTES
# Longer than a turn may take, by one part.
TURN_SECONDS_MAX = TURN_SECONDS + PART_BYTES * SMALL_FRAMES


class Connection:
    """A connection whose handler takes `byte_seconds` for each byte; turns run when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.worked = 0.0  # processor time
        self.clock = RunningClock(lambda: self.now)
        self.byte_seconds = BULK
        self.received = bytearray()
        self.sizes: list[int] = []
        self.stolen = 0.0  # the seconds that other programs take in the middle of each part
        self.reading = True
        self.failed = False
        self.breaks = False
        self.ended = False
        self.turns: list[Callable[[], None]] = []
        self.input = InputTurns(self, self, self._receive, self._fail)

    def cpu_time(self) -> float:
        return self.worked

    def next_turn(self, action: Callable[[], None]) -> None:
        self.turns.append(action)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def _receive(self, data: memoryview) -> None:
        if self.breaks:
            raise RuntimeError("a defect")
        self.received += data
        self.sizes.append(len(data))
        self.now += self.stolen
        self.now += len(data) * self.byte_seconds
        self.worked += len(data) * self.byte_seconds

    def _fail(self) -> None:
        self.failed = True

    def _end(self) -> None:
        self.ended = True

    def end(self) -> None:
        self.input.at_end(self._end)

    def read(self, size: int = READ_BYTES, byte_seconds: float = BULK) -> float:
        """Reads so many bytes, in a buffer that is then used for others; returns how long it took."""
        assert self.reading
        self.byte_seconds = byte_seconds
        buffer = bytearray(bytes(range(256)) * (size // 256 + 1))[:size]
        began = self.now
        self.input.take(memoryview(buffer))
        buffer[:] = bytes(size)
        return self.now - began

    def turn(self) -> float:
        began = self.now
        self.turns.pop(0)()
        return self.now - began

    def finish(self) -> list[float]:
        """Runs all turns; returns how long each took."""
        lasted = []
        while self.turns:
            assert not self.reading
            lasted.append(self.turn())
        return lasted


@pytest.fixture
def old() -> Connection:
    """A connection that has not been slow lately."""
    connection = Connection()
    connection.now += NEW_SECONDS + 1
    return connection


def test_bulk_data_is_taken_at_once(old: Connection) -> None:
    """And read into the same buffer again, without a copy."""
    for _ in range(3):
        old.read()
        assert old.turns == []
        assert old.reading
    assert len(old.received) == 3 * READ_BYTES


def test_a_slow_read_is_taken_whole_once(old: Connection) -> None:
    """Before it, nothing shows that it is slow. The next ones leave the thread to others."""
    assert old.read(byte_seconds=SMALL_FRAMES) == pytest.approx(25 * READ_SECONDS_MAX)
    first = old.read(byte_seconds=SMALL_FRAMES)
    others = old.finish()
    assert len(others) > 20
    assert max(first, *others) <= TURN_SECONDS_MAX
    assert old.reading


def test_nothing_is_lost_or_reordered(old: Connection) -> None:
    """The buffer of a read belongs to the next one."""
    old.read(byte_seconds=SMALL_FRAMES)
    old.received.clear()
    old.read(MEASURED_BYTES_MIN * 3 + 7, SMALL_FRAMES)
    assert old.finish()
    assert old.received == (bytes(range(256)) * 100)[: MEASURED_BYTES_MIN * 3 + 7]


def test_the_first_data_of_a_connection_is_taken_in_turns() -> None:
    """An attacker may connect again for each read."""
    new = Connection()
    assert new.read(byte_seconds=SMALL_FRAMES) <= TURN_SECONDS_MAX
    assert max(new.finish()) <= TURN_SECONDS_MAX


def test_bulk_data_of_a_new_connection_is_taken_in_growing_parts() -> None:
    """A caller over gRPC opens a connection for each dial, and may upload at once."""
    new = Connection()
    new.read()
    assert new.turns == []
    assert new.reading
    assert max(new.sizes) == PART_BYTES_MAX
    assert len(new.sizes) < READ_BYTES / PART_BYTES_MAX + 5


def test_a_message_that_is_completed_by_a_small_read_does_not_make_a_connection_slow(old: Connection) -> None:
    """The read that completes it costs more than its bytes allow, those before it less."""
    for _ in range(20):
        old.read()
        old.read(MEASURED_BYTES_MIN, READ_SECONDS_MAX / 2 / MEASURED_BYTES_MIN)
        assert old.turns == []


def test_small_frames_in_small_reads_make_a_connection_slow(old: Connection) -> None:
    """After a few of them."""
    for _ in range(3):
        old.read(MEASURED_BYTES_MIN, SMALL_FRAMES)
    assert old.turns


def test_other_programs_do_not_make_a_connection_slow(old: Connection) -> None:
    """Only the processor time of our own thread counts."""
    old.stolen = 1.0
    for _ in range(2):
        old.read()
        assert old.turns == []


def test_bulk_data_between_small_frames_does_not_make_the_connection_fast(old: Connection) -> None:
    old.read(byte_seconds=SMALL_FRAMES)
    for _ in range(5):
        old.read(byte_seconds=BULK)
        old.finish()
        old.now += SLOW_SECONDS / 10
        assert old.read(byte_seconds=SMALL_FRAMES) <= TURN_SECONDS_MAX
        old.finish()


def test_after_some_time_of_bulk_data_a_connection_is_fast_again(old: Connection) -> None:
    old.read(byte_seconds=SMALL_FRAMES)
    old.now += SLOW_SECONDS
    old.read()
    assert old.turns == []
    assert old.reading


def test_small_reads_are_taken_at_once_also_of_a_slow_connection(old: Connection) -> None:
    """They are short, and most agents send nothing else."""
    old.read(byte_seconds=SMALL_FRAMES)
    old.read(MEASURED_BYTES_MIN - 1, SMALL_FRAMES)
    assert old.turns == []
    assert len(old.received) == READ_BYTES + MEASURED_BYTES_MIN - 1


def test_the_end_of_a_connection_is_handled_behind_its_data(old: Connection) -> None:
    old.read(byte_seconds=SMALL_FRAMES)
    old.read(byte_seconds=SMALL_FRAMES)
    old.end()
    assert not old.ended
    old.finish()
    assert old.ended
    assert len(old.received) == 2 * READ_BYTES


def test_the_end_of_a_connection_without_waiting_data_is_handled_at_once(old: Connection) -> None:
    old.end()
    assert old.ended


def test_a_dropped_connection_takes_nothing_more_and_is_read_on(old: Connection) -> None:
    """A closing socket is read until its peer has closed it as well."""
    old.read(byte_seconds=SMALL_FRAMES)
    old.read(byte_seconds=SMALL_FRAMES)
    taken = len(old.received)
    old.input.drop()
    assert old.reading
    old.turn()
    assert len(old.received) == taken
    assert old.turns == []


@pytest.mark.parametrize("later", [False, True])
def test_a_defect_ends_the_connection(old: Connection, later: bool) -> None:
    """In the first turn of a read and in a later one. The error reaches the caller, which logs it."""
    old.read(byte_seconds=SMALL_FRAMES)
    if later:
        old.read(byte_seconds=SMALL_FRAMES)
    old.breaks = True
    with pytest.raises(RuntimeError):
        old.turn() if later else old.read(byte_seconds=SMALL_FRAMES)
    assert old.failed
    assert old.turns == []
    old.end()
    assert old.ended
