"""Reads node groups from Escalator's YAML file and from NodeGroup objects.

Input: the text of ``node_groups: [...]`` with Escalator's keys, or a NodeGroup whose spec has the same keys in camel
case. Output: settings, or all problems with the input's spelling of keys. An invalid group is omitted; the others work.
Unknown keys are ignored and reported.
"""

import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from serving.core.model.errors import Problem, SettingsError
from serving.core.model.objects import name_of
from serving.core.settings.knob import fields_of
from serving.core.settings.nodegroup import NodeGroupQuirks, NodeGroupSettings
from serving.core.settings.nodegroup_options import AwsOptions, ignored_options, read_node_group
from serving.core.settings.yamltext import YamlLoader

_ROOT = "node_groups"
_NAME = "name"
# Keys whose value is a mapping, with the keys in it.
_SPEC_RECORDS: Mapping[str, Collection[str]] = {
    "aws": frozenset(AwsOptions.__struct_fields__),
    "quirks": frozenset(NodeGroupQuirks.__struct_fields__),
}


class WrittenGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One valid group: its settings, and its options under Escalator's keys, as written by the user.

    ``ignored`` has keys without effect.
    """

    settings: NodeGroupSettings
    options: Mapping[str, Any]
    ignored: tuple[Problem, ...] = ()


class RefusedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """An invalid group with all its problems. ``name`` is "" if missing."""

    name: str
    problems: tuple[Problem, ...]


class GroupReading(msgspec.Struct, frozen=True, kw_only=True):
    """The valid groups of a text or object, in order, with all problems and all keys without effect."""

    groups: tuple[WrittenGroup, ...] = ()
    problems: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()
    refused: tuple[RefusedGroup, ...] = ()


def groups_of_text(text: str, *, where: str) -> GroupReading:
    """Parse the groups of a YAML text in Escalator's format; an empty text has none."""
    try:
        whole = yaml.load(text, Loader=YamlLoader)  # noqa: S506 - it is safe
    except yaml.YAMLError as error:
        what = " ".join(str(error).split())
        return GroupReading(problems=(Problem(where=where, what=f"not YAML: {what}", expected="node_groups: [...]"),))
    if whole is None:
        return GroupReading()
    written = whole.get(_ROOT) if isinstance(whole, Mapping) else None
    if not isinstance(written, Sequence) or isinstance(written, str):
        problem = Problem(where=where, what="no list of node groups", expected="a key node_groups with a list")
        return GroupReading(problems=(problem,))
    groups: list[WrittenGroup] = []
    refused: list[RefusedGroup] = []
    problems: list[Problem] = []
    ignored = [
        Problem(where=f"{where}: {key}", what="no such key, ignored", expected=_ROOT) for key in whole if key != _ROOT
    ]
    for index, options in enumerate(written):
        place = f"{where}: {_ROOT}[{index}]"
        if not isinstance(options, Mapping):
            problems.append(
                Problem(where=place, what=f"{options!r} is not a mapping", expected="the options of a group")
            )
            continue
        named = f"{place} ({options.get(_NAME, 'without a name')})"
        unknown = ignored_options(options, where=named)
        ignored += unknown
        try:
            settings = read_node_group(options, where=named)
        except SettingsError as error:
            problems += error.problems
            refused.append(RefusedGroup(name=str(options.get(_NAME) or ""), problems=(*error.problems, *unknown)))
            continue
        if any(settings.name == other.settings.name for other in groups):
            what = f"there are two groups named {settings.name}"
            problems.append(Problem(where=place, what=what, expected="a name that no other group has"))
            continue
        groups.append(WrittenGroup(settings=settings, options=options, ignored=unknown))
    return GroupReading(groups=tuple(groups), problems=tuple(problems), ignored=tuple(ignored), refused=tuple(refused))


def group_of(node_group: Mapping[str, Any]) -> GroupReading:
    """Parse the group in a NodeGroup object. The group has the object's name."""
    name = name_of(node_group)
    spec = node_group.get("spec") or {}
    options = {_snake_of(key): _snake_keys(value) for key, value in spec.items()}
    options[_NAME] = name
    where = f"NodeGroup {name}: spec"
    keys = frozenset({*_known_words(), *options})
    ignored = tuple(_respelled(ignored_option, keys) for ignored_option in ignored_options(options, where=where))
    try:
        settings = read_node_group(options, where=where)
    except SettingsError as error:
        problems = tuple(_respelled(problem, keys) for problem in error.problems)
        refused = RefusedGroup(name=name, problems=(*problems, *ignored))
        return GroupReading(problems=problems, ignored=ignored, refused=(refused,))
    return GroupReading(groups=(WrittenGroup(settings=settings, options=options, ignored=ignored),), ignored=ignored)


def spec_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The NodeGroup spec for the options of a group. Keys that NodeGroups do not have are left out."""
    spec: dict[str, Any] = {}
    for key, value in options.items():
        if (key not in _SPEC_RECORDS and key not in spec_keys()) or value is None:
            continue
        names = _SPEC_RECORDS.get(key)
        spec[_camel_of(key)] = (
            value if names is None else {_camel_of(name): field for name, field in value.items() if name in names}
        )
    return spec


@functools.cache
def spec_keys() -> Mapping[str, str]:
    """The key in a NodeGroup's spec for each of Escalator's keys: {"min_nodes": "minNodes", ...}."""
    keys = {field.knob.key for field in fields_of(NodeGroupSettings) if len(field.path) == 1}
    return {key: _camel_of(key) for key in sorted(keys - {_NAME})}


def _respelled(problem: Problem, keys: Collection[str]) -> Problem:
    """The problem with keys in the spec's spelling, because the parser reports Escalator's spelling."""
    return msgspec.structs.replace(
        problem,
        where=_in_camel(problem.where, keys),
        what=_in_camel(problem.what, keys),
        expected=_in_camel(problem.expected, keys),
    )


def _in_camel(text: str, known: Collection[str]) -> str:
    return re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", lambda match: _camel_of(match[0]) if match[0] in known else match[0], text)


@functools.cache
def _known_words() -> frozenset[str]:
    fields: Iterable[str] = (field.path[0] for field in fields_of(NodeGroupSettings))
    return frozenset({*spec_keys(), *fields})


def _camel_of(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _snake_keys(value: object) -> object:
    """The options with the keys below ``aws`` and ``quirks`` in snake case."""
    return {_snake_of(key): field for key, field in value.items()} if isinstance(value, Mapping) else value


def _snake_of(key: str) -> str:
    return re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", key)
