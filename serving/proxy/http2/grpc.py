"""Translate HTTP errors for clients of gRPC.

A refusal by a proxy is an HTTP status and a sentence. A client of gRPC maps the status and drops the sentence; sent as
trailers in a trailers-only answer, it shows both. The mapping is gRPC's own (grpc/grpc, doc/http-grpc-status-mapping.md).
"""

from serving.proxy.http1.grpccall import GRPC_TYPE
from serving.proxy.http2.hpack_statictable import Fields

_INTERNAL, _UNAUTHENTICATED, _PERMISSION_DENIED, _UNIMPLEMENTED, _UNAVAILABLE, _UNKNOWN = 13, 16, 7, 12, 14, 2
_CODES = {400: _INTERNAL, 401: _UNAUTHENTICATED, 403: _PERMISSION_DENIED, 404: _UNIMPLEMENTED}
_CODES |= dict.fromkeys((429, 502, 503, 504), _UNAVAILABLE)
# A sentence; a page of HTML is none.
_MESSAGE_BYTES_MAX = 500
_OK = 200
_REPLACED = (b":status", b"content-type", b"content-length")


class GrpcRefusal:
    """Collects the body of an HTTP error, and gives the fields of a trailers-only answer."""

    __slots__ = ("_body", "_fields", "_status")

    def __init__(self, status: int, fields: Fields) -> None:
        self._status = status
        self._fields = fields
        self._body = b""

    @classmethod
    def of(cls, status: int, fields: Fields) -> "GrpcRefusal | None":
        """For an answer with these fields; None if it is gRPC already, or no error."""
        kind = next((value for name, value in fields if name == b"content-type"), b"")
        return None if status == _OK or kind.startswith(GRPC_TYPE) else cls(status, fields)

    def take(self, payload: bytes) -> None:
        """A piece of the body has come."""
        if len(self._body) < _MESSAGE_BYTES_MAX:
            self._body += payload[:_MESSAGE_BYTES_MAX]

    def fields(self) -> Fields:
        """All of an answer."""
        kind = next((value for name, value in self._fields if name == b"content-type"), b"")
        message = self._body.strip()[:_MESSAGE_BYTES_MAX] if kind.startswith(b"text/plain") else b""
        return [
            (b":status", b"%d" % _OK),
            (b"content-type", GRPC_TYPE),
            *[field for field in self._fields if field[0] not in _REPLACED],
            (b"grpc-status", b"%d" % _CODES.get(self._status, _UNKNOWN)),
            (b"grpc-message", _escaped(message or b"HTTP status %d" % self._status)),
        ]


def _escaped(message: bytes) -> bytes:
    """Text as grpc-message has it: all but printable ASCII as %XX."""
    return b"".join([b"%c" % byte if 0x20 <= byte < 0x7F and byte != 0x25 else b"%%%02X" % byte for byte in message])
