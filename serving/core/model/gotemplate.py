"""Parses and fills Go's text/template, as far as host names need it. Pure.

Fields (``.Name``, ``.Labels.app``), texts, numbers, pipes, brackets, ``if``, ``else``, ``with`` and the functions in ``_FUNCTIONS``. Variables,
``range``, ``define`` and ``block`` are refused. A field that a mapping does not have is "<no value>", as in Go; by ``index`` it is "".
"""

import functools
import json
import operator
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.errors import InvalidValue

_ACTION = re.compile(r"\{\{(- )?(.*?)( -)?\}\}", re.DOTALL)
_TOKEN = re.compile(r"""\s*("(?:[^"\\\n]|\\.)*"|`[^`]*`|-?\d+|(?:\.\w+)+|\.|\w+|[()|])""", re.ASCII)
_EXPECTED = "a template of Go with fields, texts, pipes, if, else, with, end and the functions "
_NO_VALUE = "<no value>"
# Bounds on the nesting and length of a template.
_NESTED_MAX = 20
_TEXT_MAX = 4096


class Text(msgspec.Struct, frozen=True):
    """Literal text."""

    text: str


class Pipe(msgspec.Struct, frozen=True):
    """Commands joined by "|": each takes the previous result as its last argument. Operands are values, paths, pipes."""

    commands: tuple[tuple[Any, ...], ...]


class Path(msgspec.Struct, frozen=True):
    """The field names from the dot to a value; an empty path is the dot."""

    names: tuple[str, ...]


class Name(msgspec.Struct, frozen=True):
    """A function name."""

    name: str


class Branch(msgspec.Struct, frozen=True):
    """An ``if``, or a ``with`` where ``moves_dot`` is set."""

    condition: Pipe
    then: "tuple[Node, ...]"
    otherwise: "tuple[Node, ...]"
    moves_dot: bool


Node = Text | Pipe | Branch


class _Broken(Exception):
    """The reason that a template is invalid or has no value."""


@functools.lru_cache(maxsize=64)
def parse_template(text: str) -> tuple[Node, ...]:
    """Parse a template. Raises ``InvalidValue``."""
    try:
        return _Parts(text).whole()
    except _Broken as error:
        raise InvalidValue(text=text, expected=f"{_EXPECTED}{', '.join(_FUNCTIONS)}: {error}") from error


def fill_template(text: str, data: Mapping[str, object]) -> str:
    """The text of a template filled with ``data``. Raises ``InvalidValue`` if it is invalid or has no value."""
    nodes = parse_template(text)
    try:
        return _rendered(nodes, _Fields(data))
    except _Broken as error:
        raise InvalidValue(text=text, expected=f"a template that has a value here: {error}") from error


class _Fields(dict[str, object]):
    """The fields of a template. Only Labels and Annotations may have unknown keys."""


class _Parts:
    """A cursor over the texts and actions of a template."""

    def __init__(self, text: str) -> None:
        if len(text) > _TEXT_MAX:
            raise _Broken(f"it has more than {_TEXT_MAX} characters")
        self._parts: list[tuple[bool, str]] = []
        end, trims = 0, False
        for match in _ACTION.finditer(text):
            before = text[end : match.start()]
            before = before.lstrip() if trims else before
            self._parts.append((False, before.rstrip() if match[1] else before))
            self._parts.append((True, match[2].strip()))
            end, trims = match.end(), bool(match[3])
        rest = text[end:].lstrip() if trims else text[end:]
        if "{{" in rest or "}}" in rest:
            raise _Broken("an action is not closed")
        self._parts.append((False, rest))
        self._parts.reverse()
        self.ending = ""

    def whole(self) -> "tuple[Node, ...]":
        """All nodes of the template."""
        nodes = self.until_end(depth=0)
        if self.ending:
            raise _Broken(f"{{{{{self.ending}}}}} ends nothing")
        return nodes

    def until_end(self, *, depth: int) -> "tuple[Node, ...]":
        """The nodes up to the next ``end`` or ``else``, which is stored in ``ending``; "" at the end of the text."""
        if depth > _NESTED_MAX:
            raise _Broken("it is nested too deeply")
        nodes: list[Node] = []
        self.ending = ""
        while self._parts:
            is_action, text = self._parts.pop()
            word = _word(text)
            if not is_action:
                nodes += [Text(text)] if text else []
            elif text.startswith("/*") and text.endswith("*/"):
                continue
            elif word in ("end", "else"):
                self.ending = text
                break
            elif word in ("if", "with"):
                nodes.append(self._branch(word, text.removeprefix(word), depth=depth + 1))
            else:
                nodes.append(_pipe(text))
        return tuple(nodes)

    def _branch(self, word: str, condition: str, *, depth: int) -> Branch:
        then = self.until_end(depth=depth)
        otherwise: tuple[Node, ...] = ()
        if self.ending.startswith("else"):
            again = self.ending.removeprefix("else").strip()
            if again:
                kind = _word(again)
                if kind not in ("if", "with"):
                    raise _Broken(f"{{{{{self.ending}}}}} is not right")
                otherwise = (self._branch(kind, again.removeprefix(kind), depth=depth + 1),)
                return Branch(_pipe(condition), then, otherwise, word == "with")
            otherwise = self.until_end(depth=depth)
        if self.ending != "end":
            raise _Broken(f"{{{{{word}}}}} has no {{{{end}}}}")
        self.ending = ""
        return Branch(_pipe(condition), then, otherwise, word == "with")


def _word(text: str) -> str:
    return text[: len(text) - len(text.lstrip(string.ascii_lowercase))]


def _pipe(text: str) -> Pipe:
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


def _commands(tokens: list[str], *, depth: int) -> Pipe:
    if depth > _NESTED_MAX:
        raise _Broken("it is nested too deeply")
    commands: list[list[Any]] = [[]]
    while tokens and tokens[-1] != ")":
        text = tokens.pop()
        if text == "|":
            commands.append([])
        elif text == "(":
            inner = _commands(tokens, depth=depth + 1)
            if not tokens:
                raise _Broken("a bracket is not closed")
            tokens.pop()
            commands[-1].append(inner)
        else:
            commands[-1].append(_operand(text))
    if not all(commands):
        raise _Broken("a value is missing")
    for position, command in enumerate(commands):
        if not isinstance(command[0], Name) and (len(command) > 1 or position):
            raise _Broken("only a function takes arguments")
    return Pipe(tuple(map(tuple, commands)))


def _operand(text: str) -> object:
    match text[0]:
        case '"':
            try:
                return str(json.loads(text))
            except ValueError:
                raise _Broken(f"{text} is no text") from None
        case "`":
            return text[1:-1]
        case ".":
            return Path(tuple(name for name in text.split(".") if name))
        case "-" | "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9":
            return int(text)
    if text in ("true", "false"):
        return text == "true"
    if text not in _FUNCTIONS:
        raise _Broken(f"there is no function {text}")
    return Name(text)


def _rendered(nodes: "Sequence[Node]", dot: object) -> str:
    return "".join(_rendered_node(node, dot) for node in nodes)


def _rendered_node(node: Node, dot: object) -> str:
    if isinstance(node, Text):
        return node.text
    if isinstance(node, Pipe):
        return _shown(_value(node, dot))
    value = _value(node.condition, dot)
    if not value:
        return _rendered(node.otherwise, dot)
    return _rendered(node.then, value if node.moves_dot else dot)


def _value(operand: object, dot: object) -> object:
    match operand:
        case Path(names):
            return functools.reduce(_field, names, dot)
        case Pipe(commands):
            piped: tuple[object, ...] = ()
            for command in commands:
                piped = (_command(command, dot, piped),)
            return piped[0]
        case Name():
            return _command((operand,), dot, ())
    return operand


def _command(command: tuple[Any, ...], dot: object, piped: tuple[object, ...]) -> object:
    first, *rest = command
    if not isinstance(first, Name):
        return _value(first, dot)
    arguments = [*(_value(operand, dot) for operand in rest), *piped]
    try:
        return _FUNCTIONS[first.name](*arguments)
    except (TypeError, ValueError, LookupError) as error:
        raise _Broken(f"{first.name}: {error}") from error


def _field(value: object, name: str) -> object:
    if not isinstance(value, Mapping):
        raise _Broken(f"there is no field {name}")
    if isinstance(value, _Fields) and name not in value:
        raise _Broken(f"there is no field {name}")
    return value.get(name)


def _shown(value: object) -> str:
    match value:
        case None:
            return _NO_VALUE
        case bool():
            return str(value).lower()
        case Mapping():
            return f"map[{' '.join(f'{key}:{_shown(value[key])}' for key in sorted(value))}]"
    return str(value)


def _index(value: object, *keys: object) -> object:
    for key in keys:
        if isinstance(value, Mapping):
            value = value.get(key, "")
        elif isinstance(value, str) and isinstance(key, int) and 0 <= key < len(value):
            value = ord(value[key])
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

    def one(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        if not rest:
            raise ValueError("too few values")
        value = rest.pop(0)
        return json.dumps(value) if match[1] == "q" else _shown(value)

    text = re.sub(r"%([%svdq])", one, form)
    if rest or re.search(r"%(?![svdq%])", form.replace("%%", "")):
        raise ValueError("values and verbs do not match")
    return text


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
    "index": _index,
    "len": len,
    "print": lambda *values: "".join(map(_shown, values)),
    "printf": _printf,
    "slice": _slice,
}
