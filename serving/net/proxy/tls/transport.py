"""A TLS connection as a transport: the common part of both ends.

For the loop the object is a protocol; for the protocol behind it, a transport. This module decides when to read, write
and close after the handshake. ``records.py`` handles the records, and the subclass handles the handshake.
"""

import asyncio
import ssl
from typing import Any, cast

from serving.net.proxy.http1.rendering import IDENTITY
from serving.net.proxy.tls.records import Records


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """One end of a TLS connection.

    A subclass sets ``_outer`` and ``_records``, performs the handshake, and then sets ``_app``.
    """

    __slots__ = (
        "_app",
        "_closing",
        "_eof_passed",
        "_identity",
        "_is_truncated",
        "_outer",
        "_outer_ended",
        "_paused",
        "_records",
        "_write_ended",
    )

    def __init__(self) -> None:
        super().__init__()
        self._outer: asyncio.Transport
        self._records: Records
        # None until the handshake has ended.
        self._app: asyncio.Protocol | None = None
        self._paused = False
        self._closing = False
        self._write_ended = False
        self._outer_ended = False
        self._eof_passed = False
        self._is_truncated = False
        self._identity = ""

    # Called by the loop.

    def eof_received(self) -> bool:
        """Return True to keep the sending direction open until all received data is processed.

        Returns False before there is a protocol.
        """
        self._outer_ended = True
        if self._app is None:
            return False
        self._pass_on()
        return True

    def pause_writing(self) -> None:
        """Pause the protocol, because the peer reads too slowly."""
        if self._app is not None:
            self._app.pause_writing()

    def resume_writing(self) -> None:
        """Resume the protocol."""
        if self._app is not None:
            self._app.resume_writing()

    # The transport's methods for its protocol.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if not data or self._write_ended or self._closing:
            return
        self._outer.write(self._records.write(data))

    def write_eof(self) -> None:
        """Close the sending direction; the other stays open."""
        if not self._write_ended and not self._closing:
            self._send_close_notify()
            self._outer.write_eof()

    def close(self) -> None:
        """Send pending data and close_notify, then close."""
        if not self._closing:
            self._closing = True
            self._send_close_notify()
            self._outer.close()

    def truncate(self) -> None:
        """Close without close_notify from now on, so that the peer can detect a truncated response."""
        self._is_truncated = True

    def abort(self) -> None:
        """Close immediately without close_notify, so that a truncated response does not look complete."""
        self._closing = True
        self._outer.abort()

    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self._closing or self._outer.is_closing()

    def pause_reading(self) -> None:
        """Stop reading from the peer."""
        if not self._paused:
            self._paused = True
            if not self._outer_ended:
                self._outer.pause_reading()

    def resume_reading(self) -> None:
        """Read from the peer again."""
        if self._paused:
            self._paused = False
            if not self._outer_ended:
                self._outer.resume_reading()
            if self._records.has_more or self._outer_ended:
                # Later, because the caller is in the middle of its work.
                asyncio.get_running_loop().call_soon(self._pass_on)

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - the interface's
        """Return transport information: about TLS from this layer, any other from the outer transport."""
        if name == "ssl_object":
            return self._records.ssl
        if name == IDENTITY:
            return self._identity
        return self._records.ssl.context if name == "sslcontext" else self._outer.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol behind TLS."""
        self._app = cast("asyncio.Protocol", protocol)

    def get_write_buffer_size(self) -> int:
        """The number of encrypted but unsent bytes."""
        return self._outer.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits for ``pause_writing`` and ``resume_writing``."""
        self._outer.set_write_buffer_limits(high, low)

    # Internals.

    def _pass_on(self) -> None:
        """Pass decrypted bytes to the protocol while it reads, then the end of the stream if that has arrived."""
        records = self._records
        while not (self._paused or self._closing or self._eof_passed):
            try:
                data = records.read()
            except ssl.SSLError as error:
                self._break(error)
                break
            if data:
                assert self._app is not None
                self._app.data_received(data)
            elif data is not None or self._outer_ended:
                self._report_eof()
            if data is None or not (records.has_more or self._outer_ended):
                break
        if records.outgoing.pending and not self._closing:
            # A key update needs a response.
            self._flush()

    def _break(self, error: ssl.SSLError) -> None:
        """Abort a connection that receives invalid TLS data. Ignore such data after sending close_notify."""
        del error
        if not self._write_ended:
            self.abort()

    def _report_eof(self) -> None:
        assert self._app is not None
        self._eof_passed = True
        if not self._app.eof_received():
            self.close()

    def _send_close_notify(self) -> None:
        if not self._write_ended:
            self._write_ended = True
            if not self._is_truncated and (close_notify := self._records.close_notify()):
                self._outer.write(close_notify)

    def _flush(self) -> None:
        if self._records.outgoing.pending:
            self._outer.write(self._records.outgoing.read())
