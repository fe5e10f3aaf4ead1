"""Waiting for what nobody signals, because it is inside of what is tested: it is looked at again and again.

The time is far above what it takes: a test waits that long only where something is broken.
"""

import asyncio
from collections.abc import Callable

__all__ = ["until"]


async def until(holds: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Wait until something holds. Raises ``TimeoutError`` if it never does."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
