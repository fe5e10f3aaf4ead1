"""Evaluates the CEL rules (``x-kubernetes-validations``) of a custom resource definition, as a kube-apiserver does.

Input: an OpenAPI schema, an object that keeps it, and the object before; output: a ``Problem`` for each rule that does
not hold, in the words of a kube-apiserver: the path, the value of a scalar, and the rule's message. The rules are only
in ``config/crd/*.yaml``. Follows k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel/validation.go: rules that
read ``oldSelf`` apply only to changes, items of a list have no old value, and unchanged parts are not evaluated again.

``common-expression-language`` evaluates the expressions. Its package imports a terminal toolkit (0.35 s), so the first
rule loads only its extension module.
"""

import functools
import importlib.machinery
import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from serving.core.model.errors import Problem
from serving.home.schemas.patch import same_json
from serving.home.schemas.records import encode
from serving.home.schemas.schema import Schema

if TYPE_CHECKING:
    from types import ModuleType

_WORD = re.compile(r"[A-Za-z_]\w*")
_USES_OLD = re.compile(r"\boldSelf\b")
# An old value that is used other than for its presence.
_READS_OLD = re.compile(r"(?<!has\()\boldSelf\b")
# Cached evaluations: manifests repeat ports, variable names, probes. An evaluation costs about 40 µs, a look-up 2.
_RESULTS_KEPT_MAX = 1024
_SHOWN_TYPES = (str, int, float, bool)
# The metadata fields visible to a rule at the root.
_ROOT_METADATA = ("name", "generateName")


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()
"""Represents a missing old value, because None is JSON's null."""


class _Program(Protocol):
    def execute(self, context: object) -> object:
        """Evaluate the expression."""
        ...


class CelRule(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of ``x-kubernetes-validations``."""

    rule: str
    message: str = ""
    message_expression: str = ""
    field_path: str = ""
    reason: str = "FieldValueInvalid"


class RuleTree(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a schema and its subschemas; parts without rules are omitted.

    ``rules_of_new`` are the rules that apply without an old value. ``words`` are the identifiers in the rules, None if
    a rule compares whole values. Only fields in ``words`` are converted for the evaluation, because the conversion
    takes most of the time.
    """

    rules: tuple[CelRule, ...] = ()
    rules_of_new: tuple[CelRule, ...] = ()
    words: frozenset[str] | None = None
    properties: Mapping[str, "RuleTree"] = {}
    items: "RuleTree | None" = None
    values: "RuleTree | None" = None


def rule_tree(schema: Schema) -> RuleTree | None:
    """Collect the rules of a schema; None if it has none."""
    rules = msgspec.convert(schema.get("x-kubernetes-validations", ()), type=tuple[CelRule, ...])
    properties = {key: tree for key, child in schema.get("properties", {}).items() if (tree := rule_tree(child))}
    items = schema.get("items")
    rest = schema.get("additionalProperties")
    below_items = rule_tree(items) if isinstance(items, Mapping) else None
    below_values = rule_tree(rest) if isinstance(rest, Mapping) else None
    if not (rules or properties or below_items or below_values):
        return None
    texts = [text for rule in rules for text in (rule.rule, rule.message_expression)]
    compares_whole = any(_READS_OLD.search(text) for text in texts)
    return RuleTree(
        rules=rules,
        rules_of_new=tuple(rule for rule in rules if not _USES_OLD.search(rule.rule)),
        words=None if compares_whole else frozenset(word for text in texts for word in _WORD.findall(text)),
        properties=properties,
        items=below_items,
        values=below_values,
    )


def rule_problems(tree: RuleTree | None, new: Mapping[str, Any], old: object = ABSENT) -> Iterator[Problem]:
    """Yield a problem for each rule that an object breaks. ``old`` is the previous object, ``ABSENT`` for a new one."""
    if tree is None:
        return
    before = old if isinstance(old, Mapping) else {}
    root, root_before = _visible_root(new), _visible_root(before)
    if old is not ABSENT and same_json(root, root_before):
        return
    yield from _broken(tree, root, ABSENT if old is ABSENT else root_before, path="")
    for key, below in tree.properties.items():
        yield from _below(below, new.get(key), before.get(key, ABSENT), path=key)


def _visible_root(whole: Mapping[str, Any]) -> dict[str, Any]:
    metadata = whole.get("metadata") or {}
    return {**whole, "metadata": {key: metadata[key] for key in _ROOT_METADATA if key in metadata}}


def _below(tree: RuleTree, value: object, old: object, *, path: str) -> Iterator[Problem]:
    if value is None or (old is not ABSENT and same_json(value, old)):
        return
    yield from _broken(tree, value, old, path=path)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        for key, child in value.items():
            below = tree.properties.get(key, tree.values)
            if below is not None:
                yield from _below(below, child, before.get(key, ABSENT), path=f"{path}.{key}")
    elif isinstance(value, list) and tree.items is not None:
        for index, child in enumerate(value):
            yield from _below(tree.items, child, ABSENT, path=f"{path}[{index}]")


def _broken(tree: RuleTree, value: object, old: object, *, path: str) -> Iterator[Problem]:
    rules = tree.rules if old is not ABSENT else tree.rules_of_new
    if not rules:
        return
    before = None if old is ABSENT else encode(_pruned(old, tree.words))
    for rule, message in failures(rules, encode(_pruned(value, tree.words)), before):
        yield _problem(rule, value, path, message=message)


@functools.lru_cache(_RESULTS_KEPT_MAX)
def failures(rules: tuple[CelRule, ...], new: bytes, old: bytes | None) -> tuple[tuple[CelRule, str], ...]:
    """The rules that a value breaks, each with its message. ``new`` and ``old`` are JSON. The result is cached."""
    variables = {"self": msgspec.json.decode(new)}
    if old is not None:
        variables["oldSelf"] = msgspec.json.decode(old)
    context = _extension().Context(variables, dict(_FUNCTIONS))
    broken: list[tuple[CelRule, str]] = []
    for rule in rules:
        try:
            if _program(rule.rule).execute(context) is not True:
                broken.append((rule, _message(rule, context)))
        except Exception as error:  # noqa: BLE001 - what an expression runs into belongs to the answer
            broken.append((rule, f"{error} evaluating rule: {rule.rule}"))
    return tuple(broken)


def _pruned(value: Any, words: frozenset[str] | None) -> Any:  # noqa: ANN401 - JSON
    if words is None:
        return value
    if isinstance(value, dict):
        return {key: _pruned(child, words) for key, child in value.items() if key in words}
    if isinstance(value, list):
        return [_pruned(child, words) for child in value]
    return value


def _message(rule: CelRule, context: object) -> str:
    """The message of a broken rule. If its message expression fails, the fixed text is used."""
    if rule.message_expression:
        try:
            message = _program(rule.message_expression).execute(context)
        except Exception:  # noqa: BLE001 - a kube-apiserver falls back, too
            message = ""
        if isinstance(message, str) and message.strip() and "\n" not in message:
            return message.strip()
    return rule.message or f"failed rule: {rule.rule}"


def _problem(rule: CelRule, value: object, path: str, *, message: str) -> Problem:
    match rule.reason:
        case "FieldValueRequired":
            what = f"Required value: {message}"
        case "FieldValueForbidden":
            what = f"Forbidden: {message}"
        case _ if isinstance(value, _SHOWN_TYPES):
            what = f"Invalid value: {json.dumps(value, ensure_ascii=False)}: {message}"
        case _:
            # A kube-apiserver omits the value of an object or a list.
            what = f"Invalid value: {message}"
    return Problem(where=(path + rule.field_path).removeprefix("."), what=what, expected=rule.message or message)


def _format(template: str, values: Sequence[object]) -> str:
    return template % tuple(values)


# Kubernetes' CEL extensions used by the rules. A kube-apiserver estimates added texts with the longest possible text,
# and rejects the definition; format is a single call.
_FUNCTIONS: Mapping[str, Callable[..., object]] = {"sum": sum, "format": _format}


@functools.cache
def _program(expression: str) -> _Program:
    return cast("_Program", _extension().compile(expression))


@functools.cache
def _extension() -> "ModuleType":
    """The library's extension module, loaded without its package."""
    package = importlib.util.find_spec("cel")
    assert package is not None, "common-expression-language is installed"
    spec = importlib.machinery.PathFinder.find_spec("cel.cel", package.submodule_search_locations)
    assert spec is not None, "common-expression-language has its extension"
    assert spec.loader is not None, "an extension has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
