"""The worst cost of CEL rules by the model of a kube-apiserver, which limits it in a CustomResourceDefinition.

A rule above 10,000,000 or a definition above 100,000,000 is refused, and so is a rule that names a field which the schema
does not have. Follows cel-go's checker/cost.go and Kubernetes' apiserver/pkg/cel (types of schemas; a text of at most n
characters has 4 n bytes; what has no bound is as large as a request, 3 MiB), for the part of CEL that our rules use.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["DEFINITION_LIMIT", "RULE_LIMIT", "costs_of", "rule_cost"]

RULE_LIMIT = 10_000_000
DEFINITION_LIMIT = 100_000_000
_REQUEST_BYTES = 3 * 1024 * 1024
_TRAVERSAL, _REGEX = 0.1, 0.25
_LIST_COST = 10
_TOKEN = re.compile(r"\s*(?:(\d+)|'([^']*)'|([A-Za-z_]\w*)|(\|\||&&|==|!=|<=|>=|[-+!<>?:.,()\[\]]))")
_LEVELS = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">=", "in"), ("+",))
_OBJECT_META = {"name": {"type": "string"}, "generateName": {"type": "string"}}

# Words that no field of an expression may be called by (cel-spec's list of identifiers that are kept for later).
_RESERVED = {
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
}
_RESERVED |= {"namespace", "null", "package", "return", "true", "var", "void", "while"}

Schema = Mapping[str, Any]


def costs_of(schema: Schema) -> Iterator[tuple[str, str, int]]:
    """Path, text and cost of each rule of a definition's schema, with how often it may be asked of one object."""
    root = {
        **schema,
        "properties": {**schema["properties"], "metadata": {"type": "object", "properties": _OBJECT_META}},
    }
    yield from _costs(root, "", 1)


def _costs(schema: Schema, path: str, times: int) -> Iterator[tuple[str, str, int]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule["rule"], times * rule_cost(rule["rule"], schema)
    for name, inner in schema.get("properties", {}).items():
        yield from _costs(inner, f"{path}.{name}", times)
    for key, bound in (("items", "maxItems"), ("additionalProperties", "maxProperties")):
        if isinstance(schema.get(key), dict):
            yield from _costs(schema[key], f"{path}[]", times * schema.get(bound, _REQUEST_BYTES))


def rule_cost(text: str, schema: Schema) -> int:
    """The worst cost of one rule, asked once.

    Raises:
        LookupError: when it names a field that the schema does not have.
    """
    tokens = [next(part for part in match.groups() if part is not None) for match in _TOKEN.finditer(text)]
    kinds = [match.lastindex for match in _TOKEN.finditer(text)]
    reader = _Reader([*zip(kinds, tokens, strict=True), (0, "")], {"self": schema, "oldSelf": schema})
    found = reader.ternary()
    assert reader.peek() == "", (text, reader.peek())
    return found.cost


class _Value:
    """The cost of an expression, the size of its value, and its schema if it has one."""

    def __init__(self, cost: int, size: int = 1, schema: Schema | None = None) -> None:
        self.cost, self.size, self.schema = cost, size, schema


class _Reader:
    """Reads an expression and reckons on the way."""

    def __init__(self, tokens: list[tuple[int | None, str]], names: dict[str, Schema]) -> None:
        self._tokens, self._at, self._names = tokens, 0, names

    def peek(self) -> str:
        kind, token = self._tokens[self._at]
        return f"'{token}" if kind == 2 else token

    def _take(self, *wanted: str) -> bool:
        if self.peek() in wanted:
            self._at += 1
            return True
        return False

    def _need(self, token: str) -> None:
        assert self._take(token), (token, self.peek())

    def ternary(self) -> _Value:
        condition = self._binary(0)
        if not self._take("?"):
            return condition
        yes = self.ternary()
        self._need(":")
        no = self.ternary()
        return _Value(condition.cost + max(yes.cost, no.cost), max(yes.size, no.size))

    def _binary(self, level: int) -> _Value:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while self.peek() in _LEVELS[level]:
            operator = self.peek()
            self._at += 1
            left = _joined(operator, left, self._binary(level + 1))
        return left

    def _unary(self) -> _Value:
        if self._take("!"):
            return _Value(self._unary().cost + 1)
        value = self._primary()
        while self._take("."):
            name = self.peek()
            self._at += 1
            value = self._method(name, value) if self._take("(") else _field(value, name)
        return value

    def _primary(self) -> _Value:
        (kind, word), self._at = self._tokens[self._at], self._at + 1
        if kind == 1:
            return _Value(0)
        if kind == 2:
            return _Value(0, len(word))
        if word == "(":
            value = self.ternary()
            self._need(")")
            return value
        if word == "[":
            items = self._arguments("]")
            return _Value(_LIST_COST + sum(one.cost for one in items), len(items), {"items": {"type": "boolean"}})
        if word in ("has", "size"):
            self._need("(")
            (value,) = self._arguments(")")
            # A look costs 1 and not the last step.
            return _Value(value.cost if word == "has" else value.cost + 1)
        if word not in self._names:
            raise LookupError(word)
        schema = self._names[word]
        return _Value(1, _size(schema), schema)

    def _arguments(self, end: str) -> list[_Value]:
        found: list[_Value] = []
        while not self._take(end):
            found.append(self.ternary())
            self._take(",")
        return found

    def _method(self, name: str, target: _Value) -> _Value:
        if name in _MACROS:
            return self._macro(name, target)
        arguments = self._arguments(")")
        cost = target.cost + sum(one.cost for one in arguments)
        if name == "matches":
            return _Value(cost + _part(target.size + 1, _TRAVERSAL) * _part(arguments[0].size, _REGEX))
        if name in ("startsWith", "endsWith"):
            return _Value(cost + _part(arguments[0].size, _TRAVERSAL))
        assert name in ("size", "sum"), name
        return _Value(cost + (target.size if name == "sum" else 1))

    def _macro(self, name: str, target: _Value) -> _Value:
        variable = self.peek()
        self._at += 1
        self._need(",")
        if target.schema is None or "items" not in target.schema:
            raise LookupError(f"{name} of what is no list")
        before, self._names = self._names, {**self._names, variable: target.schema["items"]}
        inner = self.ternary()
        self._need(")")
        self._names = before
        own, once = _MACROS[name]
        return _Value(target.cost + once + target.size * (inner.cost + own), target.size, target.schema)


# What a turn of a loop costs besides its expression, and what the loop costs besides its turns.
_MACROS = {
    "all": (3, 1),
    "exists": (4, 1),
    "exists_one": (2, 2),
    "filter": (13, _LIST_COST + 1),
    "map": (12, _LIST_COST + 1),
}


def _joined(operator: str, left: _Value, right: _Value) -> _Value:
    cost = left.cost + right.cost
    if operator in ("||", "&&"):
        return _Value(cost)
    if operator in ("==", "!="):
        return _Value(cost + _part(min(left.size, right.size), _TRAVERSAL))
    if operator == "in":
        return _Value(cost + right.size)
    if operator == "+":
        return _Value(cost + _part(left.size + right.size, _TRAVERSAL), left.size + right.size)
    return _Value(cost + 1)


def _field(value: _Value, name: str) -> _Value:
    if name in _RESERVED:
        raise LookupError(f"{name}: a word of CEL; a server knows the field as __{name}__")
    inner = (value.schema or {}).get("properties", {}).get(name)
    if inner is None or not (inner.get("type") or inner.get("x-kubernetes-int-or-string")):
        raise LookupError(name)
    return _Value(value.cost + 1, _size(inner), inner)


def _size(schema: Schema) -> int:
    """How many elements or bytes a value may have. Objects and numbers are told apart by nothing else."""
    match schema.get("type"):
        case "string":
            return 4 * int(schema["maxLength"]) if "maxLength" in schema else _REQUEST_BYTES
        case "array":
            return int(schema.get("maxItems", _REQUEST_BYTES))
    return 0


def _part(size: int, factor: float) -> int:
    return math.ceil(size * factor)
