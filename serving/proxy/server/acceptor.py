"""Accept connections from a socket on which other processes listen too, one in each turn of the loop.

The event loop's own server accepts all waiting connections at once, so that one process would get all clients that connect
together. Here each process accepts one, serves what is due, and accepts the next.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

# For errors such as too few descriptors.
_PAUSE_S = 0.1


class Acceptor:
    """Accepts from ``listening``, which does not block, until it is closed; each connection has a protocol of ``factory``."""

    def __init__(self, listening: socket.socket, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._factory = factory
        self._beginning: set[asyncio.Task[object]] = set()
        self._paused: asyncio.TimerHandle | None = None
        self._resume()

    def __repr__(self) -> str:
        return f"Acceptor({self._listening!r}{', paused' if self._paused else ''})"

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """As a server's: the socket that it accepts from."""
        return (self._listening,)

    def close(self) -> None:
        """Accept no more; other processes go on."""
        if self._paused is not None:
            self._paused.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            made, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # Another process was faster, or the client has left.
            return
        except OSError:
            self._loop.remove_reader(self._listening)
            self._paused = self._loop.call_later(_PAUSE_S, self._resume)
            return
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._begin(made))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, made: socket.socket) -> None:
        # A client that has left already is not an error.
        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(self._factory, made)
