"""Label and field selectors of the Kubernetes API.

Input: the text of a query, as ``app=web,tier in (a,b),!old`` or ``status.phase!=Failed``; output: a compiled selector
for an object's labels or fields. Follows the API's grammar
(kubernetes.io/docs/concepts/overview/working-with-objects/labels): a negated requirement matches objects without the
label. Pure.
"""

import enum
import functools
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from serving.core.model.errors import Invalid

_C = TypeVar("_C")

# Cached, because reflectors and controllers repeat the same few texts.
_COMPILED_MAX = 1024

# Hot: each object of a kind is compared with each clause.
_CLAUSES_MAX = 50

_PART = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:(?P<prefix>[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?)/)?{_PART}")
_VALUE = re.compile(rf"(?:{_PART})?")
_CLAUSE = re.compile(
    r"""\s*(?:
        !\s*(?P<absent>[^\s!=<>,()]+)
      | (?P<set_key>[^\s!=<>,()]+)\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)
      | (?P<key>[^\s!=<>,()]+)\s*(?:(?P<op>==|=|!=|<|>)\s*(?P<value>[^\s!=<>,()]*))?
    )\s*(?P<end>,|$)""",
    re.VERBOSE,
)
_FIELD_CLAUSE = re.compile(
    r"(?P<key>[A-Za-z][A-Za-z0-9_.]*)(?P<op>==|=|!=)(?P<value>(?:[^\\,=]|\\[\\,=])*)(?P<end>,|$)"
)


class Operator(enum.StrEnum):
    """The operator of a requirement."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "absent"
    ABOVE = "above"
    BELOW = "below"


class Requirement(msgspec.Struct, frozen=True):
    """A clause of a label selector."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy this clause."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.ABSENT:
                return value is None
            case Operator.ABOVE | Operator.BELOW:
                return value is not None and self._compares(value)

    @property
    def text(self) -> str:
        """This clause in a query."""
        values = ",".join(sorted(self.values))
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.ABSENT:
                return f"!{self.key}"
            case Operator.ABOVE | Operator.BELOW:
                return f"{self.key}{'>' if self.operator is Operator.ABOVE else '<'}{values}"
            case Operator.IN if len(self.values) == 1:
                return f"{self.key}={values}"
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator} ({values})"

    def _compares(self, value: str) -> bool:
        try:
            number, (bound,) = int(value), map(int, self.values)
        except ValueError:
            return False
        return number > bound if self.operator is Operator.ABOVE else number < bound


class LabelSelector(msgspec.Struct, frozen=True):
    """A conjunction of clauses. An empty selector matches everything."""

    requirements: tuple[Requirement, ...] = ()

    @property
    def text(self) -> str:
        """The selector in a query: "app=web,tier in (a,b)"."""
        return ",".join(requirement.text for requirement in self.requirements)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels matches."""
        return all(requirement.matches(labels) for requirement in self.requirements)


class FieldSelector(msgspec.Struct, frozen=True):
    """A conjunction of clauses: a field, a value, and whether they must be equal. A missing field counts as ""."""

    clauses: tuple[tuple[str, str, bool], ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Whether an object with these fields matches."""
        return all((fields.get(key, "") == value) is equal for key, value, equal in self.clauses)

    def exact(self, key: str) -> str | None:
        """The only value that a field may have; None if the selector allows several."""
        return next((value for name, value, equal in self.clauses if equal and name == key), None)


@functools.lru_cache(_COMPILED_MAX)
def label_selector(text: str) -> LabelSelector:
    """Parse a label selector; "" matches everything. Raises ``Invalid``."""
    requirements: list[Requirement] = []
    at = 0
    # The pattern would be quadratic in the number of spaces.
    rest = " ".join(text.split())
    while at < len(rest):
        clause = _CLAUSE.match(rest, at)
        if clause is None or (clause["end"] == "," and clause.end() == len(rest)):
            raise Invalid(f"unable to parse label selector {text!r}: syntax error at {rest[at:]!r}")
        requirements.append(_checked(_requirement(clause), text))
        at = clause.end()
    return LabelSelector(_bounded(requirements))


_WRITTEN_OPERATORS = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.ABSENT,
    "Gt": Operator.ABOVE,
    "Lt": Operator.BELOW,
}


def written_selector(selector: Mapping[str, Any]) -> LabelSelector:
    """A selector from an object's ``matchLabels`` and ``matchExpressions``; {} matches everything.

    Accepts the operators Gt and Lt of node selector terms. Raises ``Invalid`` for an unknown operator.
    """
    labels = selector.get("matchLabels") or {}
    requirements = [Requirement(key, Operator.IN, frozenset({value})) for key, value in labels.items()]
    for match_expression in selector.get("matchExpressions") or ():
        operator = _WRITTEN_OPERATORS.get(match_expression.get("operator", ""))
        if operator is None:
            raise Invalid(
                f"{match_expression.get('operator')!r} is not an operator; known are {', '.join(_WRITTEN_OPERATORS)}"
            )
        requirements.append(
            Requirement(match_expression["key"], operator, frozenset(match_expression.get("values") or ()))
        )
    return LabelSelector(tuple(requirements))


def _bounded(clauses: list[_C]) -> tuple[_C, ...]:
    if len(clauses) > _CLAUSES_MAX:
        raise Invalid(f"a selector has at most {_CLAUSES_MAX} clauses, this has {len(clauses)}")
    return tuple(clauses)


def _requirement(clause: re.Match[str]) -> Requirement:
    if clause["absent"]:
        return Requirement(clause["absent"], Operator.ABSENT)
    if clause["set"]:
        values = frozenset(value.strip() for value in clause["values"].split(","))
        return Requirement(clause["set_key"], Operator(clause["set"]), values)
    if clause["op"] is None:
        return Requirement(clause["key"], Operator.EXISTS)
    operators = {"!=": Operator.NOT_IN, ">": Operator.ABOVE, "<": Operator.BELOW}
    return Requirement(clause["key"], operators.get(clause["op"], Operator.IN), frozenset({clause["value"]}))


def _checked(requirement: Requirement, text: str) -> Requirement:
    if not _KEY.fullmatch(requirement.key):
        raise Invalid(f"unable to parse label selector {text!r}: {requirement.key!r} is not a label's name")
    for value in requirement.values:
        if not _VALUE.fullmatch(value):
            raise Invalid(f"unable to parse label selector {text!r}: {value!r} is not a label's value")
        if requirement.operator in {Operator.ABOVE, Operator.BELOW} and not re.fullmatch(r"-?\d+", value):
            raise Invalid(f"unable to parse label selector {text!r}: {value!r} is not a whole number")
    return requirement


def field_selector(text: str, known: Collection[str]) -> FieldSelector:
    """Parse a field selector; ``known`` are the kind's selectable fields. Raises ``Invalid``."""
    selector = _field_selector(text)
    for key, _, _ in selector.clauses:
        if key not in known:
            raise Invalid(f"field label not supported: {key}; known are {', '.join(sorted(known))}")
    return selector


@functools.lru_cache(_COMPILED_MAX)
def _field_selector(text: str) -> FieldSelector:
    clauses: list[tuple[str, str, bool]] = []
    at = 0
    while at < len(text):
        clause = _FIELD_CLAUSE.match(text, at)
        if clause is None:
            raise Invalid(f"invalid field selector {text!r}: syntax error at {text[at:]!r}")
        value = re.sub(r"\\(.)", r"\1", clause["value"])
        clauses.append((clause["key"], value, clause["op"] != "!="))
        at = clause.end()
    return FieldSelector(_bounded(clauses))
