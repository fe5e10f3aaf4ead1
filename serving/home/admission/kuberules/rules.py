"""Validates objects of Kubernetes' own kinds as a real API server does, by ``config/openapi/rules.yaml``. Pure.

Input: an object whose fields have the right types; output: a ``Problem`` for each violation, at the field that a
kube-apiserver names. ``tests/conformance/data/manifests.jsonl`` has its answers.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import yaml

from serving.core.model.errors import Problem
from serving.home.admission.kuberules.checks import CHECKS, Context, labels
from serving.home.admission.kuberules.formats import FORMATS, Json, duplicate, forbidden, invalid, required, unsupported
from serving.home.schemas.crds import SCHEMAS_FILE, YAML_LOADER, builtin_schemas, schema_name
from serving.home.schemas.records import encode
from serving.home.schemas.validations import RuleTree, failures, rule_tree
from serving.net.cluster.kinds import Kind

_WORD = re.compile(r"(?:(?P<only>pod|template):)?(?P<name>[^(]+?)(?:\((?P<argument>.*)\))?\Z")
_RANGE = re.compile(r"(\d+)\.\.(\d*)\Z")
_REF = "#/components/schemas/"
_ELSEWHERE = ("@.", "@..", "@...")
_EMPTY: tuple[object, ...] = ("", [], None)

Check = Callable[[Any, str, Context], Iterator[Problem]]
"""Yields the problems of a value at a place, in the context of its object."""


class FieldRules(msgspec.Struct, frozen=True):
    """The rules of one field.

    ``checks`` yield the problems of its value. ``below`` names the schemas by which the value's own fields are checked.
    ``required`` says what a required field must be, "" if the field may be empty. ``place`` selects the path at which
    problems are reported (``_place``). ``is_present``: a missing field is checked as an empty object.
    ``may_be_missing``: the rules also apply to a missing field.
    """

    checks: tuple[Check, ...]
    below: tuple[str, ...]
    required: str = ""
    """The expected value, for the error about an empty field; "" if it may be empty."""
    place: str = ""
    is_present: bool = False
    may_be_missing: bool = True
    """Whether the rules also apply to a missing field."""


class SchemaRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one schema.

    ``fields`` are rules by field, and ``cel`` are CEL rules on the whole object. At most one of the fields in ``union``
    may be set; with ``is_one_needed``, exactly one must be. If more are set, the problem is reported at each further
    field or, with ``is_named_here``, at the object.
    """

    fields: Mapping[str, FieldRules]
    union: tuple[str, ...] = ()
    is_one_needed: bool = False
    is_named_here: bool = False
    cel: RuleTree | None = None

    def set_fields(self, whole: Json) -> list[str]:
        """The fields of the union that are set. A "*" in the union includes all other fields except ``name``."""
        present = [key for key in self.union if whole.get(key) is not None]
        others = whole.keys() - {*self.union, "name"} if "*" in self.union else ()
        return [*present, *(key for key in whole if key in others and whole[key] is not None)]


def kube_problems(kind: Kind, whole: Json) -> Iterator[Problem]:
    """Yield the problems of a decodable object of Kubernetes' own kinds."""
    yield from _problems(schema_name(kind), whole, "", context=Context())


def spec_problems(spec: Json, where: str) -> Iterator[Problem]:
    """Yield the problems of a pod spec in a Deployment, where the restart policy must be Always."""
    yield from _problems("core.v1.PodSpec", spec, where, context=Context(is_template=True))


def _problems(name: str, whole: Json, where: str, *, context: Context) -> Iterator[Problem]:
    rules = _rules(name)
    context = context.within(name, whole)
    present = rules.set_fields(whole)
    yield from _union(rules, present, where)
    for field, field_rules in rules.fields.items():
        value = whole.get(field)
        if value is None and not field_rules.may_be_missing:
            continue
        if value is None and field_rules.is_present:
            value = {}
        place = _place(where, field_rules.place, field)
        if field_rules.required and not value:
            yield required(place, field_rules.required)
        else:
            for check in field_rules.checks:
                yield from check(value, place, context)
        if field not in present[1:]:
            for below in field_rules.below:
                yield from _below(below, value, f"{where}.{field}" if where else field, context=context)
    if rules.cel is not None:
        yield from _broken(rules.cel, whole, where)


def _union(rules: SchemaRules, present: list[str], where: str) -> Iterator[Problem]:
    if rules.is_one_needed and not present:
        yield required(where, f"one of {', '.join(rules.union)}")
    for key in present[1:]:
        yield forbidden(where if rules.is_named_here else f"{where}.{key}", "may not specify more than 1 of its kind")


def _below(name: str, value: object, where: str, *, context: Context) -> Iterator[Problem]:
    if isinstance(value, dict):
        yield from _problems(name, value, where, context=context)
    elif isinstance(value, list):
        for index, element in enumerate(value):
            yield from _problems(name, element, f"{where}[{index}]", context=context)


def _place(where: str, place: str, field: str) -> str:
    """The path at which a problem of a field is reported. ``where`` is the path of the object with the field.

    If ``place`` is "@.", it is the path of the object itself; if "@..", that of the list that contains the object. If
    it is "@...", it is the path of the field with this name beside that list. Otherwise it is the path of the field.
    """
    if place == "@.":
        return where
    if place == "@..":
        return where.rpartition("[")[0]
    base = where.rpartition("[")[0] if place == "@..." else where
    return f"{base}.{field}".strip(".")


def _broken(rules: RuleTree, whole: Json, where: str) -> Iterator[Problem]:
    for rule, message in failures(rules.rules, encode(_non_empty(whole, rules.words)), None):
        is_at_list = rule.field_path == "@.."
        at = _place(where, "@..", "") if is_at_list else _place(where, "", rule.field_path)
        match rule.reason:
            case "FieldValueRequired":
                yield required(at, message)
            case "FieldValueForbidden":
                yield forbidden(at, message)
            case _:
                yield Problem(where=at, what=f"Invalid value: {message}", expected=message.removeprefix("must be "))


def _non_empty(value: Any, words: frozenset[str] | None) -> Any:  # noqa: ANN401 - JSON
    """A JSON value without empty fields, and without fields outside of ``words``; None allows all fields."""
    if isinstance(value, dict):
        return {
            key: _non_empty(child, words)
            for key, child in value.items()
            if (words is None or key in words) and child not in _EMPTY
        }
    return [_non_empty(child, words) for child in value] if isinstance(value, list) else value


@functools.cache
def _written() -> Mapping[str, Json]:
    text = SCHEMAS_FILE.with_name("rules.yaml").read_text(encoding="utf-8")
    rules: Mapping[str, Json] = yaml.load(text, Loader=YAML_LOADER)  # noqa: S506 - both loaders are safe
    return rules


@functools.cache
def _rules(name: str) -> SchemaRules:
    written = _written().get(name, {})
    union = str(written.get("$one") or written.get("$most") or "").split()
    fields = {field: _field(name, field, words) for field, words in written.items() if not field.startswith("$")}
    # Fields without rules lead to schemas that may have some.
    if not written.get("$leaf"):
        for field in builtin_schemas().get(name, {}).get("properties", {}):
            if field not in fields and (below := _schemas_below(name, field)):
                fields[field] = FieldRules((), below, may_be_missing=False)
    return SchemaRules(
        fields=fields,
        union=tuple(key for key in union if key not in _ELSEWHERE),
        is_one_needed="$one" in written,
        is_named_here="@." in union,
        cel=rule_tree({"x-kubernetes-validations": written.get("$rules", ())}),
    )


def _field(name: str, field: str, words: str) -> FieldRules:
    checks, below, place, is_present = [], list(_schemas_below(name, field)), "", False
    formats = [FORMATS[word].expected for word in str(words).split() if word in FORMATS]
    needed = (formats or ["a value"])[0] if "required" in str(words).split() else ""
    for word in str(words).split():
        match = _WORD.match(word)
        assert match is not None, word
        argument = match["argument"] or ""
        if word in _ELSEWHERE:
            place = word
        elif match["name"] == "as":
            below.append(argument)
        elif word == "present":
            is_present = True
        elif word != "required":
            check = _check(match["name"], argument)
            checks.append(_only(check, is_template=match["only"] == "template") if match["only"] else check)
    may_be_missing = bool(needed) or is_present or "check(" in str(words)
    return FieldRules(tuple(checks), tuple(dict.fromkeys(below)), needed, place, is_present, may_be_missing)


def _schemas_below(name: str, field: str) -> tuple[str, ...]:
    """The name of the schema of a field or of its elements, as a tuple of one name.

    The tuple is empty if neither this schema nor a schema below it has rules.
    """
    schema = builtin_schemas().get(name, {}).get("properties", {}).get(field, {})
    reference = schema.get("$ref") or schema.get("items", {}).get("$ref") or ""
    below = reference.removeprefix(_REF)
    return (below,) if below and _has_rules(below, frozenset({name})) else ()


def _has_rules(name: str, seen: frozenset[str]) -> bool:
    if name in _written():
        return True
    properties = builtin_schemas().get(name, {}).get("properties", {}).values()
    references = {schema.get("$ref") or schema.get("items", {}).get("$ref") or "" for schema in properties}
    names = {reference.removeprefix(_REF) for reference in references} - seen - {""}
    return any(_has_rules(schema_name, seen | {name}) for schema_name in names)


def _only(check: Check, *, is_template: bool) -> Check:
    def checked(value: Any, where: str, context: Context) -> Iterator[Problem]:  # noqa: ANN401 - JSON
        if context.is_template is is_template:
            yield from check(value, where, context)

    return checked


def _check(name: str, argument: str) -> Check:  # noqa: C901 - one case for each word
    """The check that one word of a rule stands for.

    The word is the name of a format, a range "1..10", choices "A|B", or a name such as "max" with its ``argument``.
    """
    bounds = _RANGE.match(name)
    choices = tuple(name.split("|"))

    def check(value: Any, where: str, context: Context) -> Iterator[Problem]:  # noqa: ANN401, C901, PLR0912 - JSON
        if name == "absent":
            if value is not None and value != []:
                yield forbidden(where, argument.replace("-", " "))
        elif name == "check":
            yield from CHECKS[argument](value, where, context)
        elif value in _EMPTY:
            return
        elif bounds is not None:
            if value < int(bounds[1]) or (bounds[2] and value > int(bounds[2])):
                expected = f"{bounds[1]} to {bounds[2]}" if bounds[2] else f"greater than or equal to {bounds[1]}"
                yield invalid(where, value, expected)
        elif name == "max":
            if len(value) > int(argument):
                yield invalid(where, len(value), f"at most {argument}")
        elif name == "unique":
            seen: set[object] = set()
            for index, element in enumerate(value):
                if element.get(argument) and element[argument] in seen:
                    yield duplicate(f"{where}[{index}].{argument}", element[argument])
                seen.add(element.get(argument))
        elif name in {"each", "keys"}:
            for index, element in enumerate(value):
                if not FORMATS[argument].fits(element):
                    yield invalid(
                        f"{where}[{element if name == 'keys' else index}]", element, FORMATS[argument].expected
                    )
        elif name in FORMATS:
            if not FORMATS[name].fits(value):
                yield invalid(where, value, FORMATS[name].expected)
        elif name == "labels":
            yield from labels(value, where)
        elif value not in choices:
            yield unsupported(where, value, choices)

    return check
