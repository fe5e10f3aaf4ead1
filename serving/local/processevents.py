"""The pipe through which the template learns what becomes of the processes of pods. Standard library only.

The supervisor makes it and holds both ends, so that no line is lost while a new template starts. The supervisor, which is
the parent of these processes, writes their exit codes: ``{"pid": 7, "exit": 0}``. Queue-proxies write their readiness:
``{"pid": 8, "ready": true}``. Each line fits into one atomic write (pipe(7), PIPE_BUF).
"""

import json
import os

__all__ = ["ProcessEvents"]


class ProcessEvents:
    """The supervisor's side of the pipe. ``descriptors`` are the read end and the write end, which the template inherits."""

    def __init__(self) -> None:
        self.descriptors = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._unsent: list[bytes] = []

    @property
    def has_unsent(self) -> bool:
        """Whether the pipe was full, so that ``send`` has to be called again."""
        return bool(self._unsent)

    def report_exit(self, pid: int, exit_code: int) -> None:
        """Write the exit code of a process that has ended; minus the signal's number if one ended it."""
        self._unsent.append(json.dumps({"pid": pid, "exit": exit_code}).encode() + b"\n")
        self.send()

    def send(self) -> None:
        """Write what the pipe has room for."""
        try:
            while self._unsent:
                os.write(self.descriptors[1], self._unsent[0])
                del self._unsent[0]
        except BlockingIOError:
            return
