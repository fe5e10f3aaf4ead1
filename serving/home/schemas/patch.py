"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902) on plain JSON values.

Input: a value and a patch; output: a new value. The inputs never change; the result of a merge patch may share parts
with both. JSON patches are applied by the ``jsonpatch`` library. Strategic merge patches, which support Kubernetes'
lists, are in ``home/schemas/strategic.py``. Pure.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jsonpatch
import jsonpointer
import msgspec

from serving.core.model.errors import Invalid
from serving.home.schemas.schema import DEPTH_MAX, deep_copy, is_shallow, is_within

# Most values in an object, at 10 µs of checks each. Kubernetes' largest EndpointSlice has 15,000.
VALUES_MAX = 20_000
# Most values in an applied configuration: each is compared with all managers', and listed as its manager's.
APPLIED_VALUES_MAX = VALUES_MAX // 2
# kube-apiserver's limit of operations in a JSON patch.
JSON_OPERATIONS_MAX = 10_000

# Most values in all operations together.
JSON_PATCH_VALUES_MAX = 3 * VALUES_MAX
# Longest path: an annotation key has 317 characters, each of which may be escaped.
_POINTER_LENGTH_MAX = 2048
_POINTER_DEPTH_MAX = 100
# Most parts of all paths together, each of which visits a value.
_POINTER_PARTS_MAX = JSON_PATCH_VALUES_MAX

# ``dict`` is checked first, because showing that a value is not a ``Mapping`` takes ten times as long.
_OBJECT = (dict, Mapping)
# kube-apiserver's limit on bytes added by a patch's copies.
_COPIED_BYTES_MAX = 3 * 2**20

# Exceptions of the library for inapplicable patches: its own, and Python's where it does not check.
_PATCH_FAILURES = (
    *(jsonpatch.JsonPatchException, jsonpointer.JsonPointerException),
    *(AttributeError, IndexError, KeyError, TypeError, ValueError),
)


def merge_patch(target: Any, patch: Any) -> Any:  # noqa: ANN401 - JSON
    """The target after a merge patch: null removes, objects are merged, all else replaces.

    {"a": 1, "b": 2} with {"b": null, "c": {"d": null}} is {"a": 1, "c": {}}.
    """
    if not isinstance(patch, _OBJECT):
        return patch
    merged = dict(target) if isinstance(target, _OBJECT) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, _OBJECT):
            merged[key] = merge_patch(merged.get(key), value)
        else:
            merged[key] = value
    return merged


def same_json(first: object, other: object) -> bool:
    """Whether two JSON values are equal. As in JSON and unlike in Python, 1 equals 1.0 but not true.

    Parts that are the same Python object are not compared, so that after a patch only changed parts cost time.
    """
    # Python's comparison is 20 times faster than a walk, and most writes change something.
    return first == other and _has_same_booleans(first, other)


def _has_same_booleans(first: Any, other: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether two values that are equal in Python have booleans at the same places."""
    if first is other:
        return True
    if isinstance(first, dict):
        pairs = [(value, other[key]) for key, value in first.items() if type(value) is not str]
    elif isinstance(first, list):
        pairs = [(value, there) for value, there in zip(first, other, strict=True) if type(value) is not str]
    else:
        return isinstance(first, bool) is isinstance(other, bool)
    return all(_has_same_booleans(value, there) for value, there in pairs)


def json_patch(target: Any, operations: Sequence[object]) -> Any:  # noqa: ANN401 - JSON
    """The target after all operations. Raises ``Invalid`` for the first failing one, without changes."""
    check_operations(operations)
    result = deep_copy(target)
    copied_bytes = 0
    for number, operation in enumerate(operations):
        try:
            patch = _JsonPatch([deep_copy(operation)])
            copied_bytes = _with_copy(copied_bytes, result, operation)
            result = patch.apply(result, in_place=True)
        except (*_PATCH_FAILURES, _RefusedOperation) as error:
            name = operation.get("op") if isinstance(operation, Mapping) else operation
            reason = str(error) or type(error).__name__
            raise Invalid(f"operation {number} of the JSON patch, {name!r}: {reason}") from error
    return result


def check_operations(operations: Sequence[object]) -> None:
    """Raise ``Invalid`` for a JSON patch with too many operations, or with paths that are too deep."""
    if len(operations) > JSON_OPERATIONS_MAX:
        raise Invalid(f"a JSON patch has at most {JSON_OPERATIONS_MAX} operations, this has {len(operations)}")
    part_count = 0
    for operation in operations:
        for key in ("path", "from"):
            pointer = operation.get(key) if isinstance(operation, dict) else None
            if not isinstance(pointer, str):
                continue
            part_count += pointer.count("/")
            if len(pointer) > _POINTER_LENGTH_MAX or pointer.count("/") > _POINTER_DEPTH_MAX:
                limits = f"{_POINTER_LENGTH_MAX} characters and {_POINTER_DEPTH_MAX} parts"
                raise Invalid(f"a {key} of a JSON patch has at most {limits}: {pointer[:100]!r}...")
    if part_count > _POINTER_PARTS_MAX:
        raise Invalid(f"the paths of a JSON patch have at most {_POINTER_PARTS_MAX} parts, these have {part_count}")


def check_depth(value: object) -> None:
    """Raise ``Invalid`` for an object or patch that is nested too deeply."""
    if not is_shallow(value):
        raise Invalid(f"the object is nested too deep: expected at most {DEPTH_MAX} levels")


def check_values(result: object) -> None:
    """Raise ``Invalid`` for an object with too many values."""
    # A value takes at least two bytes of JSON, whose length is known a hundred times sooner.
    if len(msgspec.json.encode(result)) > 2 * VALUES_MAX and not is_within(result, VALUES_MAX):
        raise Invalid(f"an object has at most {VALUES_MAX} values, members and elements together")


class _RefusedOperation(Exception):
    """An operation of a JSON patch that the library would accept but this server rejects."""


class _TestOperation(jsonpatch.TestOperation):  # type: ignore[misc, unused-ignore] # older versions of the library have no types
    """The operation ``test`` with JSON's equality, because in Python 1 equals true."""

    def apply(self, obj: Any) -> Any:  # noqa: ANN401 - JSON
        if "value" not in self.operation:
            raise _RefusedOperation("it has no value")
        if not same_json(self.pointer.resolve(obj), self.operation["value"]):
            raise _RefusedOperation(f"testing value {self.location} failed")
        return obj


class _JsonPatch(jsonpatch.JsonPatch):  # type: ignore[misc, unused-ignore] # older versions of the library have no types
    operations = MappingProxyType({**jsonpatch.JsonPatch.operations, "test": _TestOperation})


def _with_copy(copied_bytes: int, target: Any, operation: object) -> int:  # noqa: ANN401 - JSON
    """Return ``copied_bytes`` plus the bytes that the operation copies. Raises ``_RefusedOperation`` beyond the limit.

    Each copy may double the object, so that thirty copies would exhaust the memory.
    """
    if not isinstance(operation, Mapping) or operation.get("op") != "copy":
        return copied_bytes
    source = jsonpointer.resolve_pointer(target, operation["from"])
    if isinstance(source, dict | list) and not is_within(source, VALUES_MAX):
        raise _RefusedOperation(f"a copy has more than {VALUES_MAX} values")
    copied_bytes += len(msgspec.json.encode(source))
    if copied_bytes > _COPIED_BYTES_MAX:
        raise _RefusedOperation(f"copies make more than {_COPIED_BYTES_MAX} bytes")
    return copied_bytes
