"""Unknown and duplicate fields: rejected, reported as warnings, or ignored, as the parameter ``fieldValidation`` says.

Input: an object or a patch as sent; output: warnings, or ``Fault`` 400 for the level Strict, which kubectl asks for. A patch
is checked as the partial object that it is.
"""

import re
from collections.abc import Mapping
from typing import Any

from serving.cluster.kinds import Kind
from serving.cluster.port import PatchType
from serving.home.admission.admission import unknown
from serving.home.apiserver.requests import Fault
from serving.model.objects import Object

_LEVELS = ("", "Ignore", "Strict", "Warn")
_HEADER_LENGTH_MAX = 1024
_INDEX = re.compile(r"(\d+|-)\Z")


def check_fields(kind: Kind, written: list[Object], *, duplicates: list[str], level: str) -> list[str]:
    """Warnings about unknown and duplicate fields; none for Ignore. Raises ``Fault`` 400 for Strict."""
    if level not in _LEVELS:
        choices = ", ".join(one for one in _LEVELS if one)
        raise Fault(400, f"invalid value for fieldValidation: {level!r}; expected one of {choices}")
    if level == "Ignore":
        return []
    found = [f'unknown field "{path}"' for body in written for path in unknown(kind, body)]
    found = list(dict.fromkeys([*found, *(f'duplicate field "{name}"' for name in duplicates)]))
    if found and level == "Strict":
        named = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}'
        raise Fault(400, f"{named}: strict decoding error: {', '.join(found)}")
    return found


def touched(patch: Any, patch_type: PatchType) -> list[Object]:  # noqa: ANN401 - as it was sent
    """The partial objects written by a patch."""
    if patch_type is not PatchType.JSON:
        return [_without_directives(patch)] if isinstance(patch, dict) else []
    operations = [one for one in patch if isinstance(one, dict)] if isinstance(patch, list) else []
    return [
        _nested(str(one.get("path", "")), one.get("value"))
        for one in operations
        if one.get("op") in {"add", "replace"} and one.get("path")
    ]


def _nested(pointer: str, value: object) -> Object:
    """The object with only the target of a JSON pointer set: "/spec/a/0" with 1 is {"spec": {"a": [1]}}."""
    for part in reversed(pointer.lstrip("/").split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        value = [value] if _INDEX.match(key) else {key: value}
    return value if isinstance(value, dict) else {}


def _without_directives(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A merge patch without directives such as ``$patch``, and without the fields that it deletes."""
    if isinstance(value, Mapping):
        return {
            key: _without_directives(one) for key, one in value.items() if not key.startswith("$") and one is not None
        }
    if isinstance(value, list):
        return [_without_directives(one) for one in value]
    return value


def warning_header(text: str) -> str:
    """A ``Warning`` header: code 299, no agent, and the text quoted, on one line, in ASCII."""
    plain = " ".join(text.split()).encode("ascii", "replace").decode()
    escaped = plain[:_HEADER_LENGTH_MAX].replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{escaped}"'
