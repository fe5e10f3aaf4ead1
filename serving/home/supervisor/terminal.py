"""The terminal that a process was started from: SIGHUP reports its end, or is sent by hand to ask for something else.

Standard library only: the supervisor uses it.
"""

import os
import signal


class ControllingTerminal:
    """The terminal of this process at its start, if it had one."""

    def __init__(self) -> None:
        self._was_there = _has_terminal()
        self.is_hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        """Whether this process was started to outlive its terminal (nohup)."""

    @property
    def is_lost(self) -> bool:
        """Whether it was closed: the kernel then takes it from all processes of its session (tty_ioctl(4), vhangup(2))."""
        return self._was_there and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
