"""The usual `process_*` metrics, read from /proc at each scrape."""

from __future__ import annotations

import os
import resource
import time

from bootbridge.metrics import Registry


def register_process_metrics(registry: Registry) -> None:
    started = _start_time_seconds()
    own = registry.with_prefix("process_")
    own.counter("cpu_seconds_total", "User and system CPU time spent.").set_function(time.process_time)
    own.gauge("start_time_seconds", "Start of the process, in seconds since 1970.").set(started)
    own.gauge("resident_memory_bytes", "Memory in RAM.").set_function(lambda: _memory_bytes(1))
    own.gauge("virtual_memory_bytes", "Address space in use.").set_function(lambda: _memory_bytes(0))
    own.gauge("open_fds", "Open file descriptors.").set_function(_open_fds)
    own.gauge("max_fds", "Limit of open file descriptors.").set_function(_max_fds)


def _memory_bytes(field: int) -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[field]) * resource.getpagesize()


def _open_fds() -> int:
    # The listing itself uses one descriptor.
    return len(os.listdir("/proc/self/fd")) - 1


def _max_fds() -> float:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def _start_time_seconds() -> float:
    with open("/proc/self/stat", "rb") as stat:
        # The command's name is in brackets and may contain anything; field 22 overall is field 19 after it.
        since_boot_ticks = int(stat.read().rpartition(b")")[2].split()[19])
    since_boot = since_boot_ticks / os.sysconf("SC_CLK_TCK")
    return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot, 2)
