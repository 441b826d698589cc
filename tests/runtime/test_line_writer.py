"""The log's writer: callers never wait for a reader, and lost lines are counted in their place."""

from __future__ import annotations

import fcntl
import os
import re
import select
import threading
from collections.abc import Iterator

import pytest

from bootbridge.runtime import line_writer
from bootbridge.runtime.line_writer import LineWriter
from tests.support.process_program import until

BYTES_MAX = 1000
LINE = b"x" * 99 + b"\n"


class FullPipe:
    """A pipe without room whose reader does not read."""

    def __init__(self) -> None:
        self.reader, self.fd = os.pipe()
        size = fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, 4096)
        os.write(self.fd, b"-" * size)

    def read(self) -> bytes:
        """Waits for bytes; returns those that follow the filling."""
        return os.read(self.reader, 65536).lstrip(b"-")

    def read_until(self, end: bytes) -> bytes:
        """Returns what follows the filling, up to ``end``."""
        got = b""
        while not got.endswith(end):
            got += self.read()
        return got

    def close(self) -> None:
        for fd in (self.reader, self.fd):
            try:
                os.close(fd)
            except OSError:
                pass  # closed by the test


@pytest.fixture
def pipe() -> Iterator[FullPipe]:
    pipe = FullPipe()
    yield pipe
    pipe.close()


def _describe(count: int) -> bytes:
    return b"dropped %d\n" % count


def test_lines_arrive_in_order(pipe: FullPipe) -> None:
    writer = LineWriter(pipe.fd, _describe)
    lines = [b"line %d\n" % number for number in range(1000)]
    for line in lines:
        writer.write(line)
    assert pipe.read_until(lines[-1]) == b"".join(lines)
    assert writer.flush()
    assert writer.dropped == 0


def test_a_caller_never_waits_and_lost_lines_are_reported_in_their_place(pipe: FullPipe) -> None:
    writer = LineWriter(pipe.fd, _describe, bytes_max=BYTES_MAX)
    for _ in range(BYTES_MAX // len(LINE) + 5):
        writer.write(LINE)
    writer.write(b"!\n")  # there is room for it, but lines before it were lost
    assert writer.dropped == 6
    # One report, or two if the writer's thread started while lines were being dropped.
    got = b""
    while sum(map(int, re.findall(rb"dropped (\d+)\n", got))) < 6:
        got += pipe.read()
    assert re.sub(rb"dropped \d+\n", b"", got) == LINE * (BYTES_MAX // len(LINE))
    assert got.rindex(LINE) < got.index(b"dropped")
    assert writer.flush()
    writer.write(b"next\n")
    assert pipe.read_until(b"next\n") == b"next\n"
    assert writer.dropped == 6


def test_a_flush_is_bounded_and_does_not_wait_twice(pipe: FullPipe) -> None:
    """At exit a stuck reader delays the process once, by the limit. The second flush has no limit of its own:
    this test would hang if it waited."""
    writer = LineWriter(pipe.fd, _describe)
    writer.write(LINE)
    assert not writer.flush(0.01)
    assert not writer.flush(threading.TIMEOUT_MAX)
    pipe.read_until(LINE)
    until(lambda: writer.flush(0.01), "everything is written")


def test_a_descriptor_that_another_process_made_non_blocking_is_waited_for(pipe: FullPipe) -> None:
    os.set_blocking(pipe.fd, False)
    writer = LineWriter(pipe.fd, _describe)
    writer.write(LINE)
    assert pipe.read_until(LINE) == LINE
    assert writer.dropped == 0


def test_lines_for_a_reader_that_has_closed_count_as_dropped(pipe: FullPipe) -> None:
    """No exception, no signal; also for a line that is being written at that moment."""
    writer = LineWriter(pipe.fd, _describe)
    writer.write(LINE)
    os.close(pipe.reader)
    assert writer.flush()
    assert writer.dropped == 1
    writer.write(LINE)
    assert writer.flush()
    assert writer.dropped == 2


def test_a_closed_writer_writes_what_it_has_and_drops_the_rest(pipe: FullPipe) -> None:
    writer = LineWriter(pipe.fd, _describe)
    writer.write(b"before\n")
    writer.close()
    writer.write(b"after\n")
    assert pipe.read_until(b"before\n") == b"before\n"
    assert writer.dropped == 1


def test_a_missing_thread_loses_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cgroup may permit no further thread for a moment: the caller goes on, and a later line retries."""
    reader, fd = os.pipe()
    writer = LineWriter(fd, lambda count: b"")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        writer.write(b"first\n")
    writer.write(b"second\n")
    assert writer.flush(20)
    assert os.read(reader, 100) == b"first\nsecond\n"
    writer.close()
    os.close(reader)
    os.close(fd)


def test_lines_of_a_burst_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one at once, the others after a pause or with a flush."""
    monkeypatch.setattr(line_writer, "PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(line_writer, "BURST_LINES", 0)
    reader, fd = os.pipe()
    writer = LineWriter(fd, lambda count: b"")
    writer.write(b"first\n")
    assert os.read(reader, 100) == b"first\n"
    writer.write(b"second\n")
    assert not select.select([reader], [], [], 0.2)[0], "the writer pauses"
    writer.write(b"third\n")
    assert writer.flush()
    assert os.read(reader, 100) == b"second\nthird\n"
    writer.close()
    os.close(reader)
    os.close(fd)
