"""Content of requests and responses: media types, unknown and duplicate fields, and the shapes of objects.

A client lists media types in order of preference, and the first supported one wins. Objects are written as JSON, as a
``Table`` or as ``PartialObjectMetadata``. Protobuf is read for Go clients (``protobuf.py``) and never written.
"""

import contextlib
import enum
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import yaml
from aiohttp import web

from serving.core.model.errors import UNREADABLE
from serving.core.model.objects import Object
from serving.core.settings.yamltext import JsonTypesLoader, YamlLoader
from serving.home.admission.admission import unknown
from serving.home.apiserver.protobuf import MEDIA_TYPE, decode_protobuf
from serving.home.apiserver.requests import Fault
from serving.home.apiserver.tables import metadata_list, partial_metadata, table
from serving.home.schemas.patch import JSON_PATCH_VALUES_MAX, VALUES_MAX
from serving.home.schemas.records import decoded
from serving.home.schemas.schema import DEPTH_MAX, is_within
from serving.home.store.history import StoreLimits
from serving.home.store.memory import EncodedListing
from serving.net.aio.clock import wall_s
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import PatchType

_JSON_TYPES = {"application/json", "application/*", "*/*"}
_YAML_TYPES = {"application/yaml", "application/x-yaml", "text/yaml"}

_LEVELS = ("", "Ignore", "Strict", "Warn")
_HEADER_LENGTH_MAX = 1024
# Most values and brackets in a YAML body: each takes 20 µs of the event loop, and 3 MiB took 40 s. JSON is 100 times
# faster.
YAML_EVENTS_MAX = 5_000
YAML_BYTES_MAX = StoreLimits().object_bytes_max
"""Largest YAML body. Larger objects cannot be stored anyway, and parsing a long text blocks for 75 ms per MiB."""

# The YAML parser visits each open bracket for each event. Objects of Kubernetes have at most 30 levels.
_YAML_DEPTH_MAX = 200
# Python parses base 60 numbers in quadratic time.
_NUMBER_LENGTH_MAX = 100
_WARNINGS_MAX = 50
_TOO_MANY = "a body has at most %d values, members and elements together"
_LONG_NUMBER = b"0" * (_NUMBER_LENGTH_MAX + 1)
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_OPENING = b"[{"
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_JSON_LIST = re.compile(rb"\s*\[")
_NUMBER = re.compile(r"[-+.0-9][-+.:_0-9a-fA-FxXoO]*\Z")
_INDEX = re.compile(r"(\d+|-)\Z")

JSON_TYPE = "application/json"


class Shape(enum.StrEnum):
    """The shape of objects in a response: complete objects, a Table, or only their metadata.

    The values are those of ``as`` in an Accept header.
    """

    WHOLE = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


class WantedShape(msgspec.Struct, frozen=True):
    """The requested shape of objects, and the version of ``meta.k8s.io`` for a table or metadata."""

    shape: Shape
    version: str = "v1"


def wanted(accept: str) -> WantedShape:
    """The shape requested by the first supported entry of an Accept header. Raises ``Fault`` 406 if there is none."""
    for clause in accept.split(",") if accept.strip() else ("*/*",):
        media, *parameters = (part.strip() for part in clause.split(";"))
        if media.lower() not in _JSON_TYPES:
            continue
        options = dict(parameter.partition("=")[::2] for parameter in parameters)
        shape, version = options.get("as", ""), options.get("v", "v1")
        known = version in {"v1", "v1beta1"} and options.get("g", "meta.k8s.io") == "meta.k8s.io"
        if not shape:
            return WantedShape(Shape.WHOLE)
        if shape in list(Shape) and known:
            return WantedShape(Shape(shape), version)
    raise Fault(406, "only the following media types are accepted: application/json, application/json;as=Table")


def decode_body(data: bytes, content_type: str) -> Any:  # noqa: ANN401 - whatever was sent
    """Decode a body. Raises ``Fault`` 400 or 415."""
    media = content_type.partition(";")[0].strip().lower()
    if media == MEDIA_TYPE:
        return decode_protobuf(data)
    if media in _YAML_TYPES or media.endswith("+yaml"):
        return _from_yaml(data)
    if media and media != "application/json" and not media.endswith("+json"):
        raise Fault(415, f"the body of the request was in an unknown format - accepted are JSON and YAML, not {media}")
    return _decoded(_from_json, data)


def _from_json(data: bytes) -> Any:  # noqa: ANN401 - whatever was sent
    """Decode JSON. Raises ``Fault`` 400 for an invalid body, and 413 for one with too many values.

    The checks are made before the decoding where possible, because releasing a million decoded lists is slow.
    """
    # A list is a JSON patch.
    values_max = JSON_PATCH_VALUES_MAX if _JSON_LIST.match(data) else VALUES_MAX
    # Each value has one text, or two with its key; each text has two unescaped quotes.
    if data.count(b'"') - data.count(b'\\"') > 4 * values_max:
        raise Fault(413, _TOO_MANY % values_max)
    # Texts may contain any number of brackets, commas and digits.
    if _separators_in(data) > values_max or _has_long_number(data):
        bare = _without_texts(data)
        if _separators_in(bare) > values_max:
            raise Fault(413, _TOO_MANY % values_max)
        if _has_long_number(bare):
            raise Fault(400, f"the object provided is unrecognized: a number has at most {_NUMBER_LENGTH_MAX} digits")
    if data.count(b"[") + data.count(b"{") > DEPTH_MAX and _depth_of(_without_texts(data)) > DEPTH_MAX:
        raise Fault(400, f"the object is nested too deep: expected at most {DEPTH_MAX} levels")
    body = msgspec.json.decode(data)
    if isinstance(body, dict | list) and not is_within(body, values_max):
        raise Fault(413, _TOO_MANY % values_max)
    return body


def _depth_of(bare: bytes) -> int:
    """The deepest nesting of a JSON body from which ``_without_texts`` has removed the strings."""
    depth = deepest = 0
    for bracket in bare.translate(None, delete=_NO_BRACKETS):
        depth += 1 if bracket in _OPENING else -1
        deepest = max(deepest, depth)
    return deepest


# Each of these blocks the interpreter for a tenth of a regular expression's time.
def _has_long_number(data: bytes) -> bool:
    return _LONG_NUMBER in data.translate(_DIGITS_AS_ZEROS)


def _without_texts(data: bytes) -> bytes:
    """Remove the strings from a JSON body. An invalid body is cut at the error."""
    return b"".join(data.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])


def _separators_in(data: bytes) -> int:
    """A lower bound for the number of values in a JSON body: its commas, or its opening brackets less one if larger.

    The bound is valid only for a body without strings, because a string may contain any characters.
    """
    return max(data.count(b"[") + data.count(b"{") - 1, data.count(b","))


def duplicate_fields(data: bytes, content_type: str = "") -> list[str]:
    """The duplicate keys in a JSON or YAML body, in order of appearance.

    A parser keeps the last value of a key.
    """
    media = content_type.partition(";")[0].strip().lower()
    if media == MEDIA_TYPE:
        return []
    duplicates: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> None:
        # Building a dict is ten times as fast as comparing the keys here.
        if len(dict(pairs)) < len(pairs):
            duplicates.extend(_repeated(key for key, _ in pairs))

    try:
        json.loads(data, object_pairs_hook=collect)
    except ValueError:
        # It was decoded before, so it is YAML of an allowed length.
        return _duplicate_yaml_keys(yaml.compose(data, Loader=YamlLoader))
    return duplicates


def _duplicate_yaml_keys(node: yaml.Node | None) -> list[str]:
    if isinstance(node, yaml.SequenceNode):
        return [key for child in node.value for key in _duplicate_yaml_keys(child)]
    if not isinstance(node, yaml.MappingNode):
        return []
    below = [key for _, child in node.value for key in _duplicate_yaml_keys(child)]
    return [*below, *_repeated(str(key.value) for key, _ in node.value)]


def _repeated(keys: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    duplicates: list[str] = []
    for key in keys:
        if key in seen:
            duplicates.append(key)
        seen.add(key)
    return duplicates


def _decoded(decode: Callable[[bytes], Any], data: bytes) -> Any:  # noqa: ANN401 - whatever was sent
    try:
        return decode(data)
    # ValueError: numbers with more digits than Python parses.
    except (*UNREADABLE, yaml.YAMLError, ValueError) as error:
        raise Fault(400, f"the object provided is unrecognized: {error}") from error


def _from_yaml(data: bytes) -> Any:  # noqa: ANN401 - whatever was sent
    # Clients also send JSON, which is valid YAML, under this type.
    if data.lstrip()[:1] in (b"{", b"["):
        with contextlib.suppress(*UNREADABLE):
            return _from_json(data)
    if len(data) > YAML_BYTES_MAX:
        raise Fault(413, f"a body in YAML has at most {YAML_BYTES_MAX} bytes: send JSON")
    _decoded(lambda text: check_yaml(yaml.parse(text, Loader=YamlLoader)), data)
    return _with_text_keys(_decoded(lambda text: yaml.load(text, Loader=JsonTypesLoader), data))  # noqa: S506 - a safe loader


def _with_text_keys(value: Any) -> Any:  # noqa: ANN401 - whatever was sent
    """The value with strings as keys of objects, as kube-apiserver reads YAML: true becomes "true", and 1 "1".

    Raises ``Fault`` 400.
    """
    if isinstance(value, list):
        return [_with_text_keys(child) for child in value]
    if not isinstance(value, dict):
        return value
    for key in value:
        if not isinstance(key, str | int | float):
            raise Fault(400, f"the object provided is unrecognized: unsupported map key {key!r}; expected a text")
    return {key if isinstance(key, str) else json.dumps(key): _with_text_keys(child) for key, child in value.items()}


def _is_long_number(text: str) -> bool:
    return len(text) > _NUMBER_LENGTH_MAX and _NUMBER.match(text) is not None


def check_yaml(events: Iterable[yaml.Event]) -> None:
    """Raise ``Fault`` 400 or 413 for YAML that is too expensive, without parsing further events."""
    depth = 0
    for number, event in enumerate(events):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _YAML_DEPTH_MAX:
            raise Fault(400, f"a body in YAML is at most {_YAML_DEPTH_MAX} levels deep")
        if number >= YAML_EVENTS_MAX:
            raise Fault(413, f"a body in YAML has at most {YAML_EVENTS_MAX} values and brackets; send JSON")
        # A few lines of aliases can expand to gigabytes.
        if isinstance(event, yaml.events.AliasEvent):
            raise Fault(400, "YAML aliases are not accepted")
        if isinstance(event, yaml.events.ScalarEvent) and event.implicit[0] and _is_long_number(event.value):
            raise Fault(400, f"a number in YAML has at most {_NUMBER_LENGTH_MAX} characters; quote a text")


def check_fields(kind: Kind, written: list[Object], *, duplicates: list[str], level: str) -> list[str]:
    """Warnings about unknown and duplicate fields, as requested by ``level``, the value of ``fieldValidation``.

    Ignore returns no warnings, Warn returns them, and Strict raises ``Fault`` 400 if there are any.
    """
    if level not in _LEVELS:
        choices = ", ".join(choice for choice in _LEVELS if choice)
        raise Fault(400, f"invalid value for fieldValidation: {level!r}; expected one of {choices}")
    if level == "Ignore":
        return []
    warnings = [f'unknown field "{path}"' for body in written for path in unknown(kind, body)]
    warnings = list(dict.fromkeys([*warnings, *(f'duplicate field "{name}"' for name in duplicates)]))
    if warnings and level == "Strict":
        named = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}'
        raise Fault(400, f"{named}: strict decoding error: {', '.join(warnings)}")
    return warnings


def touched(patch: Any, patch_type: PatchType) -> list[Object]:  # noqa: ANN401 - as it was sent
    """The partial objects that a patch writes.

    A merge patch is one such object. A JSON patch has one for each added or replaced path.
    """
    if patch_type is not PatchType.JSON:
        return [_without_directives(patch)] if isinstance(patch, dict) else []
    operations = [operation for operation in patch if isinstance(operation, dict)] if isinstance(patch, list) else []
    return [
        _nested(str(operation.get("path", "")), operation.get("value"))
        for operation in operations
        if operation.get("op") in {"add", "replace"} and operation.get("path")
    ]


def _nested(pointer: str, value: object) -> Object:
    """The object that a JSON pointer sets: "/spec/a/0" with 1 is {"spec": {"a": [1]}}."""
    for part in reversed(pointer.lstrip("/").split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        value = [value] if _INDEX.match(key) else {key: value}
    return value if isinstance(value, dict) else {}


def _without_directives(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A merge patch without directives such as ``$patch``, and without deleted fields."""
    if isinstance(value, Mapping):
        return {
            key: _without_directives(child)
            for key, child in value.items()
            if not key.startswith("$") and child is not None
        }
    if isinstance(value, list):
        return [_without_directives(element) for element in value]
    return value


def warning_header(text: str) -> str:
    """A ``Warning`` header: code 299, no agent, and the quoted text on one line, in ASCII."""
    plain = " ".join(text.split()).encode("ascii", "replace").decode()
    escaped = plain[:_HEADER_LENGTH_MAX].replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{escaped}"'


def json_response(
    body: object, *, status: int = 200, warnings: Iterable[str] = (), headers: Mapping[str, str] | None = None
) -> web.Response:
    """A JSON response with a Warning header for each warning."""
    response = web.Response(body=msgspec.json.encode(body), status=status, content_type=JSON_TYPE, headers=headers)
    # Clients accept at least 100 header lines, but not thousands.
    for warning in itertools.islice(warnings, _WARNINGS_MAX):
        response.headers.add("Warning", warning_header(warning))
    return response


def shaped_object(kind: Kind, whole: Object, *, wanted: WantedShape, include: str) -> Object:
    """One object in the requested shape. An object of another kind, such as a Status, is returned unchanged.

    ``include`` selects the part of the object in the row of a table: "None", "Metadata" or "Object".
    """
    if wanted.shape is Shape.WHOLE or whole.get("kind") not in {kind.name, None}:
        return whole
    if wanted.shape is Shape.TABLE:
        metadata = {"resourceVersion": whole.get("metadata", {}).get("resourceVersion", "")}
        return table(kind, [whole], metadata, version=wanted.version, include=include, now_s=wall_s())
    return partial_metadata(whole, wanted.version)


def whole_list(kind: Kind, listing: EncodedListing) -> list[bytes]:
    """The JSON of a list of complete objects, as pieces to be sent one after another."""
    begin = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": _list_metadata(listing)}
    pieces = [msgspec.json.encode(begin)[:-1], b',"items":[']
    for item in listing.items:
        pieces += (item, b",")
    if listing.items:
        pieces.pop()
    return [*pieces, b"]}"]


def _list_metadata(listing: EncodedListing) -> Object:
    page = listing.next_page
    return {"resourceVersion": listing.resource_version, **({"continue": page} if page else {})}


def shaped_list(kind: Kind, listing: EncodedListing, *, wanted: WantedShape, include: str) -> bytes:
    """The JSON of a list as a table or as metadata.

    ``include`` selects the part of the object in each row of a table: "None", "Metadata" or "Object".
    """
    metadata, objects = _list_metadata(listing), map(decoded, listing.items)
    if wanted.shape is Shape.TABLE:
        shaped = table(kind, objects, metadata, version=wanted.version, include=include, now_s=wall_s())
    else:
        shaped = metadata_list(objects, metadata, wanted.version)
    return msgspec.json.encode(shaped)
