r"""The part of JSONPath that printer columns use: ``.a.b``, ``['a\.b']``, ``[0]``, ``[*]``, ``[?(@.type=='Ready')]``.

``compiled`` converts a path to a function from an object to its value, or None. Of several values the first counts, as
in a kube-apiserver's columns.
"""

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

_TOKEN = re.compile(
    r"""\.(?P<key>(?:[^.\[\\]|\\.)+)
      | \[(?P<index>-?\d+)\]
      | \[(?P<all>\*)\]
      | \['(?P<quoted>(?:[^'\\]|\\.)+)'\]
      | \[\?\(@\.(?P<field>[\w.]+)\s*==\s*(?P<mark>['"])(?P<wanted>.*?)(?P=mark)\)\]""",
    re.VERBOSE,
)

_Step = Callable[[Any], Iterable[Any]]


@functools.cache
def compiled(path: str) -> Callable[[object], Any]:
    """Compile a path into a function that returns the first value. Raises ``ValueError`` for unsupported syntax."""
    find_all = compiled_all(path)

    def find(value: object) -> Any:  # noqa: ANN401 - JSON
        values = find_all(value)
        return values[0] if values else None

    return find


@functools.cache
def compiled_all(path: str) -> Callable[[object], list[Any]]:
    """Compile a path into a function that returns all values. Raises ``ValueError`` for unsupported syntax."""
    steps: list[_Step] = []
    text = path.removeprefix("{").removesuffix("}").removeprefix("$")
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"cannot read {path!r} from {text[at:]!r} on")
        steps.append(_step(match))
        at = match.end()

    def find_all(value: object) -> list[Any]:
        values: list[Any] = [value]
        for step in steps:
            values = [child for parent in values for child in step(parent)]
        return values

    return find_all


def _step(match: re.Match[str]) -> _Step:
    if match["index"] is not None:
        index = int(match["index"])
        return lambda value: value[index:][:1] if isinstance(value, list) else ()
    if match["all"]:
        return lambda value: value if isinstance(value, list) else ()
    if match["field"]:
        field, wanted = match["field"], match["wanted"]
        return lambda value: (
            [element for element in value if isinstance(element, dict) and str(element.get(field)) == wanted]
            if isinstance(value, list)
            else ()
        )
    key = re.sub(r"\\(.)", r"\1", match["key"] or match["quoted"])
    return lambda value: (value[key],) if isinstance(value, dict) and key in value else ()
