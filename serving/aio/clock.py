"""The clocks, in one place: everything else gets its time from here or as an argument.

``now_s`` is the running loop's monotonic time, which decisions are made on and tests can make virtual. Wall-clock time is
for what leaves the process: stamps in objects, logs and frames.
"""

import asyncio
import datetime as dt
import time

__all__ = ["now_s", "stamp", "wall_s"]


def now_s() -> float:
    """Monotonic time of the running loop, in seconds."""
    return asyncio.get_running_loop().time()


def wall_s() -> float:
    """Seconds since the epoch."""
    return time.time()


def stamp(at_s: float | None = None) -> str:
    """A time as the Kubernetes API writes it, in whole seconds of UTC: "2026-11-21T04:30:00Z". None means now."""
    moment = dt.datetime.fromtimestamp(wall_s() if at_s is None else at_s, tz=dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
