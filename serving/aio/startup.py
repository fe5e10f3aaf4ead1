"""Signals while a daemon still imports its modules: SIGTERM and SIGINT end the process at once.

As the first process of a container a daemon ignores SIGTERM until it has a handler (pid_namespaces(7)), and its imports
take up to a second: stopped in that time, it would run until its grace period is over. A ``main`` module therefore calls
``exit_on_signals`` before its other imports. ``serving.aio.daemon`` replaces the handlers when the loop runs.
"""

import os
import signal
from types import FrameType
from typing import NoReturn

__all__ = ["STOP_SIGNALS", "exit_on_signals"]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def exit_on_signals() -> None:
    """Exit with 0 on SIGTERM or SIGINT: nothing has begun that would have to be finished."""
    for number in STOP_SIGNALS:
        signal.signal(number, _exit)


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    # Not sys.exit: an import may catch the exception, and threads of a library need not be waited for.
    os._exit(0)
