"""Reads the scaling annotations of a revision: ``autoscaling.knative.dev/...`` on its template.

Input: the annotations as text; output: the revision's own values of settings (``Knob.annotation``) and the options that
only annotations have, with every problem and every annotation without effect. Each key may be written in both of
Knative's spellings (``min-scale`` and ``minScale``). Ranges are Knative's (98e5ef90,
pkg/apis/autoscaling/annotation_validation.go).
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec

from serving.core.model.errors import InvalidValue, Problem
from serving.core.model.knative import (
    AUTOSCALING_GROUP,
    CLASS_ANNOTATION,
    DORMANT_CALL_ANNOTATION,
    LOAD_ANNOTATION,
    LOADING_ANNOTATION,
    METRIC_ANNOTATION,
    ROLLOUT_CHECK_ANNOTATION,
    ROLLOUT_DURATION_ANNOTATION,
    SLO_ANNOTATION,
    START_CPU_ANNOTATION,
    TARGET_ANNOTATION,
    TargetMode,
)
from serving.core.model.loadmetric import (
    CONCURRENCY,
    LOAD_FORM,
    LoadWish,
    expected_metrics,
    is_load_metric,
    load_metric,
    read_load,
)
from serving.core.model.quantity import INT32_MAX, QUANTITY_FORM, parse_millicores
from serving.core.model.rolloutcheck import CHECK_FORM, RolloutCheck, read_rollout_check
from serving.core.model.slo import SLO_FORM, read_slo
from serving.core.settings.autoscaler import CLASSIC_CLASS, HPA_CLASS, KPA_CLASS, TARGET_MIN, AutoscalerSettings
from serving.core.settings.dormancy import CALLS
from serving.core.settings.knob import (
    COUNT,
    DURATION,
    NUMBER,
    PERCENT,
    TEXT,
    Field,
    Knob,
    Unit,
    Value,
    fields_of,
    with_group,
)

GROUP = f"{AUTOSCALING_GROUP}/"
_READ_KEPT = 1024
_OWN_CLASS_SUFFIX = ".knative.dev"
ROLLOUT_DURATION_KNOB = Knob(unit=DURATION, key=ROLLOUT_DURATION_ANNOTATION, low=0, whole=True)
_CHECK = Unit(
    name="conditions",
    plain="conditions",
    read=lambda text: read_rollout_check(text).text,
    read_plain=lambda text: read_rollout_check(text).text,
    write=str,
    explains=True,
    form=CHECK_FORM,
)
ROLLOUT_CHECK_KNOB = Knob(unit=_CHECK, key=ROLLOUT_CHECK_ANNOTATION)
_CPU_EXPECTED = 'an amount of cpu above 0 and at most 1024, as "500m" or "2"'
_CPU_MAX_M = 1024 * 1000


def _read_load(text: str) -> str:
    read_load(text)
    return text


def _read_cpu(text: str) -> str:
    if not 0 < parse_millicores(text) <= _CPU_MAX_M:
        raise InvalidValue(text=text, expected=_CPU_EXPECTED)
    return text


_CPU = Unit(
    name="cpu quantity",
    plain="cpu quantity",
    read=_read_cpu,
    read_plain=_read_cpu,
    write=str,
    form=QUANTITY_FORM,
)
_METRICS = Unit(
    name="[metrics with targets](choosing.md)",
    plain="metrics with targets",
    read=_read_load,
    read_plain=_read_load,
    write=str,
    explains=True,
    form=LOAD_FORM,
)


def _read_slo(text: str) -> str:
    read_slo(text)
    return text.strip()


_SLO = Unit(
    name="[a goal](choosing.md#a-goal-for-latency)",
    plain="a goal",
    read=_read_slo,
    read_plain=_read_slo,
    write=str,
    explains=True,
    form=SLO_FORM,
)


class OwnAnnotations(msgspec.Struct, frozen=True, kw_only=True):
    """Annotations that have no equivalent setting; None if unset."""

    class_name: Annotated[str | None, Knob(key=CLASS_ANNOTATION, unit=TEXT)] = None
    """The scaling class; revisions with a class outside knative.dev and serving.dev are not scaled here."""

    metric: Annotated[str | None, Knob(key=METRIC_ANNOTATION, unit=TEXT)] = None
    """The load metric: concurrency, rps, queue-length, or gauge:NAME for a gauge of the app; the class hpa accepts any
    metric."""

    load: Annotated[str | None, Knob(key=LOAD_ANNOTATION, unit=_METRICS)] = None
    """Metrics that replace ``metric``, each with the load per pod, as in "gauge:vllm:num_requests_waiting=5,
    concurrency=20".

    The largest resulting count applies.
    """

    metric_aggregation_algorithm: Annotated[
        str | None,
        Knob(
            key="metric-aggregation-algorithm",
            unit=TEXT,
            choices=("linear", "weightedExponential", "weighted-exponential"),
        ),
    ] = None
    """How a window averages its points. Knative has two spellings of the second choice."""

    target: Annotated[float | None, Knob(key="target", unit=NUMBER, low=TARGET_MIN)] = None
    """Target per pod: requests in flight, or requests a second."""

    target_utilization_ratio: Annotated[
        float | None, Knob(key="target-utilization-percentage", unit=PERCENT, low=0.01, high=1)
    ] = None
    """The share of the target to aim at."""

    activation_scale: Annotated[int | None, Knob(key="activation-scale", unit=COUNT, low=2, high=INT32_MAX)] = None
    """Fewest pods started by any load."""

    dormant_call: Annotated[str | None, Knob(key=DORMANT_CALL_ANNOTATION, unit=CALLS)] = None
    """The app's HTTP calls for sleeping and waking, in place of freezing."""

    start_cpu: Annotated[str | None, Knob(key=START_CPU_ANNOTATION, unit=_CPU)] = None
    """The cpu of a starting pod, in a cluster."""

    target_source: Annotated[str | None, Knob(key=TARGET_ANNOTATION, unit=TEXT, choices=("learnt", *TargetMode))] = None
    """Use of the learnt target: use (or learnt), protect, shadow or off; ``target`` is its start. Default: the setting
    ``adaptive.learnt-target``."""

    loading_max_s: Annotated[float | None, Knob(key=LOADING_ANNOTATION, unit=DURATION, above=0, high=86400)] = None
    """Longest time that a loading pod is kept until it is ready, regardless of load.

    Range: above 0 to 24h. Unset: an unwanted pod is removed even while it loads.
    """

    slo: Annotated[str | None, Knob(key=SLO_ANNOTATION, unit=_SLO)] = None
    """A latency goal that sets the target, such as p95<300ms for responses or p99-wait<100ms for waits.

    Measured lateness changes the target, which starts at ``target``.
    """


class ScalingAnnotations(OwnAnnotations, frozen=True, kw_only=True):
    """The scaling annotations of one revision. ``overrides`` are its values for fields of ``AutoscalerSettings``."""

    overrides: tuple[tuple[str, Value], ...] = ()

    @property
    def wishes(self) -> tuple[LoadWish, ...]:
        """The load metrics to scale on; Knative's annotation ``target`` is the first metric's target."""
        if self.load:
            first, *others = read_load(self.load)
            return (first if first.target is not None else LoadWish(metric=first.metric, target=self.target), *others)
        # An hpa may use any metric; this project does not measure it.
        name = self.metric or ""
        return (LoadWish(metric=name if is_load_metric(name) else CONCURRENCY.name, target=self.target),)

    def override(self, field: str) -> Value | None:
        """The revision's value for a setting; None if the revision uses the daemon's value."""
        return dict(self.overrides).get(field)

    def applied_to(self, settings: AutoscalerSettings) -> AutoscalerSettings:
        """The settings with the revision's values."""
        return msgspec.structs.replace(settings, **dict(self.overrides))


_OWN: Final = fields_of(OwnAnnotations)


@functools.cache
def annotation_fields() -> tuple[Field, ...]:
    """All scaling annotations, with their full keys: those that replace settings, then the others."""
    return tuple(
        msgspec.structs.replace(field, knob=msgspec.structs.replace(field.knob, key=with_group(field.knob.key)))
        for field in (*map(_as_annotation, fields_of(AutoscalerSettings)), *_OWN)
        if field.knob.key
    )


def _as_annotation(field: Field) -> Field:
    """Convert a setting to an annotation. Knative's annotations for counts of pods have 32 bits."""
    knob = msgspec.structs.replace(field.knob, key=field.knob.annotation)
    if knob.unit is COUNT and knob.high is None:
        knob = msgspec.structs.replace(knob, high=INT32_MAX)
    return msgspec.structs.replace(field, knob=knob)


class ReadAnnotations(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed annotations. ``problems`` reject the revision; ``warnings`` are about ignored annotations."""

    scaling: ScalingAnnotations
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def read_annotations(annotations: Mapping[str, str], settings: AutoscalerSettings) -> ReadAnnotations:
    """Read a revision's annotations, checked against the current settings."""
    # Cached: each write of a service and of its children reads the same few. Foreign annotations are left out.
    ours = tuple(
        annotation
        for annotation in annotations.items()
        if annotation[0].startswith(GROUP) or annotation[0] in known_annotations()
    )
    return _read(ours, settings)


@functools.cache
def known_annotations() -> frozenset[str]:
    """The names of all scaling annotations, in both spellings."""
    return frozenset(name for field in annotation_fields() for name in spellings(field.knob.key))


@functools.lru_cache(_READ_KEPT)
def _read(pairs: tuple[tuple[str, str], ...], settings: AutoscalerSettings) -> ReadAnnotations:
    annotations = dict(pairs)
    problems: list[Problem] = []
    unused: list[Problem] = []
    values: dict[str, Value] = {}
    spelled: set[str] = set()
    for field in annotation_fields():
        names = [name for name in spellings(field.knob.key) if name in annotations]
        spelled.update(names)
        if names:
            _read_one(field, names[0], annotations[names[0]], values=values, problems=problems)
        # As in Knative, the first spelling wins: pkg/apis/autoscaling/annotation_validation.go, through
        # kmap.KeyPriority.
        for name in names[1:]:
            if annotations[name] != annotations[names[0]]:
                what = f"{annotations[name]!r} has no effect beside {names[0]}: {annotations[names[0]]!r}"
                unused.append(_problem(name, what, "one of the two spellings"))
    own = {field.name: values.pop(field.name) for field in _OWN if field.name in values}
    scaling = msgspec.convert({**own, "overrides": tuple(values.items())}, ScalingAnnotations)
    problems.extend(_clashes(scaling, settings))
    warnings = tuple(unused) + tuple(
        _problem(name, "no such annotation; it has no effect", "a known name in " + GROUP)
        for name in annotations
        if name.startswith(GROUP) and name not in spelled
    )
    if (scaling.class_name or KPA_CLASS) not in {CLASSIC_CLASS, HPA_CLASS, KPA_CLASS} and not problems:
        what = f"{scaling.class_name!r} is the class of another autoscaler: none here scales the revision"
        warnings += (
            _problem(CLASS_ANNOTATION, what, f"{KPA_CLASS} or {HPA_CLASS}, or that autoscaler beside this one"),
        )
    return ReadAnnotations(scaling=scaling, problems=tuple(problems), warnings=warnings)


def spellings(key: str) -> tuple[str, ...]:
    """Both spellings of a full key: kebab case first, then camel case if the key has a hyphen."""
    group, _, name = key.rpartition("/")
    head, *tail = name.split("-")
    camel = head + "".join(word.capitalize() for word in tail)
    return (key, f"{group}/{camel}") if tail else (key,)


def _read_one(field: Field, name: str, text: str, *, values: dict[str, Value], problems: list[Problem]) -> None:
    try:
        values[field.name] = field.knob.read(text, plain=False)
    except InvalidValue as error:
        problems.append(_problem(name, f"{text!r} is not right", error.expected))


def _clashes(scaling: ScalingAnnotations, settings: AutoscalerSettings) -> Iterator[Problem]:
    yield from _class_clashes(scaling, settings)
    limit = settings.max_scale_limit
    low, high = (int(scaling.override(name) or 0) for name in ("min_scale", "max_scale"))
    if high and low > high:
        yield _problem(f"{GROUP}min-scale", f"{low} is above max-scale {high}", f"at most {high}")
    if limit and max(low, high) > limit:
        over = "max-scale" if high > limit else "min-scale"
        yield _problem(f"{GROUP}{over}", f"{max(low, high)} is above max-scale-limit {limit}", f"at most {limit}")
    activation = scaling.activation_scale
    if activation is not None and (activation < low or (high and activation > high)):
        expected = f"from {max(low, 2)}" + (f" to {high}" if high else "")
        yield _problem(f"{GROUP}activation-scale", f"{activation} is outside min-scale and max-scale", expected)
    if scaling.override("initial_scale") == 0 and not settings.allow_zero_initial_scale:
        what = "0 while allow-zero-initial-scale is false"
        yield _problem(f"{GROUP}initial-scale", what, "a whole number of at least 1")


def _class_clashes(scaling: ScalingAnnotations, settings: AutoscalerSettings) -> Iterator[Problem]:
    known = (KPA_CLASS, HPA_CLASS)
    name = scaling.class_name
    if name is not None and name.endswith(_OWN_CLASS_SUFFIX) and name not in known:
        yield _problem(CLASS_ANNOTATION, f"{name!r} is not an autoscaler of Knative", "one of " + ", ".join(known))
    scales_itself = (name or settings.pod_autoscaler_class) != HPA_CLASS
    if scales_itself and scaling.metric is not None and not is_load_metric(scaling.metric):
        yield _problem(METRIC_ANNOTATION, f"{scaling.metric!r} is not right", "one of " + expected_metrics())
    if scaling.metric == "":
        yield _problem(METRIC_ANNOTATION, "empty", "a metric's name")
    class_name = name or settings.pod_autoscaler_class
    for where, text in ((LOAD_ANNOTATION, scaling.load), (SLO_ANNOTATION, scaling.slo)):
        if text is not None and class_name != KPA_CLASS:
            what = f"only the class {KPA_CLASS} scales by it, not {class_name}"
            yield _problem(where, what, f"no {where}")
    if scaling.load is not None and scaling.metric is not None:
        yield _problem(LOAD_ANNOTATION, f"{METRIC_ANNOTATION} stands beside it", "one of the two")
    if scaling.slo is not None and scaling.target_source in {"learnt", TargetMode.USE}:
        yield _problem(
            SLO_ANNOTATION, f"{TARGET_ANNOTATION}: {scaling.target_source} stands beside it", "one of the two"
        )
    for wish in scaling.wishes if scales_itself else ():
        if wish.target is None and load_metric(wish.metric).needs_target:
            where = METRIC_ANNOTATION if scaling.load is None else LOAD_ANNOTATION
            expected = f"{LOAD_ANNOTATION}: {wish.metric}=NUMBER, how much of it one pod takes"
            yield _problem(where, f"{wish.metric} has no target", expected)


def read_rollout_duration(annotations: Mapping[str, str]) -> float | Problem | None:
    """The rollout duration of a Service or Route, in seconds, or a problem; None if unset."""
    for name in spellings(ROLLOUT_DURATION_KNOB.key):
        if name in annotations:
            try:
                return float(ROLLOUT_DURATION_KNOB.read(annotations[name], plain=False))
            except InvalidValue as error:
                return _problem(name, f"{annotations[name]!r} is not right", error.expected)
    return None


def read_rollout_check_of(annotations: Mapping[str, str]) -> RolloutCheck | Problem | None:
    """The rollout check of a Service or Route; None if unset, a problem if it is invalid or has no effect."""
    text = annotations.get(ROLLOUT_CHECK_ANNOTATION)
    if text is None:
        return None
    try:
        check = read_rollout_check(text)
    except InvalidValue as error:
        return _problem(ROLLOUT_CHECK_ANNOTATION, f"{text!r} is not right", error.expected)
    if not any(name in annotations for name in spellings(ROLLOUT_DURATION_KNOB.key)):
        expected = f'{ROLLOUT_DURATION_ANNOTATION} beside it, such as "60s"'
        return _problem(ROLLOUT_CHECK_ANNOTATION, "only a rollout in steps is checked", expected)
    return check


def _problem(name: str, what: str, expected: str) -> Problem:
    return Problem(where=f"annotation {name}", what=what, expected=expected)
