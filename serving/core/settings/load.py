"""Loads a daemon's settings from four layers: defaults < ConfigMaps < environment < flags.

Pure: the caller passes the texts. The result has the origin of each value. All problems are found before anything is
rejected: unknown keys, texts that do not parse, values out of range, fields that contradict each other.
"""

import difflib
import enum
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from serving.core.model.errors import InvalidValue, Problem, SettingsError
from serving.core.settings.knativekeys import WITHOUT_EFFECT, without_effect
from serving.core.settings.knob import (
    ANY_KEY,
    Clash,
    ConfigMap,
    ConfigMapEntry,
    Field,
    SettingsRecord,
    Value,
    fields_of,
)

# Most known names listed in a message.
_SHOWN_NAMES_MAX = 8


# Covariant, because records are only read: a daemon of a record type is also one of its base type.
R_co = TypeVar("R_co", bound=SettingsRecord, covariant=True)
R = TypeVar("R", bound=SettingsRecord)


class Daemon(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """A daemon's name, its settings record, and its ConfigMap.

    ``removed`` are the settings of earlier versions: the key in the ConfigMap, by field. ``reports`` are Knative
    ConfigMaps that the daemon does not use; it only reports their keys.
    """

    name: str
    record: type[R_co]
    config_map: str
    removed: Mapping[str, str] = {}
    reports: frozenset[str] = frozenset()

    def fields(self) -> Sequence[Field]:
        """The record's knobs, each with the name of its ConfigMap."""
        return _fields_in(self.record, self.config_map)

    @property
    def config_maps(self) -> frozenset[str]:
        """Names of the ConfigMaps that the daemon watches."""
        return self.reports.union(field.knob.config_map or "" for field in self.fields())


@functools.cache
def _fields_in(record: type[SettingsRecord], config_map: str) -> tuple[Field, ...]:
    return tuple(
        msgspec.structs.replace(
            field, knob=msgspec.structs.replace(field.knob, config_map=field.knob.config_map or config_map)
        )
        for field in fields_of(record)
    )


class Layer(enum.StrEnum):
    """The layer that sets a value: default, ConfigMap file, environment or flag; a later layer wins."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a value comes from: the layer, and the line, variable or flag."""

    layer: Layer
    where: str


class Loaded(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """A daemon's settings. ``origins`` has the origin of each setting by the field's dotted name.

    ``ignored`` are texts for settings that earlier versions had.
    """

    settings: R_co
    origins: dict[str, Origin]
    ignored: tuple[Problem, ...] = ()


class _SettingText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a setting in one layer. ``label`` is the key or flag for messages; ``plain``: in the plain unit."""

    field: Field
    text: str
    plain: bool
    origin: Origin
    label: str


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed layers: values and origins by field, invalid fields, problems, and texts for removed settings."""

    values: dict[str, Value]
    origins: dict[str, Origin]
    broken: set[str]
    problems: list[Problem]
    ignored: list[Problem]


def load(
    daemon: Daemon[R],
    *,
    registry: Iterable[Daemon[SettingsRecord]],
    config_maps: Sequence[ConfigMap] = (),
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    problems: Iterable[Problem] = (),
) -> Loaded[R]:
    """Load a daemon's settings from all layers.

    ``registry`` has all daemons, because a ConfigMap may have keys of several. ``flags`` are by dotted field name.
    ``problems`` are problems found earlier, while files were read.

    Raises:
        SettingsError: with every problem, in the order of the layers.
    """
    read = _read_layers(
        daemon, registry=registry, config_maps=config_maps, environment=environment or {}, flags=flags or {}
    )
    settings = _build(daemon.record, read.values)
    all_problems = [
        *problems,
        *read.problems,
        *(
            _problem(_where_of(clash, read.origins), clash.what, clash.expected)
            for clash in settings.check()
            if not read.broken.intersection(clash.fields)
        ),
    ]
    if all_problems:
        raise SettingsError(in_reading_order(all_problems))
    return Loaded(settings=settings, origins=read.origins, ignored=tuple(read.ignored))


def wrong_variables(
    daemon: Daemon[SettingsRecord], *, registry: Iterable[Daemon[SettingsRecord]], environment: Mapping[str, str]
) -> list[Problem]:
    """Problems of single environment variables. Contradictions between fields are not checked."""
    return _read_layers(daemon, registry=registry, config_maps=(), environment=environment, flags={}).problems


def _read_layers(
    daemon: Daemon[R],
    *,
    registry: Iterable[Daemon[SettingsRecord]],
    config_maps: Sequence[ConfigMap],
    environment: Mapping[str, str],
    flags: Mapping[str, str],
) -> _Read:
    fields = daemon.fields()
    problems: list[Problem] = []
    variables = _removed_variables(daemon)
    ignored = [
        *(problem for config_map in config_maps for problem in removed_keys(config_map, [daemon])),
        *removed_variables(daemon, environment),
        *(_removed(daemon, name, f"flag --set {name}") for name in daemon.removed if name in flags),
    ]
    environment = {variable: text for variable, text in environment.items() if variable not in variables}
    flags = {name: text for name, text in flags.items() if name not in daemon.removed}
    layered = [
        *_from_config_maps(daemon, config_maps, registry=registry, problems=problems),
        *_from_environment(daemon, fields, environment=environment, problems=problems),
        *_from_flags(daemon, fields, flags=flags, problems=problems),
    ]
    values: dict[str, Value] = {field.name: field.default for field in fields}
    origins = {field.name: Origin(layer=Layer.DEFAULT, where="default") for field in fields}
    broken: set[str] = set()
    for setting in layered:
        try:
            values[setting.field.name] = setting.field.knob.read(setting.text, plain=setting.plain)
        except InvalidValue as error:
            broken.add(setting.field.name)
            problems.append(
                _problem(setting.origin.where, f"{setting.label}: {setting.text!r} is not right", error.expected)
            )
        origins[setting.field.name] = setting.origin
    return _Read(values=values, origins=origins, broken=broken, problems=problems, ignored=ignored)


def unknown_config_maps(
    config_maps: Iterable[ConfigMap], registry: Iterable[Daemon[SettingsRecord]]
) -> Iterator[Problem]:
    """A problem for each ConfigMap that no daemon reads."""
    known = sorted({name for daemon in registry for name in daemon.config_maps})
    for config_map in config_maps:
        if config_map.name not in known:
            yield _problem(
                config_map.where, f"no daemon reads ConfigMap {config_map.name}", "one of " + ", ".join(known)
            )


def unknown_keys(config_map: ConfigMap, registry: Iterable[Daemon[SettingsRecord]]) -> list[Problem]:
    """A problem for each key that no daemon reads or has read; none if no daemon reads the ConfigMap."""
    registry = tuple(registry)
    known = _known_keys(config_map.name, registry)
    if (not known and config_map.name not in WITHOUT_EFFECT) or ANY_KEY in known:
        return []
    removed = {key for daemon in registry for key in daemon.removed.values()}
    return [
        problem
        for entry in config_map.entries
        if entry.key not in known and entry.key not in removed
        for problem in _without_effect(config_map.name, entry, known)
    ]


def known_entries(config_map: ConfigMap, registry: Iterable[Daemon[SettingsRecord]]) -> tuple[ConfigMapEntry, ...]:
    """The entries that a daemon reads."""
    known = _known_keys(config_map.name, registry)
    return tuple(entry for entry in config_map.entries if entry.key in known or ANY_KEY in known)


def _known_keys(name: str, registry: Iterable[Daemon[SettingsRecord]]) -> frozenset[str]:
    knobs = (field.knob for daemon in registry for field in daemon.fields() if field.knob.config_map == name)
    return frozenset(key for knob in knobs for key in (knob.key, *knob.legacy))


def _without_effect(name: str, entry: ConfigMapEntry, known: Iterable[str]) -> Iterator[Problem]:
    of_knative = without_effect(name, entry.key)
    if of_knative is None:
        yield _problem(entry.where, f"{name} has no key {entry.key}", _nearest(entry.key, sorted(known)))
    elif entry.text.strip().lower() not in of_knative.fulfilled:
        expected = " or ".join(text or "no value" for text in of_knative.fulfilled) or "no such key"
        yield _problem(entry.where, f"{entry.key} has no effect: {of_knative.why}", expected)


def removed_keys(config_map: ConfigMap, registry: Iterable[Daemon[SettingsRecord]]) -> list[Problem]:
    """A problem for each key in a ConfigMap that belongs to a removed setting and has no effect."""
    return [
        _removed(daemon, name, entry.where)
        for daemon in registry
        if daemon.config_map == config_map.name
        for entry in config_map.entries
        for name, key in daemon.removed.items()
        if key == entry.key
    ]


def removed_variables(daemon: Daemon[SettingsRecord], environment: Mapping[str, str]) -> list[Problem]:
    """A problem for each environment variable of a daemon that belongs to a removed setting and has no effect."""
    return [
        _removed(daemon, name, f"environment {variable}")
        for variable, name in _removed_variables(daemon).items()
        if variable in environment
    ]


def _removed_variables(daemon: Daemon[SettingsRecord]) -> dict[str, str]:
    prefix = f"SERVING_{daemon.name.upper()}_"
    return {prefix + "_".join(name.split(".")).upper(): name for name in daemon.removed}


def _removed(daemon: Daemon[SettingsRecord], name: str, where: str) -> Problem:
    value: object = daemon.record()
    for part in name.split("."):
        value = getattr(value, part)
    return _problem(where, f"{daemon.removed[name]} is no setting any more, and has no effect", f"none: it is {value}")


def _from_config_maps(
    daemon: Daemon[R],
    config_maps: Sequence[ConfigMap],
    *,
    registry: Iterable[Daemon[SettingsRecord]],
    problems: list[Problem],
) -> Iterator[_SettingText]:
    # If several keys set one field, the last one, which is the current key, wins.
    mine = {
        (field.knob.config_map, key): (field, precedence)
        for field in daemon.fields()
        for precedence, key in enumerate((*field.knob.legacy, field.knob.key))
    }
    for config_map in config_maps:
        if config_map.name in daemon.config_maps:
            problems += unknown_keys(config_map, registry)
        if config_map.entries and (place := (config_map.name, ANY_KEY)) in mine:
            data = {entry.key: entry.text for entry in config_map.entries}
            origin = Origin(layer=Layer.FILE, where=config_map.where)
            text = msgspec.json.encode(data).decode()
            yield _SettingText(field=mine[place][0], text=text, plain=False, origin=origin, label=config_map.name)
        own = [(entry, *mine[place]) for entry in config_map.entries if (place := (config_map.name, entry.key)) in mine]
        for entry, field, _ in sorted(own, key=lambda item: item[2]):
            origin = Origin(layer=Layer.FILE, where=entry.where)
            yield _SettingText(field=field, text=entry.text, plain=False, origin=origin, label=entry.key)


def _from_environment(
    daemon: Daemon[R], fields: Sequence[Field], *, environment: Mapping[str, str], problems: list[Problem]
) -> Iterator[_SettingText]:
    prefix = f"SERVING_{daemon.name.upper()}_"
    mine = {prefix + field.variable: field for field in fields}
    for variable, text in sorted(environment.items()):
        if variable in mine:
            origin = Origin(layer=Layer.ENVIRONMENT, where=f"environment {variable}")
            yield _SettingText(field=mine[variable], text=text, plain=True, origin=origin, label=mine[variable].name)
        elif variable.startswith(prefix):
            expected = _nearest(variable, sorted(mine))
            problems.append(_problem(f"environment {variable}", f"{daemon.name} has no such setting", expected))


def _from_flags(
    daemon: Daemon[R], fields: Sequence[Field], *, flags: Mapping[str, str], problems: list[Problem]
) -> Iterator[_SettingText]:
    mine = {field.name: field for field in fields}
    for name, text in flags.items():
        if name in mine:
            origin = Origin(layer=Layer.FLAG, where=f"flag --set {name}")
            yield _SettingText(field=mine[name], text=text, plain=True, origin=origin, label=name)
        else:
            expected = _nearest(name, sorted(mine))
            problems.append(_problem(f"flag --set {name}", f"{daemon.name} has no such setting", expected))


def _build(record: type[R], values: Mapping[str, Value]) -> R:
    # Includes constants, which an outer record may have replaced in a nested one.
    tree: dict[str, Any] = msgspec.to_builtins(record())
    for name, value in values.items():
        *parents, last = name.split(".")
        node = tree
        for parent in parents:
            node = node[parent]
        node[last] = value
    return msgspec.convert(tree, record)


def in_reading_order(problems: Iterable[Problem]) -> list[Problem]:
    """Sort problems: those in files by file and line, then those in variables and flags by name."""

    def order(problem: Problem) -> tuple[bool, str, int]:
        file_name, _, line = problem.where.rpartition(":")
        return (not line.isdigit(), file_name or problem.where, int(line) if line.isdigit() else 0)

    return sorted(problems, key=order)


def _where_of(clash: Clash, origins: Mapping[str, Origin]) -> str:
    """The origin of the first clashing field that was set. A default is never reported."""
    written = [origins[name].where for name in clash.fields if origins[name].layer is not Layer.DEFAULT]
    return written[0] if written else f"default of {clash.fields[0]}"


def _nearest(name: str, known: Sequence[str]) -> str:
    """Suggest the most similar known name; if none is similar, list the known names if they are few."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"a known name; did you mean {near[0]}?"
    shown = ", ".join(known[:_SHOWN_NAMES_MAX])
    more = len(known) - _SHOWN_NAMES_MAX
    return f"one of {shown}" + (f" and {more} more; `serving config defaults` prints all" if more > 0 else "")


def _problem(where: str, what: str, expected: str) -> Problem:
    return Problem(where=where, what=what, expected=expected)
