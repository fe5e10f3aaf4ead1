"""A proxy without sockets or event loop: tests feed bytes, and read both ends."""

import asyncio
import math
from collections.abc import Sequence

from serving.core.settings.http import HttpSettings
from serving.net.proxy.forwarding.client import Member, Refusals
from serving.net.proxy.forwarding.exchange import Exchange, Wiring
from serving.net.proxy.forwarding.pace import ResponseBuffers, body_pace, read_pace
from serving.net.proxy.http1.pool import Pool
from serving.net.proxy.http1.upstream import Upstream
from serving.net.proxy.server.connection import Connection

APP = ("127.0.0.1", 8080)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that records all writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 5), "socket": self})
        self.written = b""
        self.is_ended = False
        self.is_closed = False
        self.is_reading_paused = False
        self.unread_bytes = 0

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        """Record the socket options that the connection sets before a reset."""

    def fileno(self) -> int:
        """As a socket that is closed."""
        return -1

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.is_ended = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False


class Bench:
    """A client connection, and an idle upstream connection for each request."""

    def __init__(self, settings: HttpSettings | None = None) -> None:
        self.now_s = 100.0
        self.settings = settings or HttpSettings()
        self.draining = False
        self.finishing = False
        self.sweep_s = math.inf
        self.refusals = Refusals()
        self.tunnel_count = 0
        self.pool = Pool(self.settings, clock=lambda: self.now_s)
        self.buffers = ResponseBuffers.of(self.settings)
        wiring = Wiring(
            handler=self,
            pool=self.pool,
            stream_pool=lambda: self.pool,
            clock=lambda: self.now_s,
            listener="",
            buffered_bytes_max=self.settings.body_held_bytes_max,
            tunnel_limits=(1000.0, 1000.0),
            body_pace=body_pace(self.settings),
            read_pace=read_pace(self.settings),
            buffers=self.buffers,
        )
        self.turns = self.pool.turns
        self.client = Wire()
        self.upstreams: list[Upstream] = []
        self.apps: list[Wire] = []
        self.exchanges: list[Exchange] = []
        self.finished: list[Exchange] = []
        self.connection = Connection(self, wiring)
        self.connection.connection_made(self.client)

    # The registry's side.

    def opened(self, connection: Member, address: str) -> str | None:
        del connection, address
        return None

    def closed(self, connection: Member, address: str) -> None:
        """Connections are not counted."""

    def wake_by(self, due_s: float) -> None:
        assert due_s > 0

    # The handler's side.

    def count_tunnel(self, change: int) -> None:
        self.tunnel_count += change

    def begin(self, exchange: Exchange) -> None:
        upstream, app = Upstream(self.pool, APP), Wire()
        upstream.connection_made(app)
        self.pool.release(upstream)
        self.upstreams.append(upstream)
        self.apps.append(app)
        self.exchanges.append(exchange)
        exchange.forward(APP)

    def unreachable(self, exchange: Exchange, error: OSError) -> None:
        raise NotImplementedError(exchange, error)

    def lost(self, exchange: Exchange, reason: str) -> bool:
        raise NotImplementedError(exchange, reason)

    def overdue(self, exchange: Exchange) -> None:
        raise NotImplementedError(exchange)

    def body_ready(self, exchange: Exchange) -> None:
        raise NotImplementedError(exchange)

    def body_complete(self, exchange: Exchange) -> None:
        pass

    def reading_changed(self, exchange: Exchange) -> None:
        pass

    def finish(self, exchange: Exchange) -> None:
        self.finished.append(exchange)

    # What a test does.

    def send(self, pieces: Sequence[bytes]) -> None:
        """Feed pieces, and respond to each complete request."""
        for piece in pieces:
            if self.client.is_ended or self.client.is_closed:
                return
            if piece:
                self.connection.data_received(piece)
            self.respond_to_all()

    def respond_to_all(self) -> None:
        while self.exchanges and self.exchanges[-1].outcome is None and self.exchanges[-1].body.is_complete:
            self.upstreams[-1].data_received(OK)

    def seen(self) -> list[tuple[bytes, bytes]]:
        """The complete requests that upstreams received: head and payload."""
        return [pair for app in self.apps for pair in messages(app.written)]


def messages(wire: bytes) -> list[tuple[bytes, bytes]]:
    """Complete messages of a connection, by a naive parser: head, and payload with what follows its chunks."""
    results: list[tuple[bytes, bytes]] = []
    while (end := wire.find(b"\r\n\r\n")) >= 0:
        head, wire = wire[:end], wire[end + 4 :]
        lower = head.lower()
        payload = b""
        if b"\r\ntransfer-encoding: chunked" in lower:
            while True:
                line = wire.find(b"\r\n")
                if line < 0:
                    return results
                size = int(wire[:line], 16)
                if not size:
                    stop = 1 if wire.startswith(b"0\r\n\r\n") else wire.find(b"\r\n\r\n")
                    if stop < 0:
                        return results
                    payload += wire[line:stop]
                    wire = wire[stop + 4 :]
                    break
                if len(wire) < line + 2 + size + 2:
                    return results
                payload += wire[line + 2 : line + 2 + size]
                wire = wire[line + 2 + size + 2 :]
        elif b"\r\ncontent-length: " in lower:
            length = int(lower.split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])
            if len(wire) < length:
                return results
            payload, wire = wire[:length], wire[length:]
        results.append((head, payload))
    return results
