"""Compares two revisions of a service over a range: traffic, responses, latency, pods, cost, and settings. Pure.

Input: revisions and their histories. The history has the quantiles of each step, not of the range: the range's
quantiles come from the estimated distribution, in which each step has the weight of its number of responses.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from serving.core.model.errors import ServingError
from serving.core.model.knative import (
    AUTOSCALING_GROUP,
    CREATOR_ANNOTATION,
    LAST_APPLIED_ANNOTATION,
    LAST_MODIFIER_ANNOTATION,
    OWN_AUTOSCALING_GROUP,
    REVISION_STATE_ANNOTATIONS,
    SNAPSHOT_ANNOTATION,
)
from serving.core.model.objects import Object, annotations_of, meant, name_of, nested
from serving.core.scaling.revision import memory_of
from serving.core.traffic.latencies import bucket_of, quantile_s
from serving.net.cluster.servicepatch import newest_first, shares_of
from serving.tools.dashboard.cost import GIB, HOUR_S, RATES, History, lengths_of, price_of, summary

_SHOWN_GROUPS = (f"{AUTOSCALING_GROUP}/", f"{OWN_AUTOSCALING_GROUP}/", SNAPSHOT_ANNOTATION)
# Written by daemons and clients about a revision, and therefore no settings.
_STATES = REVISION_STATE_ANNOTATIONS | {CREATOR_ANNOTATION, LAST_APPLIED_ANNOTATION, LAST_MODIFIER_ANNOTATION}
_STATE_FIELDS = {"servingState"}
_CONTAINERS = {"containers": "", "initContainers": "init "}
_OWN_ROWS = {"name", "image", "env", "resources"}


class SettingDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A setting with its value in two revisions; None for a revision without the setting."""

    name: str
    older: str | None
    newer: str | None


class _SettingValue(NamedTuple):
    value: str
    is_shown: bool


def differences(older: Object, newer: Object) -> list[SettingDifference]:
    """The settings that differ between two Revisions, sorted by name."""
    before, after = dict(_settings(older)), dict(_settings(newer))
    differing = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            differing.append(SettingDifference(name=name, older=_text(old), newer=_text(new)))
        elif old.value != new.value:
            is_shown = old.is_shown and new.is_shown
            texts = (old.value, new.value) if is_shown else ("set", "another value")
            differing.append(SettingDifference(name=name, older=texts[0], newer=texts[1]))
    return differing


def _text(setting: _SettingValue | None) -> str | None:
    if setting is None:
        return None
    return setting.value if setting.is_shown else "set"


def _settings(revision: Object) -> Iterator[tuple[str, _SettingValue]]:
    for name, value in annotations_of(revision).items():
        if name not in _STATES:
            yield name, _SettingValue(str(value), name.startswith(_SHOWN_GROUPS))
    spec: Mapping[str, Any] = meant(nested(revision, "spec") or {})
    for name, value in spec.items():
        if name in _CONTAINERS:
            for container in value:
                is_only = name == "containers" and len(value) == 1
                label = "" if is_only else f"{_CONTAINERS[name]}{container.get('name', '')}: "
                yield from ((label + own, setting) for own, setting in _of_container(container))
        elif name not in _STATE_FIELDS:
            yield name, _SettingValue(_written(value), not isinstance(value, dict | list))


def _of_container(container: Mapping[str, Any]) -> Iterator[tuple[str, _SettingValue]]:
    yield "image", _SettingValue(str(container.get("image", "")), is_shown=True)
    for variable in container.get("env") or ():
        yield f"env {variable.get('name', '')}", _SettingValue(_written(variable), is_shown=False)
    for kind, amounts in (container.get("resources") or {}).items():
        for resource, amount in amounts.items() if isinstance(amounts, dict) else ():
            yield f"{kind}.{resource}", _SettingValue(str(amount), is_shown=True)
    for name, value in container.items():
        if name not in _OWN_ROWS:
            yield name, _SettingValue(_written(value), is_shown=False)


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


_P95, _P99 = 0.95, 0.99
# In a step with fewer responses, p95 is the slowest response.
_MANY = 20
# Parts of a step's responses by duration, and their levels: finer towards the slow end.
_LEVELS = (
    *((0.02 * place - 0.01, 0.02) for place in range(1, 46)),
    *((0.9 + 0.01 * place - 0.005, 0.01) for place in range(1, 6)),
    *((0.95 + 0.002 * place - 0.001, 0.002) for place in range(1, 26)),
)
_QUANTILES = ("p50_s", "p95_s", "p99_s")


class ComparedRevision(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a revision in a time range.

    ``traffic_percent`` is its present share of the traffic. ``errors`` are responses with status 5xx. The ``p`` fields
    are percentiles of the latency. ``gib_seconds`` is requested memory multiplied by time. ``price`` is None if the
    operator has set no prices.
    """

    revision: str
    created: str
    traffic_percent: int
    requests: int
    errors: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    pods_mean: float
    pod_seconds: float
    gib_seconds: float
    price: float | None


class RevisionComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two revisions of a service over a range of seconds since the epoch, and the settings that differ."""

    namespace: str
    service: str
    from_s: float
    to_s: float
    revisions: tuple[ComparedRevision, ComparedRevision]
    settings: list[SettingDifference]


def chosen_pair(service: Object, revisions: Sequence[Object], requested: Sequence[str] = ()) -> tuple[Object, Object]:
    """The two revisions of a service to compare: those ``requested``, else the two with the most traffic.

    If one revision has all traffic, it is compared with the previous revision. Raises ``ServingError``.
    """
    ordered = newest_first(revisions)
    by_name = {name_of(revision): revision for revision in ordered}
    names, service_name = list(by_name), name_of(service)
    unknown = [name for name in requested if name not in by_name]
    if unknown:
        raise ServingError(
            f"{service_name} has no revision {', '.join(unknown)}; there are {', '.join(names) or 'none'}"
        )
    if requested:
        if len(set(requested)) != 2 or len(requested) != 2:
            raise ServingError(
                f"{' and '.join(requested)} cannot be compared; expected two revisions of {service_name}"
            )
        older, newer = requested
        return by_name[older], by_name[newer]
    if len(names) < 2:
        raise ServingError(f"{service_name} has {', '.join(names) or 'no revision'}; a comparison needs two revisions")
    shares = shares_of(service)
    served = sorted((name for name in names if shares.get(name)), key=lambda name: -shares[name])[:2]
    main = names.index(served[0]) if served else 0
    pair = (
        [names.index(name) for name in served]
        if len(served) > 1
        else [main, main + 1 if main + 1 < len(names) else main - 1]
    )
    return by_name[names[max(pair)]], by_name[names[min(pair)]]


def compared(
    service: Object,
    pair: tuple[Object, Object],
    histories: tuple[History, History],
    *,
    span_s: tuple[float, float],
    prices: Mapping[str, float],
) -> RevisionComparison:
    """The comparison of a pair of Revisions with their histories."""
    shares = shares_of(service)
    first, second = (
        _summed(revision, history, percent=shares.get(name_of(revision), 0), prices=prices)
        for revision, history in zip(pair, histories, strict=True)
    )
    return RevisionComparison(
        namespace=str(nested(service, "metadata", "namespace") or ""),
        service=name_of(service),
        from_s=span_s[0],
        to_s=span_s[1],
        revisions=(first, second),
        settings=differences(*pair),
    )


def spread_of(history: History) -> dict[int, float]:
    """An estimate of the number of responses in each duration bucket, from the quantiles of each step."""
    spread: defaultdict[int, float] = defaultdict(float)
    if not history["at_s"]:
        return spread
    rates = [history[name] for name in RATES]
    for place, length_s in enumerate(lengths_of(history["at_s"])):
        count = length_s * sum(rate[place] or 0.0 for rate in rates)
        p50_s, p95_s, p99_s = (history[name][place] for name in _QUANTILES)
        if not count or not p50_s or not p95_s or not p99_s:
            continue
        logs = (math.log(p50_s), math.log(p95_s), math.log(p99_s))
        few = max(1, round(count)) if count < _MANY else 0
        middle, top = (math.ceil(few / 2) / few, 1.0) if few else (0.5, _P95)
        for level, part in [(rank / few, 1 / few) for rank in range(1, few + 1)] or _LEVELS:
            spread[bucket_of(math.exp(_at_level(level, logs, middle=middle, top=top)))] += count * part
    return spread


def _at_level(level: float, quantiles: tuple[float, float, float], *, middle: float, top: float) -> float:
    """The logarithm of a duration, interpolated between the quantiles of one step.

    ``level`` is the share of the step's responses that take at most this duration. ``quantiles`` are the logarithms of
    p50, p95 and p99; ``middle`` and ``top`` are the levels of p50 and p95. Durations below the median are assumed to
    be distributed like those above it.
    """
    p50, p95, p99 = quantiles
    if level > top:
        return p95 + (p99 - p95) * min(1.0, (level - top) / (_P99 - _P95))
    return p50 + (p95 - p50) * (level - middle) / (top - middle) if top > middle else p50


def _summed(revision: Object, history: History, *, percent: int, prices: Mapping[str, float]) -> ComparedRevision:
    name = name_of(revision)
    memory = memory_of(nested(revision, "spec", "containers") or ())
    seen = summary(name, history) if history["at_s"] else None
    pod_hours = seen.pod_hours if seen else 0.0
    spread = spread_of(history)
    p50_s, p95_s, p99_s = (quantile_s(spread, ratio) for ratio in (0.5, 0.95, 0.99))
    return ComparedRevision(
        revision=name,
        created=str(nested(revision, "metadata", "creationTimestamp") or ""),
        traffic_percent=percent,
        requests=seen.requests if seen else 0,
        errors=seen.errors if seen else 0,
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        pods_mean=seen.pods_mean if seen else 0.0,
        pod_seconds=pod_hours * HOUR_S,
        gib_seconds=pod_hours * HOUR_S * memory / GIB,
        price=price_of(pod_hours, memory_bytes=memory, prices=prices),
    )
