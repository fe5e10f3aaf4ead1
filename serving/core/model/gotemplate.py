"""Parses and fills the parts of Go's text/template that host names and log lines need. Pure.

Supported are fields (``.Name``, ``.Labels.app``) and their methods (``.Header.Get "Via"``), texts, numbers, pipes,
brackets, ``if``, ``else``, ``with`` and the functions in ``_FUNCTIONS``. Variables, ``range``, ``define`` and ``block``
are refused. A field that a mapping lacks is "<no value>", as in Go; with ``index`` it is "".
"""

import functools
import json
import operator
import re
import string
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import quote_plus

from serving.core.model.errors import InvalidValue

_ACTION = re.compile(r"\{\{(- )?(.*?)( -)?\}\}", re.DOTALL)
_TOKEN = re.compile(r"""\s*("(?:[^"\\\n]|\\.)*"|`[^`]*`|-?\d+|(?:\.\w+)+|\.|\w+|[()|])""", re.ASCII)
_EXPECTED = "a template of Go with fields, texts, pipes, if, else, with, end and the functions "
_NO_VALUE = "<no value>"
_VERB = re.compile(r"%(?:([%svdq])|(?:\.\d{1,2})?f)")
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})
_SCRIPT = str.maketrans(
    {f"{character}": f"\\u{ord(character):04X}" for character in (*map(chr, range(32)), *"<>&=")}
    | {character: f"\\{character}" for character in "\\'\""}
)
# Bounds on the nesting and length of a template.
_NESTED_MAX = 20
_TEXT_MAX = 4096

_Value = Callable[[object], object]
"""A part of a template: its value for the dot."""


class _Broken(Exception):
    """The reason that a template is invalid or has no value."""


class Fields(dict[str, object]):
    """A Go struct: a missing field is an error, unlike in a map. ``text`` is its printed form; "" forbids printing."""

    def __init__(self, fields: Mapping[str, object], text: str = "") -> None:
        super().__init__(fields)
        self.text = text


def fill_template(text: str, data: Mapping[str, object]) -> str:
    """Fill a template with ``data``. Raises ``InvalidValue`` if the template is invalid or cannot be filled."""
    try:
        template = _parsed(text)
    except _Broken as error:
        raise InvalidValue(text=text, expected=f"{_EXPECTED}{', '.join(_FUNCTIONS)}: {error}") from error
    try:
        return str(template(Fields(data)))
    except _Broken as error:
        raise InvalidValue(text=text, expected=f"a template that has a value here: {error}") from error


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> _Value:
    if len(text) > _TEXT_MAX:
        raise _Broken(f"it has more than {_TEXT_MAX} characters")
    template, ending = _block([*_parts(text)][::-1], depth=0)
    if ending:
        raise _Broken(f"{{{{{ending}}}}} ends nothing")
    return template


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Split a template into its parts, in order: whether a part is an action (``{{...}}``), and its text."""
    end, trims = 0, False
    for match in _ACTION.finditer(text):
        before = text[end : match.start()]
        before = before.lstrip() if trims else before
        yield False, before.rstrip() if match[1] else before
        yield True, match[2].strip()
        end, trims = match.end(), bool(match[3])
    rest = text[end:].lstrip() if trims else text[end:]
    if "{{" in rest or "}}" in rest:
        raise _Broken("an action is not closed")
    yield False, rest


def _block(parts: list[tuple[bool, str]], *, depth: int) -> tuple[_Value, str]:
    """Parse parts up to an ``end`` or ``else``; return the parsed block, and the text of this action.

    The text is "" at the template's end. ``parts`` are in reverse order; the parsed ones are removed.
    """
    if depth > _NESTED_MAX:
        raise _Broken("it is nested too deeply")
    values: list[_Value] = []
    ending = ""
    while parts and not ending:
        is_action, text = parts.pop()
        word = _word(text)
        if not is_action:
            values.append(_constant(text))
        elif text.startswith("/*") and text.endswith("*/"):
            continue
        elif word in ("end", "else"):
            ending = text
        elif word in ("if", "with"):
            values.append(_branch(parts, text, depth=depth + 1))
        else:
            values.append(_pipe(text))
    return lambda dot: "".join(_shown(value(dot)) for value in values), ending


def _branch(parts: list[tuple[bool, str]], text: str, *, depth: int) -> _Value:
    """Parse the action ``text``, an ``if`` or ``with``. Within a ``with``, the dot is the value of the condition."""
    word = _word(text)
    condition = _pipe(text.removeprefix(word))
    then, ending = _block(parts, depth=depth)
    otherwise = _constant("")
    if again := ending.removeprefix("else").strip() if ending.startswith("else") else "":
        if _word(again) not in ("if", "with"):
            raise _Broken(f"{{{{{ending}}}}} is not right")
        otherwise, ending = _branch(parts, again, depth=depth + 1), "end"
    elif ending == "else":
        otherwise, ending = _block(parts, depth=depth)
    if ending != "end":
        raise _Broken(f"{{{{{word}}}}} has no {{{{end}}}}")

    def chosen(dot: object) -> object:
        value = condition(dot)
        if not value:
            return otherwise(dot)
        return then(value if word == "with" else dot)

    return chosen


def _word(text: str) -> str:
    return text[: len(text) - len(text.lstrip(string.ascii_lowercase))]


def _pipe(text: str) -> _Value:
    tokens: list[str] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise _Broken(f"{text[at:].strip()[:40]!r} is not understood")
        tokens.append(match[1])
        at = match.end()
    tokens.reverse()
    pipe = _commands(tokens, depth=0)
    if tokens:
        raise _Broken("a bracket closes nothing")
    return pipe


def _commands(tokens: list[str], *, depth: int) -> _Value:
    """Parse a pipe of commands. Each command gets the previous command's value as its last argument.

    ``tokens`` are in reverse order; they are removed up to a closing bracket.
    """
    if depth > _NESTED_MAX:
        raise _Broken("it is nested too deeply")
    commands: list[list[_Value | str]] = [[]]
    while tokens and tokens[-1] != ")":
        text = tokens.pop()
        if text == "|":
            commands.append([])
        elif text == "(":
            commands[-1].append(_commands(tokens, depth=depth + 1))
            if not tokens:
                raise _Broken("a bracket is not closed")
            tokens.pop()
        else:
            commands[-1].append(_operand(text))
    if not all(commands):
        raise _Broken("a value is missing")
    return functools.partial(_piped, commands)


def _piped(commands: list[list[_Value | str]], dot: object) -> object:
    values: list[object] = []
    for first, *rest in commands:
        values = [_value(first, dot, [*(_value(operand, dot, []) for operand in rest), *values])]
    return values[0]


def _operand(text: str) -> _Value | str:
    match text[0]:
        case '"':
            try:
                return _constant(str(json.loads(text)))
            except ValueError:
                raise _Broken(f"{text} is no text") from None
        case "`":
            return _constant(text[1:-1])
        case ".":
            names = [name for name in text.split(".") if name]
            return lambda dot: functools.reduce(_field, names, dot)
        case "-" | "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9":
            return _constant(int(text))
    if text in ("true", "false"):
        return _constant(text == "true")
    if text not in _FUNCTIONS:
        raise _Broken(f"there is no function {text}")
    return text


def _constant(value: object) -> _Value:
    return lambda _dot: value


def _value(operand: _Value | str, dot: object, arguments: list[object]) -> object:
    function = _FUNCTIONS[operand] if isinstance(operand, str) else operand(dot)
    if not callable(function):
        if arguments:
            raise _Broken("only a function takes arguments")
        return function
    try:
        return function(*arguments)
    except (TypeError, ValueError, LookupError) as error:
        raise _Broken(f"{operand if isinstance(operand, str) else 'a method'}: {error}") from error


def _field(value: object, name: str) -> object:
    if not isinstance(value, Mapping):
        raise _Broken(f"there is no field {name}")
    if isinstance(value, Fields) and name not in value:
        raise _Broken(f"there is no field {name}")
    return value.get(name)


def _shown(value: object) -> str:
    match value:
        case None:
            return _NO_VALUE
        case bool() | float():
            return str(value).lower().removesuffix(".0")
        case tuple():
            return f"[{' '.join(map(_shown, value))}]"
        case Fields(text=text):
            if not text:
                raise _Broken("a field of it is missing")
            return text
        case Mapping():
            return f"map[{' '.join(f'{key}:{_shown(value[key])}' for key in sorted(value))}]"
    return str(value)


def _index(value: object, *keys: object) -> object:
    for key in keys:
        if isinstance(value, Mapping):
            value = value.get(key, "")
        elif isinstance(value, str | tuple) and isinstance(key, int) and 0 <= key < len(value):
            value = ord(value[key]) if isinstance(value, str) else value[key]
        else:
            raise LookupError(f"cannot index with {key!r}")
    return value


def _slice(text: str, *bounds: int) -> str:
    first, last = (*bounds, 0)[0], bounds[1] if len(bounds) > 1 else len(text)
    if not 0 <= first <= last <= len(text):
        raise ValueError(f"index out of range for {text!r}")
    return text[first:last]


def _printf(form: str, *values: object) -> str:
    rest = list(values)

    def formatted(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        if not rest:
            raise ValueError("too few values")
        value = rest.pop(0)
        if not match[1]:
            return match[0] % value
        return json.dumps(value) if match[1] == "q" else _shown(value)

    text = _VERB.sub(formatted, form)
    if rest or "%" in _VERB.sub("", form):
        raise ValueError("values and verbs do not match")
    return text


def _print(*values: object) -> str:
    return "".join(map(_shown, values))


def _and(*values: object) -> object:
    return next((value for value in values if not value), values[-1])


def _or(*values: object) -> object:
    return next((value for value in values if value), values[-1])


_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "and": _and,
    "or": _or,
    "not": operator.not_,
    "eq": lambda first, *others: any(first == other for other in others),
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "html": lambda *values: _print(*values).translate(_HTML),
    "index": _index,
    "js": lambda *values: _print(*values).translate(_SCRIPT),
    "len": len,
    "print": _print,
    "printf": _printf,
    "slice": _slice,
    "urlquery": lambda *values: quote_plus(_print(*values)),
}
