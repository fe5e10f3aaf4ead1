"""Sends frames in batches: one write per connection for all effects of one read.

One read of one connection may cause frames on many connections. Each of these writes once, at the end of that read.
Frames sent outside of a read are written at the end of the loop iteration.
"""

import asyncio
from collections.abc import Callable

from serving.net.aio.turns import FairTurns
from serving.net.proxy.http2.engine import Http2Engine


class FrameSender(asyncio.Protocol):
    """The sending half of a connection. A subclass must set the transport and the engine before the first frame."""

    engine: Http2Engine

    _transport: asyncio.Transport
    on_full: Callable[[bool], None] | None = None
    """Called when the transport is full, and when it accepts bytes again."""
    _is_sending = False
    _has_yielded = False
    # Bytes passed to the transport so far.
    _sent_bytes = 0

    def pause_writing(self) -> None:
        """Pause streams: the transport's buffer is full."""
        self.engine.is_full = True
        if self.on_full is not None:
            self.on_full(True)

    def resume_writing(self) -> None:
        """Resume streams: the transport's buffer has drained."""
        self.engine.is_full = False
        if self.on_full is not None:
            self.on_full(False)
        self.engine.flush()
        self.send()

    def send(self) -> None:
        """Schedule a write of pending frames, at the end of this read or event loop iteration."""
        if not self._is_sending:
            self._is_sending = True
            if _read.is_running:
                _read.senders.append(self)
            else:
                asyncio.get_running_loop().call_soon(self.write_now)

    def write_now(self) -> None:
        """Write all pending frames."""
        self._is_sending = False
        out = self.engine.out
        if out:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            if not self._transport.is_closing():
                self._sent_bytes += len(data)
                self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and write all resulting frames."""
        read = _read
        if read.is_running:
            # Called explicitly, from within another read.
            self.parse(data)
            return
        read.is_running = True
        try:
            self.parse(data)
        finally:
            read.is_running = False
            senders = read.senders
            for sender in senders:
                sender.write_now()
            senders.clear()

    def yield_turn(self, turns: FairTurns) -> None:
        """Let other connections run before reading on, because this peer causes much work with few bytes."""
        if not self._has_yielded:
            self._has_yielded = True
            if not self._transport.is_closing():
                self._transport.pause_reading()
            turns.defer(self._continue)

    def _continue(self) -> None:
        self._has_yielded = False
        if self.engine.has_more:
            self.data_received(b"")
        if not self._has_yielded and not self._transport.is_closing():
            self._transport.resume_reading()

    def parse(self, data: bytes) -> None:
        """Parse received bytes."""
        raise NotImplementedError


class _PresentRead:
    """The read that is being processed now, on any connection.

    The state is in an object and not in class attributes of ``FrameSender``, because each change of a class invalidates
    the interpreter's method caches.
    """

    __slots__ = ("is_running", "senders")

    def __init__(self) -> None:
        self.is_running = False
        self.senders: list[FrameSender] = []
        """Connections with frames to write after the read."""


_read = _PresentRead()
