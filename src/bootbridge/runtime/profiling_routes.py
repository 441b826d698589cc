"""Profiles of the running process for `--enable-profiling`: tasks, CPU, objects.

The paths are upstream's. The pages are plain text, because Python has no pprof format.
"""

from __future__ import annotations

import asyncio
import gc
import io
from collections import Counter

from bootbridge.runtime.admin_http import AdminRequest, AdminResponse, Route
from bootbridge.runtime.admin_routes import redirect

PROFILE_SECONDS_DEFAULT = 30
PROFILE_SECONDS_MAX = 300
PROFILE_LINES = 60
HEAP_LINES = 60


def profiling_routes() -> dict[str, Route]:
    running = asyncio.Lock()

    async def profile(request: AdminRequest) -> AdminResponse:
        text = request.query.get("seconds", str(PROFILE_SECONDS_DEFAULT))
        seconds = int(text) if text.isascii() and text.isdigit() else 0
        if not 1 <= seconds <= PROFILE_SECONDS_MAX:
            return AdminResponse(f"seconds must be a number from 1 to {PROFILE_SECONDS_MAX}\n", 400)
        if running.locked():
            return AdminResponse("another profile is in progress, retry later\n", 409)
        async with running:
            return AdminResponse(await _cpu_profile(seconds))

    return {
        "/debug/pprof": lambda _request: redirect("/debug/pprof/"),
        "/debug/pprof/": lambda _request: AdminResponse(_tasks()),
        "/debug/pprof/profile": profile,
        "/debug/pprof/heap": lambda _request: AdminResponse(_heap()),
    }


def _tasks() -> str:
    tasks = asyncio.all_tasks()
    page = io.StringIO()
    page.write("profile?seconds=N: CPU profile    heap: objects by type\n\n")
    page.write(f"{len(tasks)} tasks\n\n")
    for task in sorted(tasks, key=lambda task: task.get_name()):
        task.print_stack(file=page)
        page.write("\n")
    return page.getvalue()


async def _cpu_profile(seconds: int) -> str:
    # Imported on demand, to keep the process small.
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    profiler.enable()
    try:
        await asyncio.sleep(seconds)
    finally:
        profiler.disable()
    page = io.StringIO()
    pstats.Stats(profiler, stream=page).sort_stats("tottime").print_stats(PROFILE_LINES)
    return page.getvalue()


def _heap() -> str:
    counts = Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects())
    lines = [f"{count:>10}  {name}" for name, count in counts.most_common(HEAP_LINES)]
    return f"{counts.total()} objects known to the garbage collector\n\n" + "\n".join(lines) + "\n"
