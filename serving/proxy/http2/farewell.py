"""How a server's side ends a connection without losing a stream (RFC 9113, section 6.8).

The first GOAWAY names no stream: the client shall open no more. A PING after it comes back when the client has seen it; then
no stream is on its way any more, and the second GOAWAY names the last one that is served.
"""

import math

from serving.proxy.http2.engine import Http2Engine
from serving.proxy.http2.frames import ErrorCode

# A client anywhere on earth answers a ping in a third of it; the proxy does not wait longer for one that does not.
_PING_MAX_S = 1.0
_PING = b"farewell"
# What the first GOAWAY names: no stream is above it.
_NO_STREAM_ID = 2**31 - 1


class Farewell:
    """The end of one connection."""

    __slots__ = ("_engine", "due_s", "has_begun", "served_id_max")

    def __init__(self, engine: Http2Engine) -> None:
        self._engine = engine
        self.has_begun = False
        self.due_s = math.inf
        """Until when the ping's answer is waited for."""
        self.served_id_max = _NO_STREAM_ID
        """The last stream that is served."""

    @property
    def is_finished(self) -> bool:
        """Whether the second GOAWAY was sent."""
        return self.served_id_max < _NO_STREAM_ID

    def begin(self, now_s: float) -> bool:
        """Send the first GOAWAY; False if that was done before."""
        if self.has_begun:
            return False
        self.has_begun = True
        self._engine.send_goaway(_NO_STREAM_ID, ErrorCode.NO_ERROR)
        self._engine.send_ping(_PING)
        self.due_s = now_s + _PING_MAX_S
        return True

    def is_answered_by(self, ping_data: bytes) -> bool:
        """Whether an answer to a ping belongs to the first GOAWAY."""
        return self.has_begun and ping_data == _PING

    def finish(self, last_stream_id: int) -> None:
        """Send the second GOAWAY."""
        self.due_s = math.inf
        self.served_id_max = last_stream_id
        self._engine.send_goaway(last_stream_id, ErrorCode.NO_ERROR)
