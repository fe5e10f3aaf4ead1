"""Decodes objects sent as protobuf by Go clients.

Since 1.32 client-go's typed clients, including kubectl, send Kubernetes' own kinds in protobuf and do not retry in
JSON. Input: the body, which is "k8s", a zero byte and a ``runtime.Unknown``. Output: the object in its JSON form. Field
types come from ``builtin_schemas``, field numbers from ``message_numbers``. Custom resources have no protobuf form.
"""

import base64
import datetime as dt
import functools
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from serving.home.apiserver.requests import Fault
from serving.home.schemas.crds import SCHEMAS_FILE, builtin_schemas, referred, schema_name
from serving.home.schemas.patch import VALUES_MAX
from serving.home.schemas.schema import Schema
from serving.net.cluster.kinds import kind_of

NUMBERS_FILE = SCHEMAS_FILE.with_name("protobuf.json")

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10
# Bodies that are not kinds. Every group has deletion options under its own version.
_DELETE_OPTIONS = "meta.v1.DeleteOptions"
_BODIES = {
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): "authorization.v1.SelfSubjectAccessReview",
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): "authorization.v1.SelfSubjectRulesReview",
    ("autoscaling/v1", "Scale"): "autoscaling.v1.Scale",
    ("policy/v1", "Eviction"): "policy.v1.Eviction",
}

# Remaining fields in the body being decoded, because each message type has its own decoding function.
_FIELDS_LEFT: ContextVar[Iterator[int]] = ContextVar("fields_left")

_Read = Callable[[Any], Any]
# By number; a mapping is an embedded message, whose fields belong to the outer object in JSON.
_Fields = Mapping[int, "_MessageField | _Fields"]


class MessageNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The field numbers of one protobuf message, by JSON name, and the fields that are pointers in Go.

    A field of an embedded message has two numbers: that of the embedded message, and its own.
    """

    numbers: Mapping[str, tuple[int, ...]]
    """Numbers by JSON name. A field of an embedded message has both numbers, the outer one first."""

    pointers: frozenset[str] = frozenset()
    """Pointer fields in Go, encoded only if set, even if zero. Other fields are always encoded."""


@functools.cache
def message_numbers() -> Mapping[str, MessageNumbers]:
    """The field numbers of all messages, by the short names of their schemas, such as "core.v1.Pod"."""
    return msgspec.json.decode(NUMBERS_FILE.read_bytes(), type=dict[str, MessageNumbers])


class _MessageField(msgspec.Struct, frozen=True):
    """A field of a protobuf message, and the function that decodes it.

    Go always encodes a field that is not a pointer, even if it is empty; in JSON an empty field is omitted.
    """

    name: str
    read: _Read
    is_list: bool
    is_map: bool
    is_pointer: bool


def decode_protobuf(data: bytes) -> dict[str, Any]:
    """Decode the object in a body. Raises ``Fault`` 400 or 415."""
    if not data.startswith(_MAGIC):
        raise Fault(400, "the body is not protobuf as Kubernetes writes it")
    _FIELDS_LEFT.set(iter(range(VALUES_MAX)))
    try:
        unknown = dict(_fields(data[len(_MAGIC) :]))
        meta = dict(_fields(unknown.get(1, b"")))  # type: ignore[arg-type] # a number raises TypeError, as it should
        version, kind = _text(meta.get(1, b"")), _text(meta.get(2, b""))
        name = _schema_of(version, kind)
        if name is not None:
            return {"apiVersion": version, "kind": kind, **_message(name, unknown.get(2, b""))}
    except (IndexError, UnicodeDecodeError, TypeError, ValueError, OverflowError, struct.error) as error:
        raise Fault(400, f"the body is not protobuf as Kubernetes writes it: {error}") from error
    raise Fault(
        415,
        f"{kind or 'the object'} is accepted as JSON or YAML only, not as protobuf: write a manifest and use kubectl apply -f",
    )


def _schema_of(version: str, kind: str) -> str | None:
    if kind == "DeleteOptions":
        return _DELETE_OPTIONS
    known = kind_of(version, kind)
    name = _BODIES.get((version, kind)) if known is None else schema_name(known)
    return name if name in message_numbers() else None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at, remaining = 0, _FIELDS_LEFT.get()
    while at < len(data):
        if next(remaining, None) is None:
            raise Fault(413, f"a body has at most {VALUES_MAX} fields")
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


def _message(name: str, data: Any) -> dict[str, Any]:  # noqa: ANN401 - a number raises TypeError
    result: dict[str, Any] = {}
    _read_into(result, _known(name), data)
    return result


def _read_into(result: dict[str, Any], known: _Fields, data: Any) -> None:  # noqa: ANN401 - as above
    for number, value in _fields(data):
        field = known.get(number)
        if isinstance(field, Mapping):
            _read_into(result, field, value)
        elif field is None:
            continue
        elif field.is_map:
            entry = dict(_fields(value))  # type: ignore[arg-type] # as above
            result.setdefault(field.name, {})[_text(entry.get(1, b""))] = field.read(entry.get(2, b""))
        elif field.is_list:
            result.setdefault(field.name, []).append(field.read(value))
        elif value or field.is_pointer:
            read = field.read(value)
            if field.is_pointer or read not in ({}, None):
                result[field.name] = read


@functools.cache
def _known(name: str) -> _Fields:
    numbers, properties = message_numbers()[name], builtin_schemas()[name]["properties"]
    known: dict[int, Any] = {}
    for field, (*outer, number) in numbers.numbers.items():
        level = known
        for outer_name in outer:
            level = level.setdefault(outer_name, {})
        schema = properties[field]
        item = schema.get("items") or schema.get("additionalProperties") or schema
        level[number] = _MessageField(
            field,
            _reader(item),
            is_list="items" in schema,
            is_map="additionalProperties" in schema,
            is_pointer=field in numbers.pointers,
        )
    return known


def _reader(schema: Schema) -> _Read:
    name = next(iter(referred(schema)), "")
    if name:
        return _SPECIAL.get(name) or functools.partial(_message, name)
    if schema.get("format") == "byte":
        return _base64
    return _BY_TYPE.get(schema["type"], _text)


def _text(value: Any) -> str:  # noqa: ANN401 - a number raises TypeError
    if not isinstance(value, bytes):
        raise TypeError("a number where a text should be")
    return value.decode("utf-8")


def _int64(value: Any) -> int:  # noqa: ANN401 - bytes raise TypeError
    """Convert a decoded varint to a signed 64-bit number."""
    low: int = value & (1 << 64) - 1
    return low - (1 << 64) if low >> 63 else low


def _double(value: bytes) -> float:
    (number,) = struct.unpack("<d", value)
    return float(number)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _quantity(data: bytes) -> str:
    return _text(dict(_fields(data)).get(1, b""))


def _int_or_string(data: bytes) -> int | str:
    fields = dict(_fields(data))
    return _text(fields.get(3, b"")) if fields.get(1) else _int64(fields.get(2, 0))


def _time(data: bytes, *, timespec: str = "seconds") -> str | None:
    """A protobuf Time in JSON's format; None for Go's zero time, which is an empty message."""
    fields = dict(_fields(data))
    if not fields:
        return None
    seconds, nanoseconds = _int64(fields.get(1, 0)), _int64(fields.get(2, 0))
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds, microseconds=nanoseconds // 1000)
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def _owned_fields(data: bytes) -> Any:  # noqa: ANN401 - JSON
    return json.loads(_text(dict(_fields(data)).get(1, b"{}")))


_BY_TYPE: Mapping[str, _Read] = {"boolean": bool, "integer": _int64, "number": _double}
_SPECIAL: Mapping[str, _Read] = {
    "api.resource.Quantity": _quantity,
    "meta.v1.FieldsV1": _owned_fields,
    "meta.v1.MicroTime": functools.partial(_time, timespec="microseconds"),
    "meta.v1.Time": _time,
    "util.intstr.IntOrString": _int_or_string,
}
