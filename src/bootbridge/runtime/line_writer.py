"""Writes lines to a file descriptor from a thread of its own, so that a blocked reader blocks no caller.

The reader of stderr may stop: a stuck container runtime, a paused pipe, a terminal with ^S. A non-blocking
descriptor would not be enough: O_NONBLOCK belongs to the open file, which other processes share.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

QUEUE_BYTES_MAX: Final = 1024 * 1024
# How long a flush waits for a reader that does not read.
FLUSH_SECONDS_MAX: Final = 1.0
# Above this many lines in a second, as when a thousand agents connect, the writer pauses after each write,
# so that lines are written together: its thread takes Python's lock from the one with the traffic.
BURST_LINES: Final = 100
PAUSE_SECONDS: Final = 0.02


class LineWriter:
    """Keeps the order of lines. Above ``bytes_max`` waiting bytes it drops new lines and counts them.

    When the reader returns, the line of ``describe_dropped(count)`` takes the place of the dropped ones.
    A line that cannot be written completely (the reader has closed, the disk is full) counts as dropped too.
    Thread-safe.
    """

    def __init__(
        self, fd: int, describe_dropped: Callable[[int], bytes], *, bytes_max: int = QUEUE_BYTES_MAX
    ) -> None:
        self.dropped = 0  # in total
        self.error = ""  # of the last write that failed
        self._fd = fd
        self._describe_dropped = describe_dropped
        self._bytes_max = bytes_max
        self._lines: deque[bytes] = deque()
        self._bytes = 0  # waiting, or being written now
        self._missing = 0  # lines dropped since the last queued one
        self._writing = False
        self._stuck = False  # the last flush timed out
        self._closed = False
        self._flushing = 0
        self._second = 0.0  # when the counted second began
        self._lines_in_second = 0
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._hurry = threading.Condition(lock)  # ends the pause after a write
        self._thread: threading.Thread | None = None

    def write(self, line: bytes) -> None:
        """Queues a whole line; never blocks."""
        with self._changed:
            if self._closed:
                self.dropped += 1
                return
            if self._missing or self._bytes + len(line) > self._bytes_max:
                self.dropped += 1
                self._missing += 1
            else:
                self._lines.append(line)
                self._bytes += len(line)
            if self._thread is None:
                self._start_thread()
            else:
                self._changed.notify_all()

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def _start_thread(self) -> None:
        # A daemon: a blocked write must not keep the process from exiting.
        thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return  # no thread available on the machine or in the cgroup: the next line tries again
        self._thread = thread

    def flush(self, seconds: float = FLUSH_SECONDS_MAX) -> bool:
        """Waits until everything queued is written; returns False if that takes longer than ``seconds``.

        After that it does not wait again until the reader has read something.
        """
        with self._changed:
            self._flushing += 1
            self._hurry.notify_all()
            self._stuck = not self._changed.wait_for(
                lambda: not (self._lines or self._bytes or self._missing or self._writing),
                0 if self._stuck else seconds,
            )
            self._flushing -= 1
            return not self._stuck

    def close(self) -> None:
        """Drops later lines. What is queued is still written; call ``flush`` before to wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._hurry.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._missing or self._closed)
                lines, missing = list(self._lines), self._missing
                if not lines and not missing:
                    return
                # Nothing is queued while lines are missing, so the report belongs behind these lines.
                self._lines.clear()
                self._missing = 0
                self._writing = True
            data = b"".join(lines)
            lost = data.count(b"\n", self._write_out(data))
            if missing:
                self._write_out(self._describe_dropped(missing))
            self._on_batch_written(lost + missing)
            with self._changed:
                self._writing = self._stuck = False
                self._bytes -= len(data)
                self.dropped += lost
                self._changed.notify_all()
                if self._is_burst(len(lines)):
                    self._hurry.wait_for(lambda: self._flushing or self._closed, PAUSE_SECONDS)

    def _is_burst(self, written: int) -> bool:
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._lines_in_second = now, 0
        self._lines_in_second += written
        return self._lines_in_second > BURST_LINES

    def _on_batch_written(self, lost: int) -> None:
        """For subclasses, in the writer's thread: so many lines of a batch were not written."""

    def _write_out(self, data: bytes) -> int:
        """Returns how many bytes were written, which are all unless an error occurs."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # another process has made the open file non-blocking
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
            except OSError as error:
                self.error = error.strerror or str(error)
                break
        return len(data) - len(rest)
