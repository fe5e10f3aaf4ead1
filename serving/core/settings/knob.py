"""Describes a settings field beyond its type and default: key, unit, range.

A field of a settings record is written once, as ``name: Annotated[type, Knob(...)] = default`` with its meaning as a
string below it. A field without a ``Knob`` is a constant. From that one place come the key in the ConfigMap, the
environment variable, the flag, the range check, the shipped file in ``config/`` and the page ``docs/settings.md``.

A ``Unit`` says how a value is written in a ConfigMap (in Knative's own way: "60s", "70" percent) and how it is written
in the environment and in flags, where it is always the plain value that the field's name promises (60 seconds, 0.7).
"""

import functools
import typing
from collections.abc import Callable, Iterator

import msgspec

from serving.core.model import quantity
from serving.core.model.errors import InvalidValue
from serving.core.model.knative import AUTOSCALING_GROUP

Value = bool | int | float | str
# Bounds texts, because CEL raises an error for numbers and sums of durations beyond its types.
_EXACT_NUMBER = "[0-9.+-]{1,15}"
_EXACT_DURATION = "[+-]?(0|([0-9.]{1,5}h|[0-9.]{1,7}m|[0-9.]{1,9}(s|ms|us|ns)){1,3})"


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """Parses and formats values of one kind.

    ``read`` and ``write`` are for ConfigMaps, ``read_plain`` for environment variables and flags; both readers raise
    ``InvalidValue``. ``plain`` names the plain unit in messages and docs. ``explains``: the readers' errors describe
    valid values better than the unit's name.

    The last three are for a cluster's admission policies: ``form`` is a regular expression that matches at least all
    texts that ``read`` accepts. ``cel`` is a CEL expression that converts a text matching ``exact`` to a comparable
    value.
    """

    name: str
    plain: str
    read: Callable[[str], Value]
    read_plain: Callable[[str], Value]
    write: Callable[[typing.Any], str]
    explains: bool = False
    form: str = ""
    exact: str = ""
    cel: str = ""


DURATION = Unit(
    name="duration",
    plain="seconds",
    read=quantity.parse_duration_s,
    read_plain=quantity.parse_number,
    write=quantity.format_duration_s,
    form=quantity.DURATION_FORM,
    exact=_EXACT_DURATION,
    cel="duration({})",
)
PERCENT = Unit(
    name="percentage",
    plain="ratio",
    read=quantity.parse_percent,
    read_plain=quantity.parse_number,
    write=quantity.format_percent,
    form=quantity.NUMBER_FORM,
    exact=_EXACT_NUMBER,
    cel="double({})",
)
PERCENT_OR_FRACTION = msgspec.structs.replace(
    PERCENT, name="percentage or fraction", read=quantity.parse_percent_or_fraction
)
NUMBER = Unit(
    name="number",
    plain="number",
    read=quantity.parse_number,
    read_plain=quantity.parse_number,
    write=quantity.format_number,
    form=quantity.NUMBER_FORM,
    exact=_EXACT_NUMBER,
    cel="double({})",
)
COUNT = Unit(
    name="whole number",
    plain="whole number",
    read=quantity.parse_count,
    read_plain=quantity.parse_count,
    write=str,
    form=quantity.COUNT_FORM,
    exact=quantity.COUNT_FORM,
    cel="int({})",
)
BYTES = Unit(
    name="memory quantity",
    plain="bytes",
    read=quantity.parse_bytes,
    read_plain=quantity.parse_count,
    write=quantity.format_bytes,
)
FLAG = Unit(
    name="true or false",
    plain="true or false",
    read=quantity.parse_flag,
    read_plain=quantity.parse_flag,
    write=lambda value: str(value).lower(),
)
TEXT = Unit(name="text", plain="text", read=str, read_plain=str, write=str)


ANY_KEY = "*"


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """The external form of a settings field: its unit, its key, its range.

    ``key`` is the key in the ConfigMap; ``ANY_KEY`` is for a mapping of all keys. The key of a field in a nested record
    begins with that record's field name and a dot. ``config_map`` names a ConfigMap other than the record's, in which
    the key has no prefix. ``low`` and ``high`` bound the plain value, both included; ``above`` is a lower bound that is
    excluded; ``also`` lists valid values outside the range (-1 for "unlimited"); ``whole`` requires a whole number of
    the plain unit; ``choices`` lists the texts allowed. A ``live`` field takes effect without a restart of the daemon.
    ``annotation`` is the annotation that overrides the value for one revision, immediately; a name without a group is
    in Knative's group for autoscaling. ``legacy`` are earlier names of the key that Knative still reads, the oldest
    first; a later name wins.
    """

    unit: Unit
    key: str
    config_map: str | None = None
    low: float | None = None
    high: float | None = None
    above: float | None = None
    also: tuple[float, ...] = ()
    whole: bool = False
    choices: tuple[str, ...] = ()
    live: bool = False
    annotation: str = ""
    legacy: tuple[str, ...] = ()

    def admits(self, value: Value) -> bool:
        """Whether a value in the plain unit is in range."""
        if self.choices:
            return value in self.choices
        if isinstance(value, bool | str) or value in self.also:
            return True
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (not self.whole or value == int(value))
        )

    def describe(self) -> str:
        """The valid values in the ConfigMap's notation: "a duration from 6s to 1h, in whole seconds"."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        write = self.unit.write
        words = [self.unit.name if self.unit is FLAG else f"a {self.unit.name}"]
        if self.above is not None:
            words.append(f"above {write(self.above)}")
        if self.low is not None:
            words.append(f"of at least {write(self.low)}" if self.high is None else f"from {write(self.low)}")
        if self.high is not None:
            words.append(f"{'and up to' if self.low is None else 'to'} {write(self.high)}")
        if self.whole and self.unit.name == DURATION.name:
            words[-1] += ", in whole seconds"
        return " ".join(words) + "".join(f", or {write(value)}" for value in self.also)

    def read(self, text: str, *, plain: bool) -> Value:
        """Parse a text to its plain value. Raises ``InvalidValue`` with the expected form.

        ``plain``: the text is from an environment variable or flag, and therefore in the plain unit.
        """
        reader = self.unit.read_plain if plain else self.unit.read
        try:
            value = reader(text.strip())
        except InvalidValue as error:
            expected = error.expected if self.unit.explains else self._expected(plain=plain)
            raise InvalidValue(text=text, expected=expected) from error
        if not self.admits(value):
            raise InvalidValue(text=text, expected=self._expected(plain=plain))
        return value

    def _expected(self, *, plain: bool) -> str:
        if not plain or self.unit.read is self.unit.read_plain:
            return self.describe()
        return f"{self.describe()}, written as plain {self.unit.plain}"


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a settings record. ``path`` goes through nested records: ``("classic", "panic_window_s")``."""

    path: tuple[str, ...]
    knob: Knob
    default: Value
    owner: type[msgspec.Struct]

    @property
    def name(self) -> str:
        """The path with dots, as flags write it."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The suffix of the environment variable's name."""
        return "_".join(self.path).upper()


@functools.cache
def fields_of(record: type[msgspec.Struct]) -> tuple[Field, ...]:
    """All knobs of a settings record in declaration order, including those of nested records.

    A field without a ``Knob`` is a constant that only code and tests replace.
    """
    return tuple(_fields_below(record, (), None))


@functools.cache
def live_fields(record: type[msgspec.Struct]) -> frozenset[str]:
    """Fields of a settings record that take effect immediately. A nested record counts if all of its knobs are live."""
    waiting = {field.path[0] for field in fields_of(record) if not (field.knob.live or field.knob.annotation)}
    return frozenset(field.path[0] for field in fields_of(record)) - waiting


def with_group(annotation: str) -> str:
    """The full name of an annotation."""
    return annotation if "/" in annotation else f"{AUTOSCALING_GROUP}/{annotation}"


def _fields_below(
    record: type[msgspec.Struct], path: tuple[str, ...], defaults: msgspec.Struct | None
) -> Iterator[Field]:
    # An outer record may replace the defaults of a nested one.
    hints = typing.get_type_hints(record, include_extras=True)
    prefix = "".join(f"{part.replace('_', '-')}." for part in path)
    for info in msgspec.structs.fields(record):
        hint = hints[info.name]
        field_path = (*path, info.name)
        default = info.default if defaults is None else getattr(defaults, info.name)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from _fields_below(hint, field_path, default if isinstance(default, msgspec.Struct) else None)
            continue
        knob = _knob_of(hint)
        if knob is None:
            continue
        # A key in another component's ConfigMap has no prefix.
        knob = knob if knob.config_map else msgspec.structs.replace(knob, key=prefix + knob.key)
        yield Field(path=field_path, knob=knob, default=default, owner=record)


def _knob_of(hint: object) -> Knob | None:
    return next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Knob)), None)


class Clash(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a record that contradict each other. The first field is the one to correct."""

    fields: tuple[str, ...]
    what: str
    expected: str


class SettingsRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all settings records."""

    def check(self) -> Iterator[Clash]:
        """Yield all contradictions between fields."""
        yield from ()


class ConfigMapEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a ConfigMap with its text and its position ("file:line")."""

    key: str
    text: str
    where: str


class ConfigMap(msgspec.Struct, frozen=True, kw_only=True):
    """A ConfigMap with its name, its position, and its entries in order."""

    name: str
    where: str
    entries: tuple[ConfigMapEntry, ...]
