"""``make fuzz-http2``: ten million frames, legal and not, through sessions without sockets.

    python -m tests.fuzz.http2 [--frames N] [--seed N] [--quick] [--json]

A client's connection, its exchanges and a connection to an app run as in a queue-proxy, with transports that only note
what is written. Each run of frames is drawn from a seed, which is printed when something fails. Nothing may raise,
every connection ends, every exchange that began is finished, and memory after all of them is what it was after the
first tenth.
"""

import asyncio
import random
import resource
import sys
import time
from typing import Any, cast

from bench.parts.program import exit_code, options_of, show
from serving.core.settings.http import HttpSettings
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.http2.frames import PREFACE
from serving.net.proxy.http2.hpack_encoder import HeaderEncoder
from serving.net.proxy.http2.session import Session
from serving.net.proxy.http2.upstream import Http2Pool, UpstreamSession
from serving.net.proxy.server.listener import HttpServer

# One connection sees so many frames at most; few get as far.
FRAMES_PER_CONNECTION = 400
GROWTH_MAX = 1.1
_ADDRESS = ("127.0.0.1", 1)
_DATA, _HEADERS, _PRIORITY, _RST, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW, _CONTINUATION = range(10)
_REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/C"), (b":authority", b"h")]
_GRPC = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
_ODD = [(b"x", b"y" * 500), (b"content-length", b"5"), (b"connection", b"close"), (b":path", b"/"), (b"Bad", b"\n")]
_SETTINGS_OF = [
    (1, 0),
    (1, 4096),
    (2, 0),
    (2, 1),
    (3, 0),
    (3, 100),
    (4, 0),
    (4, 65_535),
    (4, 2**31),
    (5, 16_384),
    (5, 1),
]


class _Transport:
    """A socket that is full from time to time."""

    def __init__(self) -> None:
        self.written = 0
        self.closed = False

    def write(self, data: bytes) -> None:
        """Count it."""
        self.written += len(data)

    def close(self) -> None:
        """Note it."""
        self.closed = True

    abort = write_eof = close

    def get_write_buffer_size(self) -> int:
        """Nothing: bytes are only counted."""
        return 0

    def get_extra_info(self, name: str) -> None:
        """Nothing is known."""

    def can_write_eof(self) -> bool:
        """As a socket's can."""
        return True

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.closed


class _Apps(Http2Pool):
    """Connections to an app that is this script."""

    def __init__(self, settings: HttpSettings, *, now_s: float) -> None:
        super().__init__(settings, clock=lambda: now_s)
        self.links: list[UpstreamSession] = []

    async def _make(self, address: tuple[str, int]) -> UpstreamSession:
        link = UpstreamSession(self, address)
        link.connection_made(cast("asyncio.Transport", _Transport()))
        self._links.setdefault(address, []).append(link)
        self.links.append(link)
        return link


class _Handler:
    """Sends all to the app."""

    def __init__(self) -> None:
        self.begun = self.finished = 0

    def begin(self, exchange: Exchange) -> None:
        """Count it, and send it on."""
        self.begun += 1
        exchange.forward(_ADDRESS)

    def unreachable(self, exchange: Exchange, error: OSError) -> None:
        """Answer."""
        exchange.respond(502, str(error).encode())

    def lost(self, exchange: Exchange, reason: str) -> bool:
        """Give up."""
        del exchange, reason
        return False

    def overdue(self, exchange: Exchange) -> None:
        """Answer."""
        exchange.respond(503)

    def body_ready(self, exchange: Exchange) -> None:
        """Never called: this handler waits for no body."""
        raise NotImplementedError(exchange)

    def body_complete(self, exchange: Exchange) -> None:
        """Ignore it."""

    def reading_changed(self, exchange: Exchange) -> None:
        """Ignore it."""

    def finish(self, exchange: Exchange) -> None:
        """Count it."""
        assert exchange.outcome is not None
        self.finished += 1


class _Frames:
    """Draws the frames of one side; a part of ``oddity`` may break the protocol."""

    def __init__(self, dice: random.Random, *, is_client: bool, oddity: float) -> None:
        self._dice = dice
        self._is_client = is_client
        self._oddity = oddity
        self._encoder = HeaderEncoder()
        self._next_id = 1
        self._open: list[int] = []

    def draw(self) -> bytes:
        """One frame, or a head in two."""
        dice = self._dice
        share = dice.random()
        if self._is_odd():
            payload = dice.randbytes(dice.choice((0, 4, 5, 8, 20, 16_384, 16_385)))
            return _frame(dice.randrange(12), payload, flags=dice.randrange(256), stream_id=self._some_id())
        if share < 0.45 or not self._open:
            return self._head()
        if share < 0.8:
            stream_id = self._some_id()
            payload = dice.randbytes(dice.choice((1, 5, 100, 1000, 16_384 if share > 0.79 else 9)))
            is_last = dice.random() < 0.4
            if is_last and stream_id in self._open and self._is_client:
                self._open.remove(stream_id)
            return _frame(_DATA, payload, flags=int(is_last), stream_id=stream_id)
        return self._control()

    def _is_odd(self) -> bool:
        return self._dice.random() < self._oddity

    def _some_id(self) -> int:
        return self._dice.randrange(12) if self._is_odd() or not self._open else self._dice.choice(self._open)

    def _head(self) -> bytes:
        dice = self._dice
        stream_id = self._next_id
        if self._is_client or dice.random() < 0.5:
            self._next_id += 2
        fields = [*_REQUEST, *_GRPC]
        if not self._is_client:
            fields = [(b":status", dice.choice((b"200", b"200", b"103", b"503", b"204"))), _GRPC[0]]
        if self._is_odd():
            fields.insert(dice.randrange(len(fields) + 1), dice.choice(_ODD))
        if dice.random() < 0.1:
            fields.append((b"x-%d" % dice.randrange(9), b"%d" % dice.randrange(9)))
        block = self._encoder.pack(fields)
        if self._is_odd():
            block = dice.randbytes(dice.randrange(40))
        flags = dice.choice((4, 4, 5, 0))
        if self._is_client and not flags & 1:
            self._open = [*self._open[-20:], stream_id]
        elif not self._is_client:
            self._open = [*self._open[-3:], stream_id]
        rest = b"" if flags else _frame(_CONTINUATION, block[3:], flags=4, stream_id=stream_id)
        return _frame(_HEADERS, block if flags else block[:3], flags=flags, stream_id=stream_id) + rest

    def _control(self) -> bytes:
        dice = self._dice
        kind = dice.choice((_RST, _RST, _SETTINGS, _PING, _WINDOW, _WINDOW, _WINDOW, _PRIORITY, _GOAWAY))
        if kind == _SETTINGS:
            known = _SETTINGS_OF if self._is_odd() else _SETTINGS_OF[4:8]
            pairs = [dice.choice(known) for _ in range(dice.randrange(3))]
            return _frame(kind, b"".join([key.to_bytes(2) + value.to_bytes(4) for key, value in pairs]))
        if kind == _GOAWAY and dice.random() < 0.9:
            kind = _PING
        if kind in (_PING, _GOAWAY):
            return _frame(kind, bytes(8), flags=dice.choice((0, 1)))
        payload = dice.choice((1, 100, 65_535, 7)).to_bytes(5 if kind == _PRIORITY else 4)
        return _frame(kind, payload, stream_id=0 if kind == _WINDOW and dice.random() < 0.5 else self._some_id())


def _frame(kind: int, payload: bytes, *, flags: int = 0, stream_id: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream_id.to_bytes(4) + payload


class _Meeting:
    """A client's connection to a proxy, and the proxy's connections to an app."""

    def __init__(self, server: HttpServer, handler: _Handler) -> None:
        self.apps = _Apps(server.settings, now_s=server.clock())
        server.pool = self.apps
        self.handler = handler
        self.transport = _Transport()
        wiring = server._wiring(handler, "")
        peer = wiring.peer_at("127.0.0.1", is_tls=False)
        self.session = Session(server, wiring, cast("Any", self.transport), peer=peer, address="127.0.0.1")

    async def end(self) -> None:
        """Lose all connections; every started exchange must be finished."""
        self.session.connection_lost(None)
        for link in self.apps.links:
            link.connection_lost(None)
        self.apps.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert self.handler.begun == self.handler.finished, (self.handler.begun, self.handler.finished)
        assert not self.session.engine.streams


async def run_session(client: bytes, app: bytes, *, size: int) -> tuple[int, bool]:
    """Run a connection with the bytes of both sides in pieces; the number of its requests, and whether we closed it."""
    meeting = _Meeting(HttpServer(HttpSettings()), _Handler())
    for at in range(0, len(client), size):
        if not meeting.transport.closed:
            meeting.session.data_received(client[at : at + size])
    await asyncio.sleep(0)
    for link in meeting.apps.links:
        for at in range(0, len(app), size):
            link.data_received(app[at : at + size])
    results = meeting.handler.begun, meeting.transport.closed
    await meeting.end()
    return results


def draw_session(seed: int, *, frames: int) -> tuple[bytes, bytes]:
    """Legal bytes of a client, and of an app."""
    dice = random.Random(seed)
    client, app = (_Frames(dice, is_client=is_client, oddity=0.0) for is_client in (True, False))
    settings = _frame(_SETTINGS, b"")
    return (
        PREFACE + settings + b"".join(client.draw() for _ in range(frames)),
        settings + b"".join(app.draw() for _ in range(frames)),
    )


async def _one_connection(seed: int, server: HttpServer, handler: _Handler) -> int:
    """Run one client's connection; the frames that it and its apps have sent."""
    dice = random.Random(seed)
    meeting = _Meeting(server, handler)
    session, apps = meeting.session, meeting.apps
    session.data_received(PREFACE + _frame(_SETTINGS, b""))
    oddity = dice.choice((0.0, 0.002, 0.01, 0.2))
    of_client = _Frames(dice, is_client=True, oddity=oddity)
    of_app = _Frames(dice, is_client=False, oddity=oddity)
    greeted: set[int] = set()
    count = 0
    for _ in range(FRAMES_PER_CONNECTION):
        wire = of_client.draw()
        cut = dice.randrange(20) if dice.random() < 0.05 else len(wire)
        for piece in (wire[:cut], wire[cut:]):
            session.data_received(piece)
        if dice.random() < 0.01:
            session.pause_writing()
        elif dice.random() < 0.05:
            session.resume_writing()
        if not apps.links or dice.random() < 0.1:
            await asyncio.sleep(0)
        for link in apps.links[-1:]:
            response = of_app.draw() if id(link) in greeted else _frame(_SETTINGS, b"")
            greeted.add(id(link))
            link.data_received(response)
            count += 1
        count += 1
        if meeting.transport.closed:
            break
    await meeting.end()
    return count


async def fuzz(frames: int, *, seed: int) -> dict[str, float]:
    """Run so many frames; counts, and memory after a tenth and at the end."""
    server, handler = HttpServer(HttpSettings()), _Handler()
    sent = connections = 0
    warm_mib = 0.0
    began_s = time.monotonic()
    while sent < frames:
        try:
            sent += await _one_connection(seed + connections, server, handler)
        except BaseException:
            sys.stderr.write(f"seed {seed + connections}\n")
            raise
        connections += 1
        if not warm_mib and sent >= frames / 10:
            warm_mib = _used_mib()
    return {
        "frames": sent,
        "connections": connections,
        "requests": handler.begun,
        "warm_mib": warm_mib,
        "end_mib": _used_mib(),
        "seconds": time.monotonic() - began_s,
    }


def _used_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Run, print, and say by the exit code whether memory stayed."""
    options = options_of(__doc__, frames=10_000_000, seed=0, quick={"frames": 1000})
    entry = asyncio.run(fuzz(options.frames, seed=options.seed))
    show({key: round(value, 1) for key, value in entry.items()}, options)
    return exit_code(options, is_met=entry["end_mib"] <= entry["warm_mib"] * GROWTH_MAX)


if __name__ == "__main__":
    sys.exit(main())
