"""How frames leave a connection, whichever side of it we are: together once a turn, and streams wait while it is full."""

import asyncio
from collections.abc import Mapping
from typing import Any

from h2.connection import H2Connection
from hyperframe.frame import GoAwayFrame

__all__ = ["FrameSender"]


class FrameSender(asyncio.Protocol):
    """The part of a connection that writes. Who inherits has a transport and streams before anything is sent."""

    h2: H2Connection
    is_full: bool
    """Whether the other end takes nothing for now."""

    _transport: asyncio.Transport
    _streams: Mapping[int, Any]
    """All streams by number; each has ``is_waiting`` and ``flush``."""
    _is_sending = False

    def pause_writing(self) -> None:
        """What was sent is not taken yet."""
        self.is_full = True

    def resume_writing(self) -> None:
        """What was sent has been taken."""
        self.is_full = False
        self._flush_all()
        self.send()

    def send(self) -> None:
        """Write the frames that are there, with all others of this turn of the loop: a write costs as much as a frame."""
        if not self._is_sending:
            self._is_sending = True
            asyncio.get_running_loop().call_soon(self._write)

    def write_goaway(self, last_stream_id: int) -> None:
        """Write a GOAWAY by hand: the library takes a connection for closed after one."""
        self._write()
        if not self._transport.is_closing():
            self._transport.write(GoAwayFrame(0, last_stream_id=last_stream_id).serialize())

    def _write(self) -> None:
        self._is_sending = False
        data = self.h2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _flush_all(self) -> None:
        for stream in [stream for stream in self._streams.values() if stream.is_waiting]:
            stream.flush()
