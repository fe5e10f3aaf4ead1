"""The start of a daemon: handles signals during imports, and reports to the supervisor.

During imports, SIGTERM and SIGINT end the process immediately. Without this, a daemon that is the first process of a
container would ignore SIGTERM until it has a handler (pid_namespaces(7)). Its imports take up to a second, and a stop
in that time would last for the whole grace period. A ``main`` module therefore calls ``exit_on_signals`` before its
other imports. ``serving.net.aio.daemon`` replaces the handlers when the loop runs.
"""

import contextlib
import os
import signal
from types import FrameType
from typing import NoReturn

READY_VARIABLE = "SERVING_READY_FD"
"""The environment variable with the pipe on which a single machine's supervisor waits for a byte."""
LOG_FILE_VARIABLE = "SERVING_LOG_FILE"
"""The environment variable with the file that receives a daemon's standard output and error (``ownlog.py``)."""
ALIVE, WAITING = b"1", b"w"
"""The reports written to that pipe: the daemon runs, or begins a wait."""
ALIVE_S = 1.0
"""Time between reports, in seconds."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


# The pipe, once the daemon serves.
_pipes: list[int] = []


def exit_on_signals() -> None:
    """Exit with 0 on SIGTERM or SIGINT, because the daemon has not started any work."""
    for number in STOP_SIGNALS:
        signal.signal(number, _exit)


def report_serving() -> None:
    """Report once to the supervisor that this daemon serves. Without a supervisor, do nothing."""
    text = os.environ.pop(READY_VARIABLE, "")
    if text:
        os.set_inheritable(int(text), False)
        os.set_blocking(int(text), False)
        _pipes.append(int(text))
        report_alive()


def report_alive(*, is_waiting: bool = False) -> None:
    """Report to the supervisor that the event loop runs, once a second. Without a supervisor, do nothing.

    ``is_waiting``: the daemon now waits, so the supervisor allows more time until the next report.
    """
    for descriptor in _pipes:
        # The supervisor may have ended, or be so busy that the pipe is full.
        with contextlib.suppress(OSError):
            os.write(descriptor, WAITING if is_waiting else ALIVE)


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    # Not sys.exit: an import may catch the exception, and library threads need not be awaited.
    os._exit(0)
