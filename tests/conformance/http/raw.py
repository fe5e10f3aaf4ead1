"""Sends raw bytes to an HTTP/1.1 server and reads what comes back, as it is on the wire.

No HTTP library is between a case and the server: cases are malformed on purpose, and their responses are judged by
their bytes.
"""

import contextlib
import re
import socket
import time

import msgspec

# Long enough for a second response that is under way on this machine.
_SETTLE_S = 0.15
_STATUS_LINE = re.compile(rb"HTTP/\d\.\d (\d{3})")


class RawResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a server sent in response to one step. ``status`` is 0 without a response."""

    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""
    raw: bytes = b""
    closed: bool = False
    unsent: bool = False

    @property
    def count(self) -> int:
        """Number of status lines: two say that the server saw a second request."""
        return len(_STATUS_LINE.findall(self.raw))

    def __str__(self) -> str:
        if self.unsent:
            return "not sent"
        end = "closed" if self.closed else "open"
        return f"{self.status or 'no response'}, {end}"


class RawConnection:
    """One connection to ``address``; ``wait_s`` bounds each response."""

    def __init__(self, address: tuple[str, int], *, wait_s: float) -> None:
        self._wait_s = wait_s
        self._socket = socket.create_connection(address, timeout=wait_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def ask(self, data: bytes, *, wait_s: float | None = None, head_only: bool = False) -> RawResponse:
        """Send ``data`` and read until the response is complete, the server closes, or time is up."""
        deadline_s = time.monotonic() + (self._wait_s if wait_s is None else wait_s)
        closed = False
        try:
            self._socket.settimeout(self._wait_s)
            self._socket.sendall(data)
        except OSError:
            # The response to the part that was sent may still be readable.
            closed = True
        raw = b""
        while not (done := _complete(raw, head_only=head_only)):
            piece = self._receive(deadline_s)
            if piece is None:
                break
            if not piece:
                closed = True
                break
            raw += piece
        if not closed and done:
            raw, closed = self._settle(raw, deadline_s)
        return parsed(raw, closed=closed)

    def _settle(self, raw: bytes, deadline_s: float) -> tuple[bytes, bool]:
        """Read what follows a complete response: another one, or the end of the connection."""
        head = raw.partition(b"\r\n\r\n")[0].lower()
        closes = b"\r\nconnection: close" in head or head.startswith(b"http/1.0")
        until_s = deadline_s if closes else min(deadline_s, time.monotonic() + _SETTLE_S)
        while (piece := self._receive(until_s)) is not None:
            if not piece:
                return raw, True
            raw += piece
        return raw, False

    def _receive(self, until_s: float) -> bytes | None:
        """The next bytes, none at the end; None when time is up."""
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return None
        self._socket.settimeout(left_s)
        try:
            return self._socket.recv(65536)
        except TimeoutError:
            return None
        except OSError:
            return b""


def _complete(raw: bytes, *, head_only: bool) -> bool:
    """Whether ``raw`` has a final response from head to end."""
    head, data, rest = raw.partition(b"\r\n\r\n")
    match = _STATUS_LINE.match(head)
    if not data or match is None:
        return False
    status = int(match[1])
    if 100 <= status < 200 and status != 101:
        return _complete(rest, head_only=head_only)
    fields = _fields(head)
    if head_only or status in {101, 204, 304}:
        return True
    if "chunked" in fields.get("transfer-encoding", "").lower():
        return rest.endswith(b"0\r\n\r\n")
    length = fields.get("content-length")
    return length is not None and length.isdigit() and len(rest) >= int(length)


def _fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def parsed(raw: bytes, *, closed: bool) -> RawResponse:
    """The first response in ``raw`` that is final, or an interim one if there is no other."""
    match = _STATUS_LINE.match(raw)
    if match is None:
        return RawResponse(raw=raw, closed=closed)
    head, _, rest = raw.partition(b"\r\n\r\n")
    status, fields = int(match[1]), _fields(head)
    if 100 <= status < 200 and status != 101 and _STATUS_LINE.match(rest):
        final = parsed(rest, closed=closed)
        return msgspec.structs.replace(final, raw=raw, headers={**final.headers, "interim": str(status)})
    if "chunked" in fields.get("transfer-encoding", "").lower():
        rest = _unchunked(rest)
    elif (length := fields.get("content-length", "")).isdigit():
        rest = rest[: int(length)]
    return RawResponse(status=status, headers=fields, body=rest, raw=raw, closed=closed)


def _unchunked(rest: bytes) -> bytes:
    payload = b""
    with contextlib.suppress(ValueError):
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size.partition(b";")[0], 16)
            if not length:
                break
            payload, rest = payload + rest[:length], rest[length + 2 :]
    return payload
