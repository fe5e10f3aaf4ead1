"""A loop on which an hour takes a moment: its selector moves the clock to the next deadline instead of waiting."""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Reports ready files, and moves the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None and timeout > 0:
            self.now_s += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def skip(self, seconds: float) -> None:
        """Move the clock; timers that became due meanwhile are late."""
        self._jumping.now_s += seconds


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on virtual time from 0. Turns of tasks do not depend on the machine's speed."""
    with (
        asyncio.Runner(loop_factory=_VirtualLoop) as runner,
        mock.patch.object(time, "perf_counter", runner.get_loop().time),
    ):
        return runner.run(main)


async def pass_s(seconds: float) -> None:
    """Let virtual time pass. Raises ``AssertionError`` on a loop with a real clock."""
    assert isinstance(asyncio.get_running_loop(), _VirtualLoop)
    await asyncio.sleep(seconds)


def stand_still(seconds: float) -> None:
    """Move the clock while nothing runs, as when a machine is suspended."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _VirtualLoop)
    loop.skip(seconds)
