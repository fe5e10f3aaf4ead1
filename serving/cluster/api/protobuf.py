"""Decode the objects that Go clients send as protobuf: Namespace, ConfigMap, Secret, Eviction and DeleteOptions.

Since 1.32 client-go's typed clients, kubectl among them, send Kubernetes' own kinds in protobuf and do not retry in JSON.
Input: the body, which is "k8s", a zero byte and a ``runtime.Unknown``; output: the object as its JSON form. Field numbers
are those of ``generated.proto`` in k8s.io/api and k8s.io/apimachinery. Other kinds are refused with a hint what to use.
"""

import base64
from collections.abc import Callable, Iterator
from typing import Any

from serving.cluster.api.status import Fault

__all__ = ["MEDIA_TYPE", "decode_protobuf"]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10

_Read = Callable[[Any], Any]
# A field's number: its name, how its value is read, and its shape: "one" value, which Go also writes when it is empty; a
# value that is only "set" when the client gave it, so that 0 counts; a "list"; or a "map".
_Fields = dict[int, tuple[str, _Read, str]]


def decode_protobuf(data: bytes) -> dict[str, Any]:
    """The object that a body holds. Raises ``Fault`` 400 or 415."""
    if not data.startswith(_MAGIC):
        raise Fault(400, "the body is not protobuf as Kubernetes writes it")
    try:
        unknown = dict(_fields(data[len(_MAGIC) :]))
        kind = _message(_TYPE_META)(unknown.get(1, b""))
        fields = _KINDS.get((kind.get("apiVersion", ""), kind.get("kind", "")))
        if kind.get("kind") == "DeleteOptions":
            # Every group has these options under its own version: apps/v1 for a Deployment.
            fields = _DELETE_OPTIONS
        if fields is not None:
            whole: dict[str, Any] = kind | _message(fields)(unknown.get(2, b""))
            return whole
    except (IndexError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise Fault(400, f"the body is not protobuf as Kubernetes writes it: {error}") from error
    named = kind.get("kind") or "the object"
    raise Fault(
        415, f"{named} is taken as JSON or YAML only, not as protobuf: write a manifest and use kubectl apply -f"
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in their order: number and value."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(wire_type)
        if length is None:
            if wire_type != _BYTES:
                raise ValueError(f"wire type {wire_type}")
            length, at = _varint(data, at)
        if at + length > len(data):
            raise ValueError("a field is longer than its message")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number of more than 64 bits")


def _message(known: _Fields) -> _Read:
    def read(data: bytes) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for number, value in _fields(data):
            if number not in known:
                continue
            name, read_value, shape = known[number]
            if shape == "map":
                entry = dict(_fields(value))  # type: ignore[arg-type] # a number raises TypeError, as it should
                result.setdefault(name, {})[_text(entry.get(1, b""))] = read_value(entry.get(2, b""))
            elif shape == "list":
                result.setdefault(name, []).append(read_value(value))
            elif value or shape == "set":
                # Go writes empty values too; in JSON they are left out.
                result[name] = read_value(value)
        return {name: value for name, value in result.items() if value not in ({}, [])}

    return read


def _text(value: Any) -> str:  # noqa: ANN401 - a number raises TypeError
    if not isinstance(value, bytes):
        raise TypeError("a number where a text should be")
    return value.decode("utf-8")


def _int64(value: Any) -> int:  # noqa: ANN401 - bytes raise TypeError
    """A number of 64 bits whose highest bit is its sign."""
    low: int = value & (1 << 64) - 1
    return low - (1 << 64) if low >> 63 else low


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


_TYPE_META: _Fields = {1: ("apiVersion", _text, "one"), 2: ("kind", _text, "one")}
_METADATA: _Fields = {
    1: ("name", _text, "one"),
    2: ("generateName", _text, "one"),
    3: ("namespace", _text, "one"),
    11: ("labels", _text, "map"),
    12: ("annotations", _text, "map"),
    14: ("finalizers", _text, "list"),
}
_OBJECT: _Fields = {1: ("metadata", _message(_METADATA), "one")}
_PRECONDITIONS: _Fields = {1: ("uid", _text, "set"), 2: ("resourceVersion", _text, "set")}
_DELETE_OPTIONS: _Fields = {
    1: ("gracePeriodSeconds", _int64, "set"),
    2: ("preconditions", _message(_PRECONDITIONS), "set"),
    3: ("orphanDependents", bool, "set"),
    4: ("propagationPolicy", _text, "set"),
    5: ("dryRun", _text, "list"),
}
_KINDS: dict[tuple[str, str], _Fields] = {
    ("v1", "Namespace"): _OBJECT,
    ("v1", "ConfigMap"): _OBJECT
    | {2: ("data", _text, "map"), 3: ("binaryData", _base64, "map"), 4: ("immutable", bool, "one")},
    ("v1", "Secret"): _OBJECT
    | {2: ("data", _base64, "map"), 3: ("type", _text, "one"), 4: ("stringData", _text, "map")}
    | {5: ("immutable", bool, "one")},
    ("policy/v1", "Eviction"): _OBJECT | {2: ("deleteOptions", _message(_DELETE_OPTIONS), "one")},
}
