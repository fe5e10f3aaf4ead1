"""TLS between a client and its server: a protocol to the loop, a transport to a ``Connection`` or ``Session``.

What stands here is when to read, write and close; the records are ``records.py``'s. uvloop's own TLS could not be taken:
it throws away the alert that tells a client why its handshake failed, it cannot close one direction, without which the
end of a response may be destroyed on its way, and failed handshakes are not counted.

Until the handshake is over the connection counts to all limits of connections, and its time is bounded. Then ALPN says
who takes over: ``h2`` starts an HTTP/2 session at once, anything else is HTTP/1.1. Memory is bounded as without TLS:
who does not read is not read from, and what was received and not yet decrypted is at most one read of the socket.
"""

import asyncio
import math
import ssl
from collections import Counter
from typing import Any, cast

import msgspec

from serving.proxy.forwarding.exchange import Wiring
from serving.proxy.forwarding.registry import Registry
from serving.proxy.http1.rendering import render_response
from serving.proxy.server.connection import Connection
from serving.proxy.server.preface import start_session
from serving.proxy.tls.records import Records

_HANDSHAKE_RECORD = 0x16
_WRONG_PORT = b"this port speaks HTTPS only\n"
_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
# An alert has the time of a bad line's round trip to leave.
_CLOSE_WAIT_S = 1.0


class TlsTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Settings shared by all connections of a TLS listener. ``failures`` counts failed handshakes by reason."""

    context: ssl.SSLContext
    handshake_max_s: float
    failures: Counter[str]


class TlsLayer(asyncio.Transport, asyncio.Protocol):
    """One client's connection over TLS."""

    __slots__ = (
        *("_address", "_app", "_begun", "_closing", "_due_s", "_eof_passed", "_is_truncated", "_outer", "_outer_ended"),
        *("_paused", "_records", "_registry", "_terms", "_wiring", "_write_ended"),
    )

    def __init__(self, registry: Registry, wiring: Wiring, terms: TlsTerms) -> None:
        super().__init__()
        self._registry = registry
        self._wiring = wiring
        self._terms = terms
        self._outer: asyncio.Transport
        self._records: Records
        # None until the handshake is over.
        self._app: asyncio.Protocol | None = None
        self._address = ""
        self._due_s = math.inf
        self._begun = False
        self._paused = False
        self._closing = False
        self._write_ended = False
        self._outer_ended = False
        self._eof_passed = False
        self._is_truncated = False

    def __repr__(self) -> str:
        state = "closing" if self._closing else "handshake" if self._app is None else repr(self._app)
        return f"TlsLayer({self._address}, {state})"

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake and its time limit."""
        # uvloop's are none by inheritance.
        self._outer = cast("asyncio.Transport", transport)
        name = self._outer.get_extra_info("peername")
        self._address = name[0] if isinstance(name, tuple) else "unknown"
        if self._registry.opened(self, self._address) is not None or self._registry.finishing:
            # A response would cost a handshake, which is what a client with too many connections may be after.
            self._fail("too many connections")
            self.abort()
            return
        self._records = Records(self._terms.context)
        self._wait_until(self._wiring.clock() + self._terms.handshake_max_s)

    def data_received(self, data: bytes) -> None:
        """Decrypt and forward, or continue the handshake."""
        if self._closing or self._eof_passed:
            return
        self._records.put(data)
        if self._app is not None:
            self._pass_on()
        elif self._begun or data[0] == _HANDSHAKE_RECORD:
            self._begun = True
            self._shake()
        else:
            self._refuse_plain(data)

    def eof_received(self) -> bool:
        """Keep this direction open until all received data is processed."""
        self._outer_ended = True
        if self._app is None:
            return False
        self._pass_on()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection has ended."""
        if self._app is not None:
            self._app.connection_lost(exc)
        else:
            if not self._closing:
                self._fail("client left")
            self._registry.closed(self, self._address)
        self._closing = True

    def pause_writing(self) -> None:
        """Pause the protocol: the client reads too slowly."""
        if self._app is not None:
            self._app.pause_writing()

    def resume_writing(self) -> None:
        """Resume the protocol."""
        if self._app is not None:
            self._app.resume_writing()

    # What the connection calls, as of any transport.

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
        """Close without close_notify from now on, so that the client can detect a truncated response."""
        self._is_truncated = True

    def abort(self) -> None:
        """Close at once without close_notify, so that a truncated response does not look complete."""
        self._closing = True
        self._outer.abort()

    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self._closing or self._outer.is_closing()

    def pause_reading(self) -> None:
        """Stop reading from the client."""
        if not self._paused:
            self._paused = True
            if not self._outer_ended:
                self._outer.pause_reading()

    def resume_reading(self) -> None:
        """Read from the client again."""
        if self._paused:
            self._paused = False
            if not self._outer_ended:
                self._outer.resume_reading()
            if self._records.has_more or self._outer_ended:
                # Not now: the caller is in the middle of something.
                asyncio.get_running_loop().call_soon(self._pass_on)

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - the interface's
        """Return transport information: TLS facts from this layer, the rest from the transport below."""
        if name == "ssl_object":
            return self._records.ssl
        return self._records.ssl.context if name == "sslcontext" else self._outer.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol behind TLS."""
        self._app = cast("asyncio.Protocol", protocol)

    def get_write_buffer_size(self) -> int:
        """Bytes that are encrypted but not sent."""
        return self._outer.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits for ``pause_writing`` and ``resume_writing``."""
        self._outer.set_write_buffer_limits(high, low)

    # What the server calls, as long as the handshake lasts.

    @property
    def is_idle(self) -> bool:
        """Always true: no request exists before the handshake ends."""
        return True

    def wind_down(self) -> None:
        """Do nothing: no request exists before the handshake ends."""

    def close_if_idle(self) -> None:
        """Close the connection: it is idle until its handshake ends."""
        self.abort()

    def cut(self) -> bool:
        """Close the connection. Returns False: no request was interrupted."""
        self.abort()
        return False

    def check(self, now_s: float) -> float:
        """Fail a handshake past its time limit; return the limit."""
        if self._due_s <= now_s:
            if not self._closing:
                self._fail("too slow")
            self.abort()
        return self._due_s

    # Inside.

    def _shake(self) -> None:
        try:
            is_over = self._records.shake()
        except ssl.SSLError as error:
            self._fail(error.reason or type(error).__name__)
            self._leave()
            return
        self._flush()
        if not is_over:
            return
        self._registry.closed(self, self._address)
        if self._records.ssl.selected_alpn_protocol() == "h2":
            peer = self._wiring.peer_at(self._address, is_tls=True)
            start_session(self._registry, self._wiring, transport=self, peer=peer)
        else:
            self._app = Connection(self._registry, self._wiring)
            self._app.connection_made(self)
        self._pass_on()

    def _refuse_plain(self, data: bytes) -> None:
        """Respond to plain HTTP with 400; close anything else."""
        self._fail("no TLS")
        if data[:1].isalpha():
            self._outer.write(render_response(400, body=_WRONG_PORT, headers=_TEXT, close=True))
        self._leave()

    def _leave(self) -> None:
        """Flush the last bytes, and close."""
        self._flush()
        self._closing = True
        self._outer.close()
        self._wait_until(self._wiring.clock() + _CLOSE_WAIT_S)

    def _fail(self, reason: str) -> None:
        self._terms.failures[reason] += 1

    def _pass_on(self) -> None:
        """Pass decrypted bytes to the protocol while it reads, then the end of the stream."""
        records = self._records
        while not (self._paused or self._closing or self._eof_passed):
            try:
                data = records.read()
            except ssl.SSLError:
                # Not TLS any more; after our own close_notify that does not matter.
                if not self._write_ended:
                    self.abort()
                break
            if data:
                assert self._app is not None
                self._app.data_received(data)
            elif data is not None or self._outer_ended:
                self._report_eof()
            if data is None or not (records.has_more or self._outer_ended):
                break
        if records.outgoing.pending and not self._closing:
            # A change of keys wants a response.
            self._flush()

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

    def _wait_until(self, due_s: float) -> None:
        self._due_s = due_s
        self._registry.wake_by(due_s)
