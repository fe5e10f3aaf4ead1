"""Encrypts and decrypts the bytes of one TLS connection, without I/O.

The standard library does the cryptography, on two buffers in memory. This module adds three rules: several records form
one piece, the client's close_notify is reported after the last byte before it, and our own close_notify does not
discard received bytes that are unread.
"""

import contextlib
import ssl

HANDSHAKE_RECORD = 0x16
"""The first byte of a TLS connection."""

# Bytes forwarded at a time. A record has 16 KiB, so single records would need four times the calls.
_PIECE_BYTES = 65_536


class Records:
    """The TLS state of one end of a connection. ``ssl`` has the negotiated parameters."""

    __slots__ = ("_ahead", "_incoming", "_is_over", "_read", "_write", "outgoing", "put", "ssl")

    def __init__(self, context: ssl.SSLContext, *, is_server: bool = True) -> None:
        self._incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        """Bytes to send; ``pending`` is their number."""
        self.put = self._incoming.write
        """Adds received bytes."""
        self.ssl = context.wrap_bio(self._incoming, self.outgoing, server_side=is_server)
        self._read = self.ssl.read
        self._write = self.ssl.write
        # Data decrypted during shutdown, not yet read.
        self._ahead = b""
        # The client's close_notify has arrived, perhaps after bytes that can still be read.
        self._is_over = False

    @property
    def has_more(self) -> bool:
        """Whether ``read`` may return more without new input."""
        return bool(self._incoming.pending or self._is_over or self._ahead)

    def shake(self) -> bool:
        """Continue the handshake; return whether it is complete. Raises ``ssl.SSLError``; then send the alert."""
        try:
            self.ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def read(self) -> bytes | None:
        """Decrypted bytes of several records; b"" after the client's close_notify; None without a complete record.

        Raises:
            ssl.SSLError: when the bytes are not TLS.
        """
        if self._ahead:
            ahead, self._ahead = self._ahead, b""
            return ahead
        data = self._read_one()
        return self._joined(data) if data and self._incoming.pending else data

    def _joined(self, data: bytes) -> bytes:
        """Append the bytes of the next records to ``data``, up to a maximum size."""
        pieces, count = [data], len(data)
        while self._incoming.pending and count < _PIECE_BYTES and (more := self._read_one()):
            pieces.append(more)
            count += len(more)
        return b"".join(pieces)

    def write(self, data: bytes | bytearray | memoryview) -> bytes:
        """Encrypt bytes and return the data to send."""
        self._write(data)
        return self.outgoing.read()

    def close_notify(self) -> bytes:
        """Return close_notify, which ends the sending direction. Received data can still be read."""
        with contextlib.suppress(ssl.SSLError):
            # OpenSSL looks for the client's close_notify in the received bytes, and must find nothing else there.
            while self._incoming.pending and (data := self._read_one()):
                self._ahead += data
        with contextlib.suppress(ssl.SSLError):
            # OpenSSL reports that the client's close_notify is missing, but it is not awaited.
            self.ssl.unwrap()
        return self.outgoing.read()

    def _read_one(self) -> bytes | None:
        try:
            data = self._read(_PIECE_BYTES)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLZeroReturnError:
            # The result of a close_notify after our own.
            data = b""
        # The next ``read`` reports it again.
        self._is_over = not data
        return data
