"""An app for the benches: ``/slow`` answers after 100 ms, anything else once its body has been read.

    python bench/peers/backend.py PORT

One protocol over uvloop, so that it can hold a thousand requests; it believes Content-Length and reads no chunks.
"""

import asyncio
import sys
from typing import cast

import uvloop

_SLOW_S = 0.1
_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"


class _App(asyncio.Protocol):
    def __init__(self) -> None:
        self._left = 0
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._left:
            self._left -= len(data)
            if not self._left:
                self._transport.write(_RESPONSE)
            return
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        self._buffer = b""
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        self._left = int(lengths[0].split(b":")[1]) - len(rest) if lengths else 0
        if head.startswith(b"GET /slow"):
            asyncio.get_running_loop().call_later(_SLOW_S, self._transport.write, _RESPONSE)
        elif not self._left:
            self._transport.write(_RESPONSE)


async def main(port: int) -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(_App, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1])))
