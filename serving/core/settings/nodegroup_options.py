"""Parses the options of a node group: takes a mapping, returns settings or raises every problem.

Keys are Escalator's, values as YAML gives them: whole numbers, true and false, durations such as "10m" as text. Nothing
is guessed: values of the wrong kind or out of range, and values that contradict each other are all reported, each with
its key, what is wrong and what would be right. Unknown keys are ignored as by Escalator, whose own examples have some;
``ignored_options`` names them. Source: atlassian/escalator 043bb1b, pkg/controller/node_group.go.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from serving.core.model.errors import InvalidValue, Problem, SettingsError
from serving.core.settings.knob import DURATION, FLAG, TEXT, Clash, Field, Unit, Value, fields_of
from serving.core.settings.nodegroup import NodeGroupQuirks, NodeGroupSettings

_AWS: Final = "aws"
_QUIRKS: Final = "quirks"
_HEALTH_GRACE = "unhealthy_node_grace_period_s"
_LOWER, _UPPER = "taint_lower_capacity_threshold_percent", "taint_upper_capacity_threshold_percent"
_SCALE_UP = "scale_up_threshold_percent"
_SLOW, _FAST = "slow_node_removal_rate", "fast_node_removal_rate"
# Escalator checks neither that rates are set nor that they are positive.
_RATES = frozenset({_SLOW, _FAST})
_SOFT, _HARD, _COOL_DOWN = "soft_delete_grace_period_s", "hard_delete_grace_period_s", "scale_up_cool_down_period_s"
_NEWEST, _UNHEALTHY = "health_check_newest_nodes_percent", "max_unhealthy_nodes_percent"
_AWS_LIFECYCLE = "aws.lifecycle"
# The second problem of a missing duration: it counts as 0, which is out of range.
_COUNTS_AS_ZERO = "counts as 0"

_Rule = tuple[str, ...]
# The order of Escalator's checks, and therefore of problems. A rule is the field that it reads, or the
# fields that it compares. Problems that Escalator does not check come first.
_RULES: Final[tuple[_Rule, ...]] = (
    ("name",),
    ("label_key",),
    ("label_value",),
    ("cloud_provider_group_name",),
    (_UPPER,),
    (_LOWER,),
    (_SCALE_UP,),
    (_LOWER, _UPPER),
    (_UPPER, _SCALE_UP),
    ("min_nodes", "max_nodes"),
    ("max_nodes", "min_nodes"),
    ("min_nodes",),
    (_SLOW, _FAST),
    (_SOFT,),
    (_HARD,),
    (_SOFT, _COUNTS_AS_ZERO),
    (_HARD, _COUNTS_AS_ZERO),
    (_SOFT, _HARD),
    (_COOL_DOWN,),
    (_COOL_DOWN, _COUNTS_AS_ZERO),
    ("taint_effect",),
    (_AWS_LIFECYCLE,),
    ("max_node_age_s",),
    (_HEALTH_GRACE,),
    (_NEWEST, _HEALTH_GRACE),
    (_UNHEALTHY, _HEALTH_GRACE),
)
_ORDER: Final = {rule: place for place, rule in enumerate(_RULES)}

_LIFECYCLES = ("", "on-demand", "spot")

S = TypeVar("S", bound=msgspec.Struct)


class AwsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """AWS options of the group; decisions do not use them.

    With a launch template, an EC2 fleet creates the nodes, and has ``fleet_instance_ready_timeout`` (1 m) to start
    them. ``lifecycle`` is on-demand, spot, or empty for the cloud's own choice.
    """

    launch_template_id: str = ""
    launch_template_version: str = ""
    fleet_instance_ready_timeout: str = "1m"
    lifecycle: str = ""
    instance_type_overrides: tuple[str, ...] = ()
    resource_tagging: bool = False


class _OptionsReading(msgspec.Struct, kw_only=True):
    """The options parsed so far; ``broken`` are fields with an unusable value."""

    where: str
    quirks: NodeGroupQuirks = NodeGroupQuirks()
    values: dict[str, Value] = msgspec.field(default_factory=dict)
    broken: set[str] = msgspec.field(default_factory=set)
    recorded: list[tuple[int, Problem]] = msgspec.field(default_factory=list)

    def report(self, key: str, what: str, expected: str, *, rule: _Rule = ()) -> None:
        """Record a problem of one key; ``rule`` is its position in Escalator's order of checks."""
        problem = Problem(where=f"{self.where}: {key}", what=what, expected=expected)
        self.recorded.append((_ORDER.get(rule, -1), problem))

    def problems(self) -> tuple[Problem, ...]:
        """All problems, in the order of Escalator's checks."""
        return tuple(problem for _, problem in sorted(self.recorded, key=lambda entry: entry[0]))


def read_node_group(options: Mapping[str, object], *, where: str) -> NodeGroupSettings:
    """Parse the settings of one group. ``where`` names the file and group in front of each problem.

    Raises:
        SettingsError: with every problem.
    """
    settings, problems = _read(options, where=where, quirks=None)
    if problems:
        raise SettingsError(problems)
    return settings


def problems_of_node_group(
    options: Mapping[str, object], *, where: str, quirks: NodeGroupQuirks | None = None
) -> tuple[Problem, ...]:
    """All problems of the options. ``quirks`` replace the quirks in the options."""
    return _read(options, where=where, quirks=quirks)[1]


def _read(
    options: Mapping[str, object], *, where: str, quirks: NodeGroupQuirks | None
) -> tuple[NodeGroupSettings, tuple[Problem, ...]]:
    reading = _OptionsReading(where=where)
    reading.quirks = _nested(options.get(_QUIRKS), _QUIRKS, NodeGroupQuirks, reading=reading)
    reading.quirks = quirks or reading.quirks
    aws = _nested(options.get(_AWS), _AWS, AwsOptions, reading=reading)
    fields = [field for field in fields_of(NodeGroupSettings) if field.path[0] != _QUIRKS]
    for field in fields:
        _read_one(field, options.get(field.knob.key), reading)
    values = {**reading.values, _QUIRKS: msgspec.to_builtins(reading.quirks)}
    settings = msgspec.convert(values, NodeGroupSettings)
    for clash in (*settings.check(), *_health_clashes(settings, options), *_aws_clashes(aws)):
        if reading.quirks.follow_on_problems_reported or not reading.broken.intersection(clash.fields):
            reading.report(_key_of(clash.fields[0], fields), clash.what, clash.expected, rule=clash.fields)
    return settings, reading.problems()


def ignored_options(options: Mapping[str, object], *, where: str) -> tuple[Problem, ...]:
    """The unknown keys, which have no effect. A misspelt quirk is an error instead."""
    keys = [field.knob.key for field in fields_of(NodeGroupSettings) if field.path[0] != _QUIRKS]
    aws = options.get(_AWS)
    return (
        *_unknown(options, [*keys, _AWS, _QUIRKS], where=f"{where}: "),
        *_unknown(aws if isinstance(aws, Mapping) else {}, AwsOptions.__struct_fields__, where=f"{where}: {_AWS}."),
    )


def _unknown(options: Mapping[str, object], known: Sequence[str], *, where: str) -> Iterator[Problem]:
    for key in map(str, options):
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            expected = f"{near[0]}, perhaps" if near else "one of " + ", ".join(known)
            yield Problem(where=f"{where}{key}", what="no such option, ignored", expected=expected)


def aws_options_of(options: Mapping[str, object]) -> AwsOptions:
    """The AWS options in already checked options."""
    return _nested(options.get(_AWS), _AWS, AwsOptions, reading=_OptionsReading(where=""))


def _read_one(field: Field, raw: object, reading: _OptionsReading) -> None:
    """Parse one option. An invalid option is recorded, and gets a default or empty value so that parsing continues."""
    knob, name = field.knob, field.name
    nothing: Value = "" if knob.unit is TEXT else 0
    reading.values[name] = nothing if _is_required(field) else field.default
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        _report_missing(field, reading)
        return
    if name in _RATES and reading.quirks.negative_rates_accepted:
        knob = msgspec.structs.replace(knob, low=None)
    value = _value(raw, knob.unit)
    if value is not None:
        reading.values[name] = value
    if value is None or not knob.admits(value):
        reading.broken.add(name)
        reading.report(knob.key, f"{raw!r} is not right", knob.describe(), rule=(name,))


def _report_missing(field: Field, reading: _OptionsReading) -> None:
    is_unchecked_rate = field.name in _RATES and reading.quirks.negative_rates_accepted
    if not _is_required(field) or is_unchecked_rate:
        return
    reading.broken.add(field.name)
    expected = "a text that is not empty" if field.knob.unit is TEXT else field.knob.describe()
    reading.report(field.knob.key, "not given", expected, rule=(field.name,))
    if field.knob.unit is DURATION and reading.quirks.follow_on_problems_reported:
        reading.report(field.knob.key, "taken for 0s", expected, rule=(field.name, _COUNTS_AS_ZERO))


def _value(raw: object, unit: Unit) -> Value | None:
    """Convert a YAML value to the plain value: text is parsed, numbers and flags must match the unit.

    None if the YAML value is invalid.
    """
    if isinstance(raw, str):
        try:
            return unit.read(raw.strip())
        except InvalidValue:
            return None
    is_flag = isinstance(raw, bool)
    if isinstance(raw, bool | int) and unit is not DURATION and unit is not TEXT and is_flag == (unit is FLAG):
        return raw
    return None


def _health_clashes(settings: NodeGroupSettings, options: Mapping[str, object]) -> Iterator[Clash]:
    """Yield clashes of the two health percentages, which apply only if health checks are on."""
    if not options.get("unhealthy_node_grace_period"):
        return
    newest, most = settings.health_check_newest_nodes_percent, settings.max_unhealthy_nodes_percent
    if not 1 <= newest <= 100:
        fields = (_NEWEST, _HEALTH_GRACE)
        yield Clash(fields=fields, what=f"{newest} is out of range", expected="a percentage from 1 to 100")
    if not 0 <= most < 100:
        fields = (_UNHEALTHY, _HEALTH_GRACE)
        yield Clash(fields=fields, what=f"{most} is out of range", expected="a percentage from 0 to 99")


def _aws_clashes(aws: AwsOptions) -> Iterator[Clash]:
    if aws.lifecycle not in _LIFECYCLES:
        expected = "on-demand, spot, or nothing"
        yield Clash(fields=(_AWS_LIFECYCLE,), what=f"{aws.lifecycle!r} is not right", expected=expected)


def _nested(raw: object, key: str, record: type[S], *, reading: _OptionsReading) -> S:
    """The record below a key; its defaults if it is missing or invalid."""
    if raw is None:
        return record()
    present = {key: value for key, value in raw.items() if value is not None} if isinstance(raw, Mapping) else raw
    try:
        return msgspec.convert(present, record)
    except msgspec.ValidationError as error:
        known = ", ".join(info.encode_name for info in msgspec.structs.fields(record))
        reading.report(key, str(error), f"a mapping with any of {known}")
        return record()


def _is_required(field: Field) -> bool:
    default: object = field.default
    return default is msgspec.NODEFAULT


def _key_of(name: str, fields: Sequence[Field]) -> str:
    return next((field.knob.key for field in fields if field.name == name), name)
