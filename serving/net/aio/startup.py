"""The start of a daemon: handles signals during its imports, and reports that it serves.

While it imports, SIGTERM and SIGINT end the process at once. As the first process of a container a daemon ignores SIGTERM until it has a handler (pid_namespaces(7)), and its imports
take up to a second: stopped in that time, it would run until its grace period is over. A ``main`` module therefore calls
``exit_on_signals`` before its other imports. ``serving.net.aio.daemon`` replaces the handlers when the loop runs.
"""

import contextlib
import os
import signal
from types import FrameType
from typing import NoReturn

READY_VARIABLE = "SERVING_READY_FD"
"""Names the pipe in which the supervisor of one machine waits for a byte."""
LOG_FILE_VARIABLE = "SERVING_LOG_FILE"
"""Names the file that is a daemon's standard output and error, for ``serving.net.aio.ownlog``."""
ALIVE, WAITING = b"1", b"w"
"""The reports in that pipe: the daemon runs, and it begins a wait."""
ALIVE_S = 1.0
"""Period of reports."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


# The pipe, once the daemon serves.
_pipes: list[int] = []


def exit_on_signals() -> None:
    """Exit with 0 on SIGTERM or SIGINT: the daemon has not started any work."""
    for number in STOP_SIGNALS:
        signal.signal(number, _exit)


def report_serving() -> None:
    """Report, once, that this daemon serves; without a supervisor, do nothing."""
    text = os.environ.pop(READY_VARIABLE, "")
    if text:
        os.set_inheritable(int(text), False)
        os.set_blocking(int(text), False)
        _pipes.append(int(text))
        report_alive()


def report_alive(*, is_waiting: bool = False) -> None:
    """Report that the loop of this daemon runs, each second once it serves; without a supervisor, do nothing.

    ``is_waiting``: the next report comes after a wait with a limit of its own, which may take longer.
    """
    for descriptor in _pipes:
        # The supervisor may be gone, or busy for so long that the pipe is full.
        with contextlib.suppress(OSError):
            os.write(descriptor, WAITING if is_waiting else ALIVE)


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    # Not sys.exit: an import may catch the exception, and threads of a library need not be waited for.
    os._exit(0)
