"""Waits for conditions inside of the tested code, without a signal.

The time limit is far above what is needed: a test waits that long only where something is broken.
"""

import asyncio
import inspect
import types
from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar, overload

T = TypeVar("T")


@overload
async def until(holds: Callable[[], Awaitable[T]], *, within_s: float = 60.0) -> T: ...
@overload
async def until(holds: Callable[[], T], *, within_s: float = 60.0) -> T: ...
async def until(holds: Callable[[], T | Awaitable[T]], *, within_s: float = 60.0) -> T:
    """Wait until ``holds`` returns a true value, and return it. Raises ``TimeoutError`` after a minute."""
    async with asyncio.timeout(within_s):
        while True:
            result = holds()
            if inspect.isawaitable(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.001)


@types.coroutine
def next_turn() -> Generator[None, None, None]:
    """Let everything scheduled run once. For tests of the order of turns of the loop."""
    yield
