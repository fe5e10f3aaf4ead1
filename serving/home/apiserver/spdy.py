"""Frames of SPDY/3.1, as ``kubectl port-forward`` sends them inside a websocket.

Input: bytes as they arrive; output: frames. Headers share one compression context in each direction, so one ``SpdyCodec``
belongs to one connection. There is no flow control: Kubernetes' clients use none. Source: the SPDY/3.1 draft. Pure.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

_VERSION = 0x8003
_SYN_REPLY, _RST_STREAM, _PING = 2, 3, 6
_FIN = 1
_HEAD_BYTES = 8
_FRAME_BYTES_MAX = 2**20
_HEADERS_BYTES_MAX = 2**16
_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status"
)
_MORE_WORDS = ("200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin")
_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
# What both sides load into their compression before the first header.
_DICTIONARY = b"".join(struct.pack(">I", len(word)) + word.encode() for word in (*_WORDS.split(), *_MORE_WORDS))
_DICTIONARY += _TAIL.encode()


class SpdyError(Exception):
    """The peer sent bytes that are not SPDY/3.1."""


class SpdyFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of a stream, or a ping with its ``stream`` as id. ``is_last`` says that the peer sends no more on it."""

    kind: Literal["open", "data", "reset", "ping", "goaway"]
    stream: int = 0
    headers: Mapping[str, str] = {}
    data: bytes = b""
    is_last: bool = False


class SpdyCodec:
    """Reads the frames of one connection, and writes those of the side that accepts streams."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._inflate = zlib.decompressobj(zdict=_DICTIONARY)
        self._deflate = zlib.compressobj(zdict=_DICTIONARY)

    def feed(self, piece: bytes) -> Iterator[SpdyFrame]:
        """The frames that are complete with this piece. Raises ``SpdyError``."""
        self._buffer += piece
        while len(self._buffer) >= _HEAD_BYTES:
            first, flags_and_length = struct.unpack_from(">II", self._buffer)
            flags, length = flags_and_length >> 24, flags_and_length & 0xFFFFFF
            if length > _FRAME_BYTES_MAX:
                raise SpdyError(f"a frame of {length} bytes; expected at most {_FRAME_BYTES_MAX}")
            if len(self._buffer) < _HEAD_BYTES + length:
                return
            body = bytes(self._buffer[_HEAD_BYTES : _HEAD_BYTES + length])
            del self._buffer[: _HEAD_BYTES + length]
            if first >> 31 == 0:
                yield SpdyFrame(kind="data", stream=first, data=body, is_last=bool(flags & _FIN))
                continue
            if first >> 16 != _VERSION:
                raise SpdyError(f"version {first >> 16 & 0x7FFF}; expected 3")
            frame = self._control(first & 0xFFFF, flags, body)
            if frame is not None:
                yield frame

    def _control(self, kind: int, flags: int, body: bytes) -> SpdyFrame | None:
        try:
            match kind:
                case 1:
                    (stream,) = struct.unpack_from(">I", body)
                    headers = self._headers(body[10:])
                    return SpdyFrame(kind="open", stream=stream, headers=headers, is_last=bool(flags & _FIN))
                case 3:
                    return SpdyFrame(kind="reset", stream=struct.unpack_from(">I", body)[0])
                case 6:
                    return SpdyFrame(kind="ping", stream=struct.unpack_from(">I", body)[0])
                case 7:
                    return SpdyFrame(kind="goaway")
                case 2 | 8:
                    # Keeps the compression context in step.
                    self._headers(body[4:])
        except (struct.error, zlib.error, UnicodeDecodeError) as error:
            raise SpdyError(f"a control frame of type {kind} that cannot be read: {error}") from error
        return None

    def _headers(self, block: bytes) -> dict[str, str]:
        plain = self._inflate.decompress(block, _HEADERS_BYTES_MAX)
        if self._inflate.unconsumed_tail:
            raise SpdyError(f"headers of more than {_HEADERS_BYTES_MAX} bytes")
        (count,) = struct.unpack_from(">I", plain)
        place, texts = 4, []
        for _ in range(count * 2):
            (length,) = struct.unpack_from(">I", plain, place)
            texts.append(plain[place + 4 : place + 4 + length].decode())
            place += 4 + length
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def accept(self, stream: int) -> bytes:
        """The reply that accepts a stream, without headers."""
        block = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control_frame(_SYN_REPLY, struct.pack(">I", stream) + block)

    @staticmethod
    def data(stream: int, data: bytes, *, is_last: bool = False) -> bytes:
        """A frame of data."""
        return struct.pack(">II", stream, (_FIN if is_last else 0) << 24 | len(data)) + data

    @staticmethod
    def reset(stream: int) -> bytes:
        """Ends a stream; the status is CANCEL."""
        return _control_frame(_RST_STREAM, struct.pack(">II", stream, 5))

    @staticmethod
    def pong(number: int) -> bytes:
        """The answer to a ping."""
        return _control_frame(_PING, struct.pack(">I", number))


def _control_frame(kind: int, body: bytes) -> bytes:
    return struct.pack(">HHI", _VERSION, kind, len(body)) + body
