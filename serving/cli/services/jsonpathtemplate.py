r"""kubectl's JSONPath templates for ``-o jsonpath``: text, ``{.path}``, ``{"\n"}`` and ``{range .items[*]}...{end}``.

Paths are those of ``cluster.api.jsonpath``. Several values are separated by a space, a missing one is empty, and what is no text
is JSON, as in kubectl.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from serving.home.apiserver.jsonpath import compiled_all
from serving.model.errors import InvalidValue

_PART = re.compile(r"\{(?P<expression>(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|[^{}'\"])*)\}|(?P<text>[^{}]+)")
_RANGE, _END = "range ", "end"
_ESCAPES = {r"\n": "\n", r"\t": "\t"}


def rendered(template: str, value: object) -> str:
    """The template with the values of an object. Raises ``InvalidValue`` for a template that cannot be read."""
    # A path alone needs no braces.
    parts = _parts(template if "{" in template else f"{{{template}}}")
    text, rest = _block(parts, value, is_inner=False)
    assert not rest, rest
    return text


def _parts(template: str) -> list[tuple[bool, str]]:
    """Whether it is an expression, and its text, for each part."""
    found: list[tuple[bool, str]] = []
    at = 0
    while at < len(template):
        match = _PART.match(template, at)
        if match is None:
            raise InvalidValue(text=template[at:], expected="text, or an expression in braces as {.metadata.name}")
        is_expression = match["expression"] is not None
        found.append((is_expression, match["expression"].strip() if is_expression else match["text"]))
        at = match.end()
    return found


def _block(
    parts: Sequence[tuple[bool, str]], value: object, *, is_inner: bool
) -> tuple[str, Sequence[tuple[bool, str]]]:
    """The text up to the end of this block, and the parts after it."""
    texts: list[str] = []
    while parts:
        (is_expression, text), *parts = parts
        if not is_expression:
            texts.append(_unescaped(text))
        elif text == _END:
            if not is_inner:
                raise InvalidValue(text="{end}", expected="a {range ...} before it")
            return "".join(texts), parts
        elif text.startswith(_RANGE):
            body = parts
            # Without an element, the block is passed over all the same.
            _, parts = _block(body, None, is_inner=True)
            texts += [_block(body, one, is_inner=True)[0] for one in _values(text.removeprefix(_RANGE), value)]
        elif text[:1] in {'"', "'"}:
            texts.append(_unescaped(text[1:-1]))
        else:
            texts.append(" ".join(map(_shown, _values(text, value))))
    if is_inner:
        raise InvalidValue(text="{range ...}", expected="an {end} after it")
    return "".join(texts), ()


def _values(path: str, value: object) -> list[Any]:
    try:
        found = compiled_all(path.strip().removeprefix("@"))(value)
    except ValueError as error:
        raise InvalidValue(
            text=path, expected="a path as .spec.traffic[0].percent or .items[*].metadata.name"
        ) from error
    return [one for one in found if one is not None]


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _unescaped(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text
