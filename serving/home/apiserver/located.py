"""Find the values at a path such as ``spec.containers[*].image``, each with its own path. Pure."""

import functools
import re
from typing import Any

_PART = re.compile(r"([^.\[\]]+)|\[\*\]")


def located(value: object, at: str) -> list[tuple[str, Any]]:
    """All places that a path names, each with its value; ``[*]`` is every item of a list. Missing places are left out."""
    found: list[tuple[str, Any]] = [("", value)]
    for key in _steps(at):
        if key is None:
            found = [
                (f"{path}[{index}]", item)
                for path, items in found
                if isinstance(items, list)
                for index, item in enumerate(items)
            ]
        else:
            found = [
                (f"{path}.{key}" if path else key, one[key])
                for path, one in found
                if isinstance(one, dict) and one.get(key) is not None
            ]
    return found


@functools.cache
def _steps(at: str) -> tuple[str | None, ...]:
    """The keys of a path, and None for every item of a list."""
    return tuple(match.group(1) for match in _PART.finditer(at))
