"""Streams between this process and a command in a container: FIFOs or a terminal, and the container's ``stdin``.

Both ends are paths, so that the template, which starts the command, can open its end. This process keeps both ends of
each FIFO open until the command has opened its end, because an early reader would immediately read end of file.
"""

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import tempfile
import termios
from collections.abc import AsyncGenerator, Collection
from pathlib import Path

import msgspec

from serving.core.model.objects import Object
from serving.home.apiserver.channels import STDERR, STDOUT
from serving.home.processes.orders import StartProcess
from serving.home.trees import discard_tree
from serving.net.aio.supervise import TaskOwner

_PIECE_BYTES = 65536
_MODE = 0o600
# The byte that ends the input of a terminal.
_END_OF_INPUT = b"\x04"


class WaitingDescriptor:
    """A non-blocking file descriptor with awaitable ``read`` and ``write``."""

    def __init__(self, number: int) -> None:
        os.set_blocking(number, False)
        self._number = number
        self._waits: set[asyncio.Future[None]] = set()

    @property
    def number(self) -> int:
        """The descriptor; -1 after ``close``."""
        return self._number

    async def read(self) -> bytes:
        """The next piece; b"" at the end, and after ``close``."""
        while self._number >= 0:
            try:
                return os.read(self._number, _PIECE_BYTES)
            except BlockingIOError:
                await self._ready(for_reading=True)
            except OSError:
                # A terminal that its last user has closed.
                return b""
        return b""

    async def write(self, data: bytes) -> None:
        """Write all data. If the other end is closed, drop the data."""
        while data and self._number >= 0:
            try:
                data = data[os.write(self._number, data) :]
            except BlockingIOError:
                await self._ready(for_reading=False)
            except OSError:
                return

    async def _ready(self, *, for_reading: bool) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        add, remove = (loop.add_reader, loop.remove_reader) if for_reading else (loop.add_writer, loop.remove_writer)
        add(self._number, _settle, ready)
        self._waits.add(ready)
        try:
            await ready
        finally:
            self._waits.discard(ready)
            if self._number >= 0:
                remove(self._number)

    def close(self) -> None:
        """Close the descriptor, and end waiting reads and writes. Repeated calls do nothing."""
        if self._number < 0:
            return
        if self._waits:
            # An event loop that still watches a closed number would not report the next descriptor with this number.
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._number)
            loop.remove_writer(self._number)
        for ready in self._waits:
            _settle(ready)
        os.close(self._number)
        self._number = -1


def _settle(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


class Stdio:
    """The streams of one command. ``stdin``, ``stdout`` and ``stderr`` are paths that the command opens, or ""."""

    def __init__(self, *, has_stdin: bool, has_terminal: bool, streams: Collection[int]) -> None:
        self.has_terminal = has_terminal
        self.stdin = self.stdout = self.stderr = ""
        self._folder: Path | None = None
        self._descriptors: list[WaitingDescriptor] = []
        self._output: dict[int, WaitingDescriptor] = {}
        self._input: WaitingDescriptor | None = None
        if has_terminal:
            self._open_terminal(has_stdin=has_stdin)
        else:
            self._open_fifos(has_stdin=has_stdin, streams=streams)

    def _open_terminal(self, *, has_stdin: bool) -> None:
        ours, theirs = pty.openpty()
        self.stdin = self.stdout = self.stderr = os.ttyname(theirs)
        self._descriptors = [WaitingDescriptor(theirs)]
        self._output = {STDOUT: WaitingDescriptor(ours)}
        self._input = self._output[STDOUT] if has_stdin else None

    def _open_fifos(self, *, has_stdin: bool, streams: Collection[int]) -> None:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="serving-exec-"))
        names = ["0"] if has_stdin else []
        for name in (*names, *map(str, sorted(streams))):
            os.mkfifo(folder / name, _MODE)
            reader = WaitingDescriptor(os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            writer = WaitingDescriptor(os.open(folder / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            if name == "0":
                self._input = writer
                self._descriptors.append(reader)
            else:
                self._output[int(name)] = reader
                self._descriptors.append(writer)
        self.stdin = str(folder / "0") if has_stdin else ""
        self.stdout = str(folder / "1") if STDOUT in streams else os.devnull
        self.stderr = str(folder / "2") if STDERR in streams else os.devnull

    def release(self) -> None:
        """Close the command's ends in this process, after the command has opened them."""
        for end in self._descriptors:
            end.close()
        self._descriptors = []

    async def output(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield the output of all streams as it arrives, each piece with its channel, until all have ended."""
        pieces: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(maxsize=1)

        async def read_stream(channel: int, descriptor: WaitingDescriptor) -> None:
            try:
                while piece := await descriptor.read():
                    await pieces.put((channel, piece))
            except Exception:
                await pieces.put((channel, b""))
                raise
            await pieces.put((channel, b""))

        async with TaskOwner() as owner:
            tasks = [
                owner.start(read_stream(channel, descriptor), name="exec stream", is_awaited=True)
                for channel, descriptor in self._output.items()
            ]
            remaining = len(tasks)
            while remaining:
                channel, piece = await pieces.get()
                if piece:
                    yield channel, piece
                else:
                    remaining -= 1
            await asyncio.gather(*tasks)

    async def write(self, data: bytes) -> None:
        """Write to the command's input."""
        if self._input is not None:
            await self._input.write(data)

    def end_input(self) -> None:
        """End the command's input."""
        if self._input is None:
            return
        if self.has_terminal:
            with contextlib.suppress(OSError):
                os.write(self._input.number, _END_OF_INPUT)
        else:
            self._input.close()
        self._input = None

    def resize(self, *, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        if self.has_terminal and self._output:
            with contextlib.suppress(OSError, struct.error):
                fcntl.ioctl(self._output[STDOUT].number, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        """Close all streams, and remove their folder."""
        self.release()
        for end in (*self._output.values(), *([self._input] if self._input else [])):
            end.close()
        if self._folder is not None:
            discard_tree(self._folder)


class ContainerInput:
    """The standard input of a container, a FIFO. ``ordered`` creates it before the container starts."""

    def __init__(self, path: Path, *, is_once: bool) -> None:
        self.path = path
        self.is_once = is_once
        self._descriptor = -1

    def ordered(self, start: StartProcess, *, is_new: bool) -> StartProcess:
        """The start order with this input. Creates the FIFO of a new container. Raises ``OSError``."""
        if is_new:
            with contextlib.suppress(FileExistsError):
                os.mkfifo(self.path, _MODE)
            if self.is_once:
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        return msgspec.structs.replace(start, stdin=str(self.path), keeps_stdin=not self.is_once)

    def attach(self) -> WaitingDescriptor:
        """Open a client's write end; the client closes it. Raises ``OSError`` without a reader."""
        return WaitingDescriptor(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))

    def detach(self) -> None:
        """Record that a client has disconnected. With ``stdinOnce``, this ends the container's input."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def input_of(container: Object, folder: Path, *, name: str) -> ContainerInput | None:
    """The standard input of a container, in the folder of its pod; None if its manifest does not set ``stdin``."""
    if not container.get("stdin"):
        return None
    return ContainerInput(folder / f".stdin.{name}", is_once=bool(container.get("stdinOnce")))
