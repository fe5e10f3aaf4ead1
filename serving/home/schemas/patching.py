"""Apply a patch of any type to an object. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from serving.cluster.kinds import Kind
from serving.cluster.port import PatchType
from serving.home.schemas.patch import json_patch, merge_patch
from serving.home.schemas.strategic import strategic_merge
from serving.model.errors import Invalid
from serving.model.objects import Object


def patched(
    kind: Kind, target: Object, patch: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, patch_type: PatchType
) -> Mapping[str, Any]:
    """The object after the patch. Raises ``Invalid`` if the patch does not fit its type or leaves no object."""
    try:
        match patch_type, patch:
            case PatchType.JSON, Sequence():
                result = json_patch(target, patch)
            case PatchType.MERGE, Mapping():
                result = merge_patch(target, patch)
            case PatchType.STRATEGIC, Mapping():
                result = strategic_merge(kind, target, patch)
            case _:
                raise Invalid(
                    f"a patch of type {patch_type} is {'a list' if patch_type is PatchType.JSON else 'an object'}"
                )
    except RecursionError as error:
        raise Invalid("the patch is nested too deep") from error
    if not isinstance(result, Mapping):
        raise Invalid("the patch does not leave an object")
    return result
