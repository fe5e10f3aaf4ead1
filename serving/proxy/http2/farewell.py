"""How a server's side ends a connection without losing a stream (RFC 9113, section 6.8).

The first GOAWAY names no stream: the client shall open no more. A PING after it comes back when the client has seen it; then
no stream is on its way any more, and the second GOAWAY names the last one that is served.
"""

import math
from collections.abc import Callable

from h2.connection import H2Connection

__all__ = ["Farewell"]

# A client anywhere on earth answers a ping in a third of it; the proxy does not wait longer for one that does not.
_PING_MAX_S = 1.0
_PING = b"farewell"
# What the first GOAWAY names: no stream is above it.
_NO_STREAM_ID = 2**31 - 1


class Farewell:
    """The end of one connection. ``write_goaway`` writes a frame with that last stream."""

    __slots__ = ("_h2", "_write_goaway", "due_s", "has_begun", "served_id_max")

    def __init__(self, h2: H2Connection, write_goaway: Callable[[int], None]) -> None:
        self._h2 = h2
        self._write_goaway = write_goaway
        self.has_begun = False
        self.due_s = math.inf
        """Until when the ping's answer is waited for."""
        self.served_id_max = _NO_STREAM_ID
        """The last stream that is served."""

    @property
    def is_finished(self) -> bool:
        """Whether the second GOAWAY was written."""
        return self.served_id_max < _NO_STREAM_ID

    def begin(self, now_s: float) -> bool:
        """Write the first GOAWAY; False if that was done before."""
        if self.has_begun:
            return False
        self.has_begun = True
        self._h2.ping(_PING)
        self._write_goaway(_NO_STREAM_ID)
        self.due_s = now_s + _PING_MAX_S
        return True

    def is_answered_by(self, ping_data: bytes) -> bool:
        """Whether an answer to a ping belongs to the first GOAWAY."""
        return self.has_begun and ping_data == _PING

    def finish(self, last_stream_id: int) -> None:
        """Write the second GOAWAY."""
        self.due_s = math.inf
        self.served_id_max = last_stream_id
        self._write_goaway(last_stream_id)
