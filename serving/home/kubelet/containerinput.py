"""The standard input of a container whose manifest says ``stdin``: a FIFO, which ``kubectl attach -i`` writes to.

The container opens the FIFO for reading and writing, so that its input never ends between two clients. With ``stdinOnce`` it
opens it for reading only: this process keeps it open until the first client has detached, and then the input ends.
"""

import contextlib
import os
from pathlib import Path

import msgspec

from serving.home.kubelet.stdio import WaitingDescriptor
from serving.home.processes.orders import StartProcess
from serving.model.objects import Object

_MODE = 0o600


class ContainerInput:
    """One FIFO. ``ordered`` makes it before the container starts."""

    def __init__(self, path: Path, *, is_once: bool) -> None:
        self.path, self.is_once = path, is_once
        self._held = -1

    def __repr__(self) -> str:
        return f"ContainerInput({str(self.path)!r}, is_once={self.is_once})"

    def ordered(self, start: StartProcess, *, is_new: bool) -> StartProcess:
        """The order that starts the container with this input. Makes the FIFO of a new container. Raises ``OSError``."""
        if is_new:
            with contextlib.suppress(FileExistsError):
                os.mkfifo(self.path, _MODE)
            if self.is_once:
                self._held = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        return msgspec.structs.replace(start, stdin=str(self.path), keeps_stdin=not self.is_once)

    def attach(self) -> WaitingDescriptor:
        """The end that a client writes to; it closes it. Raises ``OSError`` when nothing reads any more."""
        return WaitingDescriptor(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    def detach(self) -> None:
        """A client has gone: the end of an input that is for one client."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def input_of(container: Object, folder: Path, *, name: str) -> ContainerInput | None:
    """The input of a container in the folder of its pod; None if its manifest wants none."""
    if not container.get("stdin"):
        return None
    return ContainerInput(folder / f".stdin.{name}", is_once=bool(container.get("stdinOnce")))
