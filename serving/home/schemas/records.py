"""Encodes objects for the store: JSON for readers, and validated metadata as an index. Pure.

JSON bytes are the cheapest copy. A reader decodes a separate object (5 µs for a pod; ``copy.deepcopy`` takes 60 µs), an
API server sends the bytes unchanged, and no later write can change an earlier list.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from serving.core.model.errors import Invalid, Problem
from serving.core.model.objects import Key, Object
from serving.net.cluster.kinds import EVENT, NAMESPACE, NODE, POD, SECRET, SERVICE, Kind

_NAME_LENGTH_MAX = 253
_NAMESPACE_LENGTH_MAX = 63
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_TEXT = "a DNS subdomain: lower case letters, digits, '-' and '.', with a letter or digit at each end"
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
# Kubernetes' limit on all annotations of an object together.
_ANNOTATIONS_LENGTH_MAX = 256 * 2**10
_CHECKED_FIELDS = ("labels", "annotations", "finalizers", "ownerReferences")
# Cached pairs: the labels of pods repeat, and a lookup is cheaper than a match.
_PAIRS_SEEN_MAX = 4096

_EVENT_FIELDS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_FIELDS: Mapping[Kind, tuple[str, ...]] = {
    POD: ("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.phase", "status.podIP"),
    EVENT: (*(f"involvedObject.{field}" for field in _EVENT_FIELDS), "reason", "reportingComponent", "type"),
    NODE: ("spec.unschedulable",),
    NAMESPACE: ("status.phase",),
    SECRET: ("type",),
    SERVICE: ("spec.clusterIP", "spec.type"),
}
_EVERY_FIELD = ("metadata.name", "metadata.namespace")

_decoder = msgspec.json.Decoder(dict[str, Any])
_encoder = msgspec.json.Encoder()


class OwnerReference(msgspec.Struct, frozen=True, rename="camel"):
    """One owner of an object. When all owners are deleted, the object is deleted, too."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """The parts of ``metadata`` that the store reads. None means missing."""

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[OwnerReference] | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None


def read_metadata(body: Mapping[str, Any]) -> ObjectMetadata:
    """The metadata of an object. Raises ``Invalid`` for a wrong type."""
    metadata = body.get("metadata")
    try:
        return msgspec.convert({} if metadata is None else metadata, type=ObjectMetadata)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        path = "metadata" + where.rstrip("`")
        problem = Problem(where=path, what=what, expected="the type that the API has there")
        raise Invalid(f"{path}: {what}", [problem]) from error


def checked_metadata(kind: Kind, body: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> ObjectMetadata:
    """Validate the metadata of an object to store. Raises ``Invalid`` with all problems.

    Parts shared with ``old``, the stored object, are not validated again.
    """
    metadata = read_metadata(body)
    if old is not None and _is_shared(body["metadata"], old["metadata"]):
        return metadata
    problems = [
        *_name_problems(kind, metadata.name or ""),
        *_label_problems(metadata.labels or {}),
        *_other_problems(metadata),
    ]
    if problems:
        texts = "; ".join(f"{problem.where}: {problem.what}" for problem in problems)
        raise Invalid(f'{kind.name} "{metadata.name}" is invalid: {texts}', problems)
    return metadata


def _is_shared(metadata: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether all validated parts are the same Python objects in both versions. The name cannot change."""
    return all(metadata.get(key) is before.get(key) for key in _CHECKED_FIELDS)


def _name_problems(kind: Kind, name: str) -> Iterator[Problem]:
    if not name:
        yield Problem(where="metadata.name", what="Required value: name or generateName is required", expected="a name")
        return
    longest = _NAMESPACE_LENGTH_MAX if kind == NAMESPACE else _NAME_LENGTH_MAX
    if len(name) > longest or not _NAME.fullmatch(name) or (kind == NAMESPACE and "." in name):
        what = f"Invalid value: {name[:_NAME_LENGTH_MAX]!r}: must be {_NAME_TEXT}, at most {longest} characters"
        yield Problem(where="metadata.name", what=what, expected=_NAME_TEXT)


def _label_problems(labels: Mapping[str, str]) -> Iterator[Problem]:
    for pair in labels.items():
        if not _is_label(pair):
            what = f"Invalid value: {pair[0]!r}: {pair[1]!r}: not a label's name and value"
            yield Problem(where="metadata.labels", what=what, expected="at most 63 letters, digits, '-', '_' and '.'")


@functools.lru_cache(_PAIRS_SEEN_MAX)
def _is_label(pair: tuple[str, str]) -> bool:
    return bool(_QUALIFIED.fullmatch(pair[0]) and _LABEL_VALUE.fullmatch(pair[1]))


def _other_problems(metadata: ObjectMetadata) -> Iterator[Problem]:
    annotations = metadata.annotations or {}
    length = sum(len(key) + len(value) for key, value in annotations.items())
    if length > _ANNOTATIONS_LENGTH_MAX:
        what = f"Too long: {length} bytes, {_ANNOTATIONS_LENGTH_MAX} are allowed"
        yield Problem(where="metadata.annotations", what=what, expected="less")
    for key in annotations:
        if not _QUALIFIED.fullmatch(key.lower()):
            what = f"Invalid value: {key!r}: not an annotation's name"
            yield Problem(where="metadata.annotations", what=what, expected="a name like example.com/name")
    for finalizer in metadata.finalizers or ():
        if not _QUALIFIED.fullmatch(finalizer):
            what = f"Invalid value: {finalizer!r}: not a finalizer's name"
            yield Problem(where="metadata.finalizers", what=what, expected="a name like example.com/name")
    owners = metadata.owner_references or ()
    if sum(bool(owner.controller) for owner in owners) > 1:
        what = "Invalid value: only one owner may have controller set to true"
        yield Problem(where="metadata.ownerReferences", what=what, expected="one controller")
    for owner in owners:
        texts = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        for field in (field for field, text in texts.items() if not text):
            what = "Required value: an owner has apiVersion, kind, name and uid"
            yield Problem(where=f"metadata.ownerReferences.{field}", what=what, expected="all four")


class Stored(msgspec.Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """One version of an object: its JSON, and the fields by which the store indexes and selects it.

    ``key`` is (namespace, name), ``version`` the resource version, and ``encoded`` the JSON. ``fields`` are the values
    for field selectors, by path. ``is_deleting``: the object is marked for deletion.
    """

    key: Key
    uid: str
    version: int
    encoded: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    owner_uids: tuple[str, ...]
    is_deleting: bool


def selectable_fields(kind: Kind) -> tuple[str, ...]:
    """The fields by which objects of a kind can be selected."""
    return _EVERY_FIELD + _FIELDS.get(kind, ())


def stored(kind: Kind, whole: Object, metadata: ObjectMetadata, *, version: int) -> Stored:
    """Encode an object with a version. ``metadata`` is its parsed metadata. Raises ``Invalid``."""
    whole = {**whole, "metadata": {**whole["metadata"], "resourceVersion": str(version)}}
    key = (metadata.namespace or "", metadata.name or "")
    fields = {"metadata.name": key[1], "metadata.namespace": key[0]}
    for path in _FIELDS.get(kind, ()):
        fields[path] = _text_at(whole, path)
    return Stored(
        key=key,
        uid=metadata.uid or "",
        version=version,
        encoded=encode(whole),
        labels=metadata.labels or {},
        fields=fields,
        owner_uids=tuple(owner.uid for owner in metadata.owner_references or ()),
        is_deleting=metadata.deletion_timestamp is not None,
    )


def _text_at(whole: Object, path: str) -> str:
    value: object = whole
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else ""


def encode(whole: object) -> bytes:
    """Encode as JSON. Raises ``Invalid`` for values that only YAML or Python can hold."""
    try:
        return _encoder.encode(whole)
    except (UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise Invalid(f"the object cannot be written as JSON: {error}") from error


def decoded(encoded: bytes) -> Object:
    """Decode an object. The caller may change the result."""
    return _decoder.decode(encoded)
