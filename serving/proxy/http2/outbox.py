"""Flow control of one stream in the sending direction: bytes that may not be sent yet.

They wait here while the peer's window is closed or its socket is full. ``is_full`` pauses the producer, so that an outbox
holds at most its limit and the one piece that was on its way.
"""

from h2.connection import H2Connection
from h2.exceptions import ProtocolError

from serving.proxy.http2.heads import Fields

__all__ = ["StreamOutbox"]

_HELD_BYTES_MAX = 64 * 1024


class StreamOutbox:
    """The body of one message on its way out. ``is_done`` once its end has been sent."""

    __slots__ = ("_data", "_ended", "_h2", "_stream_id", "_trailers", "is_done")

    def __init__(self, h2: H2Connection, stream_id: int) -> None:
        self._h2 = h2
        self._stream_id = stream_id
        self._data = bytearray()
        self._ended = False
        self._trailers: Fields = ()
        self.is_done = False

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be put in for a while."""
        return len(self._data) >= _HELD_BYTES_MAX

    @property
    def is_ended(self) -> bool:
        """Whether the end has been put in."""
        return self._ended

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to send."""
        return not self.is_done and (self._ended or bool(self._data))

    def put(self, payload: bytes, *, done: bool, trailers: Fields = ()) -> None:
        """Queue a part of the body; ``done`` ends it."""
        self._data += payload
        self._ended = self._ended or done
        self._trailers = trailers or self._trailers

    def flush(self) -> bool:
        """Give the connection as much as the peer takes; whether it took anything."""
        if self.is_done:
            return False
        before = len(self._data)
        try:
            self._flush()
        except ProtocolError:
            # The peer has reset the stream, and what says so is still on its way to us.
            self.is_done = True
        return self.is_done or len(self._data) < before

    def _flush(self) -> None:
        h2, stream_id, data = self._h2, self._stream_id, self._data
        while data:
            count = min(len(data), h2.local_flow_control_window(stream_id), h2.max_outbound_frame_size)
            if count <= 0:
                return
            is_last = self._ended and count == len(data) and not self._trailers
            h2.send_data(stream_id, bytes(data[:count]), end_stream=is_last)
            del data[:count]
            if is_last:
                self.is_done = True
        if self._ended and not self.is_done:
            self.is_done = True
            if self._trailers:
                h2.send_headers(stream_id, self._trailers, end_stream=True)
            else:
                h2.end_stream(stream_id)
