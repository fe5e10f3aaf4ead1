"""Reports to systemd, by sd_notify(3): started, alive, and stopping. Standard library only: the supervisor uses it."""

import contextlib
import os
import socket
from collections.abc import Mapping, MutableMapping

_USEC = 1e6
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def pop_variables(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Remove and return systemd's variables, because no child may notify systemd for the service."""
    return {name: environment.pop(name) for name in _VARIABLES if name in environment}


class SystemdNotifier:
    """Sends states to systemd's socket in ``variables``. Without a socket, it sends nothing.

    ``period_s`` is how often ``report_alive`` must be called: half of the watchdog's time; None without a watchdog.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._address = variables.get("NOTIFY_SOCKET", "")
        watchdog = variables.get("WATCHDOG_USEC", "")
        is_ours = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.period_s = int(watchdog) / _USEC / 2 if watchdog.isdecimal() and int(watchdog) and is_ours else None

    @property
    def is_on(self) -> bool:
        """Whether systemd expects reports."""
        return bool(self._address)

    def report_started(self) -> None:
        """Report that the system serves."""
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS=serving")

    def report_alive(self) -> None:
        """Reset the watchdog."""
        self._send("WATCHDOG=1")

    def report_stopping(self) -> None:
        """Report that the shutdown has begun; pods finish their requests."""
        self._send("STOPPING=1\nSTATUS=ending; pods finish their requests")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        # A leading "@" is an abstract socket. Without systemd the service continues.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier,
        ):
            notifier.sendto(state.encode(), address)
