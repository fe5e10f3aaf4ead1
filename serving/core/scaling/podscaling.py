"""Decides a number of pods by cpu and memory use, as a HorizontalPodAutoscaler (autoscaling/v2) does.

Input: the object's spec, requests and use of each pod, the present number of pods, earlier recommendations and changes,
and ``now_s``. Output: the number with its reason. The rules are those of kube-controller-manager: a tolerance of a
tenth, the largest number of all metrics, and no scaling down while a metric is missing. Scaling down uses the highest
recommendation of the last 300 s. Scaling up adds at most 4 pods or 100 % in 15 s. The module uses no clock and no
cluster.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.nodata import NoData
from serving.core.model.objects import Object, nested
from serving.core.model.quantity import parse_quantity

# Relative distance to the target that changes the number.
_TOLERANCE = 0.1
# Kubernetes' default target if an object has no metric, in percent of the request.
_CPU_PERCENT = 80
_DOWN_WINDOW_S = 300.0
_PERIOD_S = 15.0
_PERCENT = 100.0
_DISABLED, _LEAST = "Disabled", "Min"


class MetricTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One metric's target: ``percent`` of the requested resource, or else ``average`` use per pod in cores or bytes.

    ``container`` is the measured container; "" for all containers.
    """

    resource: str
    container: str = ""
    percent: int | None = None
    average: float | None = None


class PodUse(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's use of a resource, and its resource request. ``used`` is None without a measurement.

    A scale-up counts an unready pod as unused.
    """

    requested: float | None
    used: float | None
    is_unready: bool = False


class ScalingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of scaling up, or of scaling down. ``window_s`` is the stabilisation window.

    Each of ``policies`` has a unit (pods or percent), an amount, and the period in seconds in which the count may
    change by the amount. ``select`` is the choice among several policies: Max, Min or Disabled, as in Kubernetes.
    """

    window_s: float
    policies: tuple[tuple[str, float, float], ...]
    select: str = "Max"


class PodScaling(msgspec.Struct, frozen=True, kw_only=True):
    """The scaling settings of a HorizontalPodAutoscaler."""

    count_min: int
    count_max: int
    metrics: tuple[MetricTarget | NoData, ...]
    up: ScalingLimits
    down: ScalingLimits


class PodScalingState(msgspec.Struct, frozen=True, kw_only=True):
    """Recent recommendations (counts) and changes (pods added, or removed if below 0), each with its time."""

    recommended: tuple[tuple[float, int], ...] = ()
    changes: tuple[tuple[float, int], ...] = ()


def pod_scaling_of(hpa: Object) -> PodScaling:
    """Read the scaling settings of a HorizontalPodAutoscaler."""
    spec = hpa["spec"]
    written = spec.get("metrics") or [
        {"resource": {"name": "cpu", "target": {"averageUtilization": _CPU_PERCENT}}, "type": "Resource"}
    ]
    up = (("Pods", 4.0, _PERIOD_S), ("Percent", _PERCENT, _PERIOD_S))
    down = (("Percent", _PERCENT, _PERIOD_S),)
    behavior = spec.get("behavior") or {}
    return PodScaling(
        count_min=spec.get("minReplicas") or 1,
        count_max=spec["maxReplicas"],
        metrics=tuple(_metric(metric) for metric in written),
        up=_limits(behavior.get("scaleUp") or {}, window_s=0.0, policies=up),
        down=_limits(behavior.get("scaleDown") or {}, window_s=_DOWN_WINDOW_S, policies=down),
    )


def _metric(written: Mapping[str, Any]) -> MetricTarget | NoData:
    kind = str(written.get("type"))
    about = written.get(kind[:1].lower() + kind[1:])
    name, target = nested(about or {}, "name"), nested(about or {}, "target") or {}
    if kind not in {"Resource", "ContainerResource"} or name not in {"cpu", "memory"}:
        return NoData(missing=f"metric of type {kind}: only cpu and memory of pods are measured here")
    percent, average = target.get("averageUtilization"), target.get("averageValue")
    if percent is None and average is None:
        return NoData(missing=f"metric {name} has neither averageUtilization nor averageValue")
    return MetricTarget(
        resource=name,
        container=(about or {}).get("container") or "",
        percent=percent,
        average=None if average is None else float(parse_quantity(str(average))),
    )


def _limits(
    written: Mapping[str, Any], *, window_s: float, policies: tuple[tuple[str, float, float], ...]
) -> ScalingLimits:
    written_s = written.get("stabilizationWindowSeconds")
    own = tuple(
        (policy["type"], float(policy["value"]), float(policy["periodSeconds"]))
        for policy in written.get("policies") or ()
    )
    return ScalingLimits(
        window_s=window_s if written_s is None else float(written_s),
        policies=own or policies,
        select=written.get("selectPolicy") or "Max",
    )


def scaled_count(
    state: PodScalingState,
    scaling: PodScaling,
    pods: Sequence[Sequence[PodUse]],
    *,
    present_count: int,
    now_s: float,
) -> tuple[PodScalingState, int, str]:
    """The number of pods to run, the next state, and the reason. ``pods`` has the measured pods by metric."""
    if not present_count:
        return state, 0, "scale 0 is left alone"
    wanted, reason = _by_metrics(scaling, pods, present_count)
    if not scaling.count_min <= present_count <= scaling.count_max:
        wanted = min(max(present_count, scaling.count_min), scaling.count_max)
        reason = f"{present_count} is not between minReplicas {scaling.count_min} and maxReplicas {scaling.count_max}"
    longest_s = max(scaling.up.window_s, scaling.down.window_s)
    # After a restart, the present number counts as a recommendation too.
    before = state.recommended or ((now_s, present_count),)
    recommended = (
        *(recommendation for recommendation in before if now_s - recommendation[0] < longest_s),
        (now_s, wanted),
    )
    steady = _steady(recommended, scaling, present_count=present_count, now_s=now_s)
    if steady != wanted:
        reason = f"{reason}; {steady} held by the stabilization window"
    allowed = _allowed(state.changes, scaling, steady, present_count=present_count, now_s=now_s)
    if allowed != steady:
        reason = f"{reason}; {allowed} is as far as the policies go at once"
    count = min(max(allowed, scaling.count_min), scaling.count_max)
    if count != allowed:
        reason = f"{reason}; {'raised to minReplicas' if count > allowed else 'limited to maxReplicas'} {count}"
    period_s = max(policy[2] for limits in (scaling.up, scaling.down) for policy in limits.policies)
    changes = tuple(change for change in state.changes if now_s - change[0] < period_s)
    if count != present_count:
        changes = (*changes, (now_s, count - present_count))
    return PodScalingState(recommended=recommended, changes=changes), count, reason


def measured_metrics(scaling: PodScaling, pods: Sequence[Sequence[PodUse]]) -> list[Object]:
    """The object's ``status.currentMetrics``: average use of measured pods. Metrics without data are left out."""
    measured: list[Object] = []
    for metric, uses in zip(scaling.metrics, pods, strict=True):
        used = [use.used for use in uses if use.used is not None]
        if isinstance(metric, NoData) or not used:
            continue
        average = sum(used) / len(used)
        current: Object = {"averageValue": f"{average * 1000:.0f}m" if metric.resource == "cpu" else f"{average:.0f}"}
        if metric.percent is not None:
            requested = sum(use.requested or 0.0 for use in uses if use.used is not None)
            if not requested:
                continue
            current["averageUtilization"] = int(_PERCENT * sum(used) / requested)
        kind, own = ("ContainerResource", {"container": metric.container}) if metric.container else ("Resource", {})
        measured.append(
            {"type": kind, kind[:1].lower() + kind[1:]: {"name": metric.resource, **own, "current": current}}
        )
    return measured


def _by_metrics(scaling: PodScaling, pods: Sequence[Sequence[PodUse]], present_count: int) -> tuple[int, str]:
    """The largest count that any metric wants, and the reason.

    If a metric has no data, the count is at least the present one.
    """
    counts, missing = [], []
    for metric, uses in zip(scaling.metrics, pods, strict=True):
        outcome = metric if isinstance(metric, NoData) else _by_metric(metric, uses, present_count)
        if isinstance(outcome, NoData):
            missing.append(outcome.missing)
        else:
            counts.append(outcome)
    count, reason = max(counts, default=(present_count, ""), key=lambda outcome: outcome[0])
    if missing and count <= present_count:
        return present_count, "; ".join(missing)
    return count, reason


def _by_metric(metric: MetricTarget, uses: Sequence[PodUse], present_count: int) -> tuple[int, str] | NoData:
    where = f"{metric.resource}{f' of container {metric.container}' if metric.container else ''}"
    if metric.percent is not None and any(use.requested is None for use in uses):
        return NoData(missing=f"{where}: a pod requests none, so that there is no share of it")
    measured = [use for use in uses if use.used is not None and not use.is_unready]
    if not measured:
        return NoData(missing=f"{where}: no ready pod is measured yet")
    ratio = _ratio(metric, measured)
    shown = f"{where} at {_amount(metric, ratio)}"
    rest = [use for use in uses if use.used is None or (use.is_unready and ratio > 1)]
    if not rest:
        # Only ready pods enter the ratio; starting pods already exist to take the load.
        return (present_count if abs(1 - ratio) <= _TOLERANCE else math.ceil(ratio * len(measured))), shown
    # A missing measurement counts against a change: as no usage on the way up, as full usage on the way down.
    assumed = [msgspec.structs.replace(use, used=0.0 if ratio > 1 else _full(metric, use)) for use in rest]
    careful = _ratio(metric, [*measured, *assumed])
    is_turned = (ratio < 1) != (careful < 1)
    count = math.ceil(careful * (len(measured) + len(assumed)))
    is_turned = is_turned or (count > present_count if careful < 1 else count < present_count)
    is_kept = is_turned or abs(1 - careful) <= _TOLERANCE
    return (present_count if is_kept else count), f"{shown}, {len(rest)} not measured or not ready"


def _ratio(metric: MetricTarget, uses: Sequence[PodUse]) -> float:
    """The usage relative to the target."""
    used = sum(use.used or 0.0 for use in uses)
    if metric.percent is None:
        return used / (len(uses) * (metric.average or 1.0))
    return used * _PERCENT / (sum(use.requested or 0.0 for use in uses) or 1.0) / metric.percent


def _full(metric: MetricTarget, use: PodUse) -> float:
    if metric.percent is None:
        return metric.average or 0.0
    return (use.requested or 0.0) * max(_PERCENT, metric.percent) / _PERCENT


def _amount(metric: MetricTarget, ratio: float) -> str:
    if metric.percent is not None:
        return f"{ratio * metric.percent:.0f}%/{metric.percent}%"
    average = metric.average or 0.0
    if metric.resource == "cpu":
        return f"{ratio * average * 1000:.0f}m/{average * 1000:.0f}m"
    return f"{ratio * average / 2**20:.0f}Mi/{average / 2**20:.0f}Mi"


def _steady(recommended: Sequence[tuple[float, int]], scaling: PodScaling, *, present_count: int, now_s: float) -> int:
    """Stabilise the count: at least the minimum, and at most the maximum of recent recommendations.

    The minimum is over the window for scaling up, the maximum over the window for scaling down.
    """
    *earlier, (_, newest) = recommended
    up_count = min([newest, *(count for at_s, count in earlier if now_s - at_s < scaling.up.window_s)])
    down_count = max([newest, *(count for at_s, count in earlier if now_s - at_s < scaling.down.window_s)])
    return min(max(present_count, up_count), down_count)


def _allowed(
    changes: Sequence[tuple[float, int]], scaling: PodScaling, wanted: int, *, present_count: int, now_s: float
) -> int:
    """Limit the number by the change policies of its direction."""
    if wanted == present_count:
        return wanted
    is_up = wanted > present_count
    limits = scaling.up if is_up else scaling.down
    if limits.select == _DISABLED:
        return present_count
    ends = []
    for kind, amount, period_s in limits.policies:
        begin_count = present_count - sum(difference for at_s, difference in changes if now_s - at_s < period_s)
        step = amount if kind == "Pods" else begin_count * amount / _PERCENT
        ends.append(math.ceil(begin_count + step) if is_up else math.floor(begin_count - step))
    is_far = (limits.select != _LEAST) == is_up
    end = max(ends) if is_far else min(ends)
    return min(wanted, max(end, present_count)) if is_up else max(wanted, min(end, present_count))
