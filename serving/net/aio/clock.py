"""The clocks of the project: all other modules get the time from here or as an argument.

``now_s`` is the running loop's monotonic time, which decisions use and tests can virtualize. Wall-clock time is used in
objects, logs and frames, because other processes read these.
"""

import asyncio
import datetime as dt
import functools
import time

_SCHEDSTAT = "/proc/thread-self/schedstat"

# Cached, because thousands of decisions fall into one second.
_STAMPS_KEPT = 16

# Also counts while the machine is suspended, unlike Linux's monotonic clock.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Monotonic time of the running loop, in seconds."""
    return asyncio.get_running_loop().time()


def steady_s() -> float:
    """Monotonic seconds, read at each call. The clock also runs while the process or the machine is suspended.

    The loop's own time is read once per iteration, so it is stale in a process that was frozen during an iteration.
    """
    return time.clock_gettime(_STEADY)


def unqueued_s() -> float:
    """``steady_s`` minus the seconds in which the calling thread was ready to run but had no core.

    The difference of two readings is then the thread's own time, however busy the machine is. The wait is the second
    number of schedstat in proc(5); on a kernel without schedstat it is 0.
    """
    waited_ns, at_s = -1, 0.0
    # The thread may lose its core between the two readings, and the wait would then be too short.
    while waited_ns != (waited_ns := _waited_ns()):
        at_s = steady_s()
    return at_s - waited_ns / 1e9


def _waited_ns() -> int:
    try:
        with open(_SCHEDSTAT, encoding="ascii") as file:  # noqa: PTH123 - the sidecar starts without pathlib
            return int(file.read().split()[1])
    except OSError:
        return 0


def wall_s() -> float:
    """Seconds since the epoch."""
    return time.time()


def stamp(at_s: float | None = None) -> str:
    """A timestamp in the Kubernetes API's form, in whole seconds of UTC: "2026-11-21T04:30:00Z". None means now."""
    return _stamp_of(int((wall_s() if at_s is None else at_s) // 1))


def micro_stamp(at_s: float) -> str:
    """A timestamp in the API's MicroTime form: "2026-11-21T04:30:00.123456Z"."""
    return dt.datetime.fromtimestamp(at_s, tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@functools.lru_cache(_STAMPS_KEPT)
def _stamp_of(at_s: int) -> str:
    return dt.datetime.fromtimestamp(at_s, tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
