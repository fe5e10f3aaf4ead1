"""A TCP gate before an API server: for its clients, closing the gate is the same as killing the server."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

_PIECE_BYTES = 65536


class Gate:
    """Open at first. ``shut`` cuts connections and refuses new ones; the port stays the same."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        # Bound, but never listening: the port stays reserved and refuses connections while the gate is shut.
        self._place = _bound(0)
        self.port: int = self._place.getsockname()[1]

    async def open(self) -> None:
        """Let connections through."""
        self._server = await asyncio.start_server(self._pass, sock=_bound(self.port))

    async def shut(self) -> None:
        """Cut every connection, and refuse new ones."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection(*self._target)
                self._writers.add(back)
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(_pump(reader, back))
                        group.create_task(_pump(there, writer))
                finally:
                    self._writers.discard(back)
                    back.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def close(self) -> None:
        """Leave the port to others."""
        self._place.close()


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await source.read(_PIECE_BYTES):
            sink.write(piece)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()


@contextlib.asynccontextmanager
async def opened(host: str, port: int) -> AsyncIterator[Gate]:
    """A gate before an address."""
    gate = Gate(host, port)
    await gate.open()
    try:
        yield gate
    finally:
        await gate.shut()
        gate.close()
