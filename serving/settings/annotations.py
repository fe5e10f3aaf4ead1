"""Reads the scaling annotations of a revision: ``autoscaling.knative.dev/...`` on its template.

Input: the annotations as text; output: a record in which None means "not asked for", with everything that is wrong and
everything that is accepted without effect. Each key may be written in both of Knative's spellings (``min-scale`` and
``minScale``). Ranges are Knative's (98e5ef90, pkg/apis/autoscaling/annotation_validation.go).
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from serving.model.errors import InvalidValue, Problem
from serving.model.knative import (
    AUTOSCALING_GROUP,
    LEARNT_TARGET,
    OWN_AUTOSCALING_GROUP,
    PROGRESS_DEADLINE_ANNOTATION,
    ROLLOUT_DURATION_ANNOTATION,
    TARGET_ANNOTATION,
)
from serving.model.loadmetric import LOAD_METRICS
from serving.settings.autoscaler import CLASSIC_CLASS, HPA_CLASS, KPA_CLASS, POLICIES, TARGET_MIN, AutoscalerSettings
from serving.settings.knob import COUNT, DURATION, NUMBER, PERCENT, TEXT, Field, Knob, Value, fields_of

GROUP = f"{AUTOSCALING_GROUP}/"
_READ_KEPT = 1024
_OWN_CLASS_SUFFIX = ".knative.dev"
_INT32_MAX = 2**31 - 1
_ROLLOUT_DURATION = Knob(unit=DURATION, key=ROLLOUT_DURATION_ANNOTATION, low=0, whole=True)
_SCALE = Knob(unit=COUNT, key="", low=0, high=_INT32_MAX)


def _scale(key: str, low: int = 0) -> Knob:
    return msgspec.structs.replace(_SCALE, key=key, low=low)


class ScalingAnnotations(msgspec.Struct, frozen=True, kw_only=True):
    """The scaling annotations of one revision; None leaves the choice to the settings."""

    class_name: Annotated[str | None, Knob(key="class", unit=TEXT)] = None
    """Who scales the revision; names outside knative.dev and serving.dev are left alone."""

    metric: Annotated[str | None, Knob(key="metric", unit=TEXT)] = None
    """What is measured: concurrency, rps or queue-length; an hpa takes any."""

    metric_aggregation_algorithm: Annotated[
        str | None,
        Knob(
            key="metric-aggregation-algorithm",
            unit=TEXT,
            choices=("linear", "weightedExponential", "weighted-exponential"),
        ),
    ] = None
    """How points of a window are averaged. Knative has two spellings of the second choice."""

    target: Annotated[float | None, Knob(key="target", unit=NUMBER, low=TARGET_MIN)] = None
    """Requests in flight, or a second, that a pod takes."""

    target_utilization_ratio: Annotated[
        float | None, Knob(key="target-utilization-percentage", unit=PERCENT, low=0.01, high=1)
    ] = None
    """Share of the target that is aimed at."""

    target_burst_capacity: Annotated[
        float | None, Knob(key="target-burst-capacity", unit=NUMBER, low=0, also=(-1,))
    ] = None
    """Requests that may arrive at once and find a place."""

    stable_window_s: Annotated[float | None, Knob(key="window", unit=DURATION, low=6, high=3600, whole=True)] = None
    """Width of the stable window in seconds."""

    panic_window_ratio: Annotated[float | None, Knob(key="panic-window-percentage", unit=PERCENT, low=0.01, high=1)] = (
        None
    )
    """Width of the panic window as a share of the stable one."""

    panic_threshold_ratio: Annotated[
        float | None, Knob(key="panic-threshold-percentage", unit=PERCENT, low=1.1, high=10)
    ] = None
    """Desired over ready pods from which on panic begins."""

    min_scale: Annotated[int | None, _scale("min-scale")] = None
    """Fewest pods."""

    max_scale: Annotated[int | None, _scale("max-scale")] = None
    """Most pods; 0 means as many as the limit in the settings."""

    initial_scale: Annotated[int | None, _scale("initial-scale")] = None
    """Pods that must have been ready once."""

    activation_scale: Annotated[int | None, _scale("activation-scale", low=2)] = None
    """Pods that any traffic starts at least."""

    scale_down_delay_s: Annotated[
        float | None, Knob(key="scale-down-delay", unit=DURATION, low=0, high=3600, whole=True)
    ] = None
    """Time for which a lower answer must hold, in seconds."""

    scale_to_zero_pod_retention_period_s: Annotated[
        float | None, Knob(key="scale-to-zero-pod-retention-period", unit=DURATION, low=0, high=3600)
    ] = None
    """Shortest time for which the last pod stays, in seconds."""

    progress_deadline_s: Annotated[
        float | None, Knob(key=PROGRESS_DEADLINE_ANNOTATION, unit=DURATION, above=0, whole=True)
    ] = None
    """Time to get the first pods ready, in seconds."""

    policy: Annotated[str | None, Knob(key=f"{OWN_AUTOSCALING_GROUP}/policy", unit=TEXT, choices=POLICIES)] = None
    """Policy of the revision: knative or adaptive."""

    target_source: Annotated[str | None, Knob(key=TARGET_ANNOTATION, unit=TEXT, choices=(LEARNT_TARGET,))] = None
    """"learnt": the target that is learnt from response times, cpu and memory is in force; ``target`` is where it starts."""

    cold_start_worth_s: Annotated[
        float | None, Knob(key=f"{OWN_AUTOSCALING_GROUP}/cold-start-worth", unit=NUMBER, low=1, high=1_000_000)
    ] = None
    """What a cold start is worth, in pod-seconds."""


class ReadAnnotations(msgspec.Struct, frozen=True, kw_only=True):
    """The record, with problems (the revision is refused) and ignored annotations (the object gets a warning)."""

    scaling: ScalingAnnotations
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def read_annotations(annotations: Mapping[str, str], settings: AutoscalerSettings) -> ReadAnnotations:
    """Read a revision's annotations against the settings that are in force."""
    # Read at each write of a service and everything below it: nearly always the same few. Those of others are left out.
    ours = tuple(one for one in annotations.items() if one[0].startswith(GROUP) or one[0] in _known())
    return _read(ours, settings)


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(name for field in fields_of(ScalingAnnotations) for name in _spellings(field.knob.key))


@functools.lru_cache(_READ_KEPT)
def _read(pairs: tuple[tuple[str, str], ...], settings: AutoscalerSettings) -> ReadAnnotations:
    annotations = dict(pairs)
    problems: list[Problem] = []
    values: dict[str, Value] = {}
    spelled: set[str] = set()
    for field in fields_of(ScalingAnnotations):
        spellings = [name for name in _spellings(field.knob.key) if name in annotations]
        spelled.update(spellings)
        if len({annotations[name] for name in spellings}) > 1:
            what = " and ".join(f"{name}: {annotations[name]!r}" for name in spellings) + " disagree"
            problems.append(_problem(spellings[0], what, "one of the two spellings"))
        elif spellings:
            _read_one(field, spellings[0], annotations[spellings[0]], values=values, problems=problems)
    scaling = msgspec.convert(values, ScalingAnnotations)
    problems.extend(_clashes(scaling, settings))
    warnings = tuple(
        _problem(name, "no such annotation; it has no effect", "a known name in " + GROUP)
        for name in annotations
        if name.startswith(GROUP) and name not in spelled
    )
    if (scaling.class_name or KPA_CLASS) not in {CLASSIC_CLASS, HPA_CLASS, KPA_CLASS} and not problems:
        what = f"{scaling.class_name!r} is the class of another autoscaler: none here scales the revision"
        warnings += (
            _problem(f"{GROUP}class", what, f"{KPA_CLASS} or {HPA_CLASS}, or that autoscaler beside this one"),
        )
    return ReadAnnotations(scaling=scaling, problems=tuple(problems), warnings=warnings)


def _spellings(key: str) -> tuple[str, ...]:
    """Both spellings of a key with its group: kebab first, then camel where there is a hyphen."""
    group, _, name = key.rpartition("/")
    group = f"{group}/" if group else GROUP
    head, *tail = name.split("-")
    camel = head + "".join(word.capitalize() for word in tail)
    return (group + name, group + camel) if tail else (group + name,)


def _read_one(field: Field, name: str, text: str, *, values: dict[str, Value], problems: list[Problem]) -> None:
    try:
        values[field.name] = field.knob.read(text, plain=False)
    except InvalidValue as error:
        problems.append(_problem(name, f"{text!r} is not right", error.expected))


def _clashes(scaling: ScalingAnnotations, settings: AutoscalerSettings) -> Iterator[Problem]:
    yield from _class_clashes(scaling, settings)
    limit = settings.max_scale_limit
    low = scaling.min_scale or 0
    high = scaling.max_scale or 0
    if high and low > high:
        yield _problem(f"{GROUP}min-scale", f"{low} is above max-scale {high}", f"at most {high}")
    if limit and max(low, high) > limit:
        over = "max-scale" if high > limit else "min-scale"
        yield _problem(f"{GROUP}{over}", f"{max(low, high)} is above max-scale-limit {limit}", f"at most {limit}")
    activation = scaling.activation_scale
    if activation is not None and (activation < low or (high and activation > high)):
        expected = f"from {max(low, 2)}" + (f" to {high}" if high else "")
        yield _problem(f"{GROUP}activation-scale", f"{activation} is outside min-scale and max-scale", expected)
    if scaling.initial_scale == 0 and not settings.allow_zero_initial_scale:
        what = "0 while allow-zero-initial-scale is false"
        yield _problem(f"{GROUP}initial-scale", what, "a whole number of at least 1")


def _class_clashes(scaling: ScalingAnnotations, settings: AutoscalerSettings) -> Iterator[Problem]:
    known = (KPA_CLASS, HPA_CLASS)
    name = scaling.class_name
    if name is not None and name.endswith(_OWN_CLASS_SUFFIX) and name not in known:
        yield _problem(f"{GROUP}class", f"{name!r} is not an autoscaler of Knative", "one of " + ", ".join(known))
    scales_itself = (name or settings.pod_autoscaler_class) != HPA_CLASS
    if scales_itself and scaling.metric is not None and scaling.metric not in LOAD_METRICS:
        yield _problem(f"{GROUP}metric", f"{scaling.metric!r} is not right", "one of " + ", ".join(LOAD_METRICS))
    if scaling.metric == "":
        yield _problem(f"{GROUP}metric", "empty", "a metric's name")


def read_rollout_duration(annotations: Mapping[str, str]) -> float | Problem | None:
    """The rollout duration that a Service or Route asks for, in seconds; None if it asks for none, a problem if it is wrong."""
    for name in _spellings(_ROLLOUT_DURATION.key):
        if name in annotations:
            try:
                return float(_ROLLOUT_DURATION.read(annotations[name], plain=False))
            except InvalidValue as error:
                return _problem(name, f"{annotations[name]!r} is not right", error.expected)
    return None


def _problem(name: str, what: str, expected: str) -> Problem:
    return Problem(where=f"annotation {name}", what=what, expected=expected)
