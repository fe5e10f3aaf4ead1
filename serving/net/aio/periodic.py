"""Runs a callback at a fixed pace until a stop event.

The times of beats are multiples of the period after the first one, so that the pace does not drift. A missed beat is
not repeated. An error of one beat is passed to ``on_error``, and the loop continues.
"""

import asyncio
from collections.abc import Awaitable, Callable

from serving.net.aio.clock import now_s


def until_beat_s(period_s: float) -> float:
    """Seconds until a multiple of ``period_s`` on the loop's clock, so that tasks of a process wake together."""
    left_s = period_s - now_s() % period_s
    # A timer that fires slightly early must not fire twice.
    return left_s if left_s > period_s / 2 else left_s + period_s


async def next_beat(period_s: float) -> None:
    """Sleep for ``until_beat_s(period_s)``."""
    await asyncio.sleep(until_beat_s(period_s))


async def every(
    period_s: float,
    beat: Callable[[], Awaitable[None]],
    *,
    stop: asyncio.Event,
    on_error: Callable[[Exception], None],
    is_shared: bool = False,
) -> None:
    """Await ``beat`` immediately and then every ``period_s`` seconds, until ``stop`` is set.

    ``is_shared`` aligns the beats with those of other tasks, by ``until_beat_s``.
    """
    due_s = now_s() // period_s * period_s if is_shared else now_s()
    while not stop.is_set():
        try:
            await beat()
        except Exception as error:  # noqa: BLE001 - the outermost frame of a beat
            on_error(error)
        # The next beat in the future: late ones are dropped.
        due_s += period_s * max(1, -(-(now_s() - due_s) // period_s))
        await wait_for(stop, until_s=due_s)


async def wait_for(event: asyncio.Event, *, until_s: float) -> bool:
    """Wait for an event until a time on the loop's clock; return whether it was set."""
    try:
        async with asyncio.timeout_at(until_s):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True
