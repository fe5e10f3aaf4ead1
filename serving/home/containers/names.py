"""What a pod's name server answers, as a decision: names of services here, everything else asked elsewhere (RFC 1035).

Input: a query, the addresses and the hosts of services; output: the response, or None for a name that is not ours. In a pod
NAME.NAMESPACE.svc.cluster.local is the address of the inner listener, and the hosts of routes that of the public one.
"""

import ipaddress
import struct
from collections.abc import Container

import msgspec

from serving.model.errors import InvalidValue

_HEADER = struct.Struct("!HHHHHH")
_KIND_AND_CLASS = struct.Struct("!HH")
_CLUSTER = "cluster.local"
_SERVICE_LABELS = 5
_A, _INTERNET = 1, 1
_TTL_S = 5
# Flags of an answer: it is one, authoritative, recursion is there; the low bits are the code.
_ANSWER, _RECURSION_WANTED = 0x8480, 0x0100
_NO_NAME, _SERVER_FAILURE = 3, 2
_LABEL_BYTES_MAX = 63
# A pointer to the name in the question, which begins behind the header.
_SAME_NAME = 0xC00C


def question_of(query: bytes) -> tuple[str, int, int]:
    """The name in lower case, the kind, and where the question ends. Raises ``InvalidValue`` for what is no single question."""
    labels, at = [], _HEADER.size
    try:
        _, flags, count, *_ = _HEADER.unpack_from(query)
        while query[at]:
            length = query[at]
            if length > _LABEL_BYTES_MAX or count != 1 or flags & 0x8000:
                raise InvalidValue(text=query[: at + 1].hex(), expected="one question")
            labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
        kind, _ = _KIND_AND_CLASS.unpack_from(query, at + 1)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise InvalidValue(text=query[:20].hex(), expected="a question") from error
    return ".".join(labels).lower(), kind, at + 1 + _KIND_AND_CLASS.size


class NameAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses that names of services have: of the inner listener, and of the public one."""

    inner: str
    public: str

    def answer(self, query: bytes, hosts: Container[str]) -> bytes | None:
        """The response to a query; None where another server must be asked. ``hosts`` are the public ones.

        Raises:
            InvalidValue: when it is no query.
        """
        name, kind, end = question_of(query)
        address = self._address(name, hosts)
        if address is None:
            return None
        if not address:
            return _response(query, end, code=_NO_NAME)
        return _response(query, end, address=address if kind == _A else "")

    def _address(self, name: str, hosts: Container[str]) -> str | None:
        """Its address, "" for a name that does not exist, None for one that is not ours."""
        if name == _CLUSTER or name.endswith(f".{_CLUSTER}"):
            is_service = name.endswith(f".svc.{_CLUSTER}") and len(name.split(".")) == _SERVICE_LABELS
            return self.inner if is_service else ""
        if name in hosts or name.endswith(".localhost"):
            return self.public
        return None


def failure(query: bytes) -> bytes:
    """The response that no server can be asked."""
    return _response(query, question_of(query)[2], code=_SERVER_FAILURE)


def _response(query: bytes, end: int, *, address: str = "", code: int = 0) -> bytes:
    number, flags, *_ = _HEADER.unpack_from(query)
    head = _HEADER.pack(number, _ANSWER | (flags & _RECURSION_WANTED) | code, 1, int(bool(address)), 0, 0)
    answer = b""
    if address:
        data = ipaddress.IPv4Address(address).packed
        answer = struct.pack("!HHHIH", _SAME_NAME, _A, _INTERNET, _TTL_S, len(data)) + data
    return head + query[_HEADER.size : end] + answer
