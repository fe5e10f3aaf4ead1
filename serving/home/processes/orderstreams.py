"""Open the streams that an order names: paths of FIFOs or of a terminal, else nothing to read and the log to write to."""

import contextlib
import os

from serving.home.processes.orders import StartProcess

_LOG_MODE = 0o600


def open_streams(order: StartProcess) -> tuple[int, int, int]:
    """Descriptors for stdin, stdout and stderr, which the caller closes. Raises ``OSError``.

    The other end of a stream must be open already: the template never waits for it.
    """
    outputs = (order.stdout, order.stderr)
    log = os.open(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _LOG_MODE)
    with contextlib.ExitStack() as opened:
        opened.callback(os.close, log)
        found = []
        reading = os.O_RDWR if order.keeps_stdin else os.O_RDONLY
        for path, flags in ((order.stdin or os.devnull, reading), *((one, os.O_WRONLY) for one in outputs)):
            found.append(_opened(path, flags) if path else os.dup(log))
            opened.callback(os.close, found[-1])
        opened.pop_all()
    os.close(log)
    stdin, stdout, stderr = found
    return stdin, stdout, stderr


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    os.set_blocking(descriptor, True)
    return descriptor
