"""The part of Go's text/template used by templates of log lines.

Input: a text with actions in ``{{`` and ``}}``; output: a function from values to text. Actions: fields (``.Request.Method``), calls
(``index .Request.Header "Via"``, ``js .Request.URL``, ``.Request.Header.Get "Via"``), pipelines, parentheses, literals, comments,
``if``, ``else`` and ``end``, and markers that trim white space. There are no variables, ``range``, ``with`` or ``define``.

Values are texts, numbers, flags, lists and maps. A map stands for a struct too: a field that it does not have is an error. A ``ValueMap``
has methods; ``String`` is how it is printed. Source: pkg.go.dev/text/template.
"""

import math
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NoReturn

Template = Callable[[Mapping[str, Any]], str]
"""Renders values. Raises ``TemplateError`` if they do not fit."""

_Expression = Callable[[Mapping[str, Any]], Any]
_Render = Callable[[Mapping[str, Any]], str]

_OPEN, _CLOSE = "{{", "}}"
_TOKEN = re.compile(
    r"""\s*(?:(?P<end>(?:(?<=\s)-)?\}\})|(?P<text>"(?:[^"\\\n]|\\.)*"|`[^`]*`)|(?P<number>-?\d+(?:\.\d+)?)"""
    r"""|(?P<field>(?:\.[A-Za-z_]\w*)+|\.)|(?P<word>[A-Za-z_]\w*)|(?P<mark>[()|]))"""
)
_COMMENT = re.compile(r"-?\s*/\*.*?\*/\s*-?\}\}", re.DOTALL)
_VERB = re.compile(r"%(?P<flags>[-+ 0]*\d*(?:\.\d+)?)(?P<verb>[a-zA-Z%])")
_STATEMENTS = ("if", "else", "end")
_CONSTANTS = {"true": True, "false": False, "nil": None}
_SHOWN = 20
# As Go's template.JSEscapeString writes them.
_JS = {
    **{chr(code): f"\\u{code:04X}" for code in range(32)},
    "\\": "\\\\",
    "'": "\\'",
    '"': '\\"',
    "<": "\\u003C",
    ">": "\\u003E",
    "&": "\\u0026",
    "=": "\\u003D",
}
_JS_CHARACTER = re.compile(r"[\x00-\x1f\\'\"<>&=]")


class TemplateError(ValueError):
    """An invalid template, or values that do not fit it, such as a missing field or a wrong argument."""


class ValueMap(dict[str, Any]):
    """A map with methods. ``default`` is the value of missing keys; None makes them an error."""

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        methods: Mapping[str, Callable[..., Any]],
        default: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__(values)
        self.methods = methods
        self._default = default

    def __missing__(self, key: str) -> Any:  # noqa: ANN401 - any value of a template
        if self._default is None:
            raise KeyError(key)
        return self._default(key)


def parse_template(text: str) -> Template:
    """Compile a template into a function. Raises ``TemplateError`` with the place of the first mistake."""
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._trims = False

    def whole(self) -> Template:
        render, ended_by = self._block(())
        assert not ended_by
        return render

    def _fail(self, what: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise TemplateError(f"line {line}, at {self._text[max(0, self._at - _SHOWN) : self._at + _SHOWN]!r}: {what}")

    def _block(self, ends: Sequence[str]) -> tuple[_Render, str]:
        """Parse everything up to one of the given statements; return that statement too."""
        parts: list[_Render] = []
        while True:
            start = self._text.find(_OPEN, self._at)
            literal = self._text[self._at : start if start >= 0 else None]
            literal = literal.lstrip() if self._trims else literal
            self._trims = False
            if start < 0:
                if ends:
                    self._fail(f"{' or '.join(ends)} is missing")
                return _joined([*parts, _constant(literal)]), ""
            self._at = start + len(_OPEN)
            if re.match(r"-\s", self._text[self._at : self._at + 2]):
                self._at += 1
                literal = literal.rstrip()
            parts.append(_constant(literal))
            statement = self._action(parts)
            if statement:
                if statement not in ends:
                    self._fail(f"{statement} without an if")
                return _joined(parts), statement

    def _action(self, parts: list[_Render]) -> str:
        """Parse one action; return "end" or "else" for these statements."""
        comment = _COMMENT.match(self._text, self._at)
        if comment:
            self._at = comment.end()
            self._trims = comment[0].endswith("-}}")
            return ""
        start = self._at
        kind, word = self._next()
        if kind == "word" and word in _STATEMENTS:
            if word != "if":
                return word
            parts.append(self._condition())
            return ""
        self._at = start
        value = self._pipeline("end")
        parts.append(lambda values: _printed(value(values)))
        return ""

    def _condition(self) -> _Render:
        """Parse the condition after "if"."""
        test = self._pipeline("end")
        body, ended_by = self._block(("end", "else"))
        otherwise = _constant("")
        if ended_by == "else":
            start = self._at
            kind, word = self._next()
            if (kind, word) == ("word", "if"):
                otherwise = self._condition()
                return lambda values: body(values) if test(values) else otherwise(values)
            self._at = start
            self._close()
            otherwise, _ = self._block(("end",))
        self._close()
        return lambda values: body(values) if test(values) else otherwise(values)

    def _close(self) -> None:
        kind, word = self._next()
        if kind != "end":
            self._fail(f"unexpected {word}")

    def _next(self) -> tuple[str, str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            self._fail("the action is not closed" if _CLOSE not in self._text[self._at :] else "unexpected character")
        self._at = match.end()
        kind, word = match.lastgroup, match[match.lastgroup]
        if kind == "end":
            self._trims = word.startswith("-")
        return kind, word

    def _pipeline(self, until: str) -> _Expression:
        """Parse commands between ``|``; each gets the previous result as its last argument."""
        value: _Expression | None = None
        while True:
            command, ended_by = self._command(value)
            value = command
            if ended_by == "|":
                continue
            if ended_by != until:
                self._fail(f"unexpected {ended_by}")
            return value

    def _command(self, piped: _Expression | None) -> tuple[_Expression, str]:
        operands: list[_Expression] = []
        called: str | None = None
        while True:
            kind, word = self._next()
            if kind == "end" or word in (")", "|"):
                break
            if kind == "word" and word not in _CONSTANTS:
                if operands or called or word not in _FUNCTIONS:
                    self._fail(f"{word} is no function here")
                called = word
                continue
            operands.append(self._operand(kind, word))
        arguments = [*operands, *([piped] if piped else ())]
        ended_by = "end" if kind == "end" else word
        if called is not None:
            function = _FUNCTIONS[called]
            return lambda values: _call(function, [argument(values) for argument in arguments], called), ended_by
        if not operands:
            self._fail("a value is missing")
        if len(arguments) == 1:
            return lambda values: _value(arguments[0](values)), ended_by
        first, rest = arguments[0], arguments[1:]
        return lambda values: _call(first(values), [operand(values) for operand in rest], "a field"), ended_by

    def _operand(self, kind: str, word: str) -> _Expression:
        if kind == "field":
            path = word.split(".")[1:] if word != "." else []
            return lambda values: _field(values, path)
        if word == "(":
            inner = self._pipeline(")")
            match = _TOKEN.match(self._text, self._at)
            if match and match.lastgroup == "field" and not self._text[self._at].isspace() and match["field"] != ".":
                self._at = match.end()
                path = match["field"].split(".")[1:]
                return lambda values: _field(inner(values), path)
            return inner
        if kind == "text":
            return _constant_value(word[1:-1] if word[0] == "`" else _unquoted(word[1:-1]))
        if kind == "number":
            return _constant_value(float(word) if "." in word else int(word))
        return _constant_value(_CONSTANTS[word])


def _constant(text: str) -> _Render:
    return lambda _: text


def _constant_value(value: object) -> _Expression:
    return lambda _: value


def _joined(parts: Sequence[_Render]) -> _Render:
    return lambda values: "".join([part(values) for part in parts])


def _unquoted(text: str) -> str:
    escapes = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda match: escapes.get(match[1], match[1]), text)


def _field(value: object, path: Sequence[str]) -> object:
    for step in path:
        holder: Any = _value(value)
        try:
            value = getattr(holder, "methods", {}).get(step) or holder[step]
        except (KeyError, TypeError, IndexError) as error:
            raise TemplateError(f"there is no field {'.'.join(path)}") from error
    return value


def _value(field: object) -> object:
    """The value of a field; a method without arguments is called."""
    return _call(field, [], "a field") if callable(field) else field


def _call(function: object, arguments: Sequence[object], name: str) -> object:
    if not callable(function):
        raise TemplateError(f"{name} takes no arguments")
    try:
        return function(*[_value(argument) for argument in arguments])
    except (TypeError, ValueError, LookupError) as error:
        raise TemplateError(f"{name}: {error}") from error


def _printed(value: object) -> str:
    """A value as Go prints it: a list is "[a b]", a map "map[a:1]", 2.0 is "2"."""
    if value is None or isinstance(value, bool):
        return "<no value>" if value is None else str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)
    if isinstance(value, Mapping):
        if isinstance(value, ValueMap) and "String" in value.methods:
            return str(value.methods["String"]())
        return f"map[{' '.join(f'{key}:{_printed(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list | tuple):
        return f"[{' '.join(map(_printed, value))}]"
    return str(value)


def _index(whole: Any, *keys: Any) -> Any:  # noqa: ANN401 - any value of a template
    """An element of nested maps and lists."""
    for key in keys:
        whole = whole[key]
    return whole


def _js(*values: object) -> str:
    return _JS_CHARACTER.sub(lambda match: _JS[match[0]], _print(*values))


def _print(*values: object) -> str:
    return "".join(map(_printed, values))


def _quoted(value: object) -> str:
    text = _printed(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") + '"'


def _printf(pattern: str, *values: Any) -> str:  # noqa: ANN401 - any value of a template
    left = list(values)

    def written(match: "re.Match[str]") -> str:
        verb = match["verb"]
        if verb == "%":
            return "%"
        if not left:
            raise ValueError(f"no value for {match[0]}")
        value = left.pop(0)
        if verb in "svtq":
            return f"%{match['flags']}s" % (_quoted(value) if verb == "q" else _printed(value))
        if verb in "dxXofFeEgG":
            return str(f"%{match['flags']}{verb}" % value)
        raise ValueError(f"{match[0]} is no verb here")

    return _VERB.sub(written, pattern)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "and": lambda *values: next((operand for operand in values if not operand), values[-1]),
    "or": lambda *values: next((operand for operand in values if operand), values[-1]),
    "not": lambda value: not value,
    "eq": lambda value, *others: any(value == other for other in others),
    "ne": lambda value, other: value != other,
    "lt": lambda value, other: value < other,
    "le": lambda value, other: value <= other,
    "gt": lambda value, other: value > other,
    "ge": lambda value, other: value >= other,
    "html": lambda *values: escape(_print(*values)),
    "index": _index,
    "js": _js,
    "len": len,
    "print": _print,
    "printf": _printf,
    "println": lambda *values: " ".join(map(_printed, values)) + "\n",
    "urlquery": lambda *values: urllib.parse.quote_plus(_print(*values)),
}
