"""A forwarder of bytes on uvloop: the least that a proxy here can cost.

python bench/peers/forwarder.py LISTEN_PORT PORT
"""

import asyncio
import sys
from typing import Any

import uvloop


class _Side(asyncio.Protocol):
    """One side of a connection; what comes is written to the other."""

    def __init__(self, port: int, other: "_Side | None" = None) -> None:
        self._port = port
        self.other = other
        self.transport: Any = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect the other side."""
        self.transport = transport
        if self.other is None:
            self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, other = await loop.create_connection(lambda: _Side(self._port, self), "127.0.0.1", self._port)
        self.other = other
        if self._early:
            other.transport.write(b"".join(self._early))

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        if self.other is None:
            self._early.append(data)
        else:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        """Read no more of the other side."""
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read the other side again."""
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other side."""
        del exc
        if self.other is not None:
            self.other.transport.close()


async def main(listen: int, port: int) -> None:
    """Forward until killed."""
    server = await asyncio.get_running_loop().create_server(lambda: _Side(port), "127.0.0.1", listen, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(main(int(sys.argv[1]), int(sys.argv[2])))
