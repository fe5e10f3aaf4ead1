"""Cases of LowRiskOverCommitment of kubernetes-sigs/scheduler-plugins (903da7d, pkg/trimaran), format in its spec.

Kinds: ``beta_fit``, ``reg_inc_beta``, ``probability_below``, ``resource_stats`` (with LoadVariationRiskBalancing on
top), ``pod_resources``, ``node_requests_limits``, ``risk`` (one resource, given in numbers), ``score`` (a whole node).

Containers are {"req": [cpu in millicores, memory in bytes], "lim": the same}, -1 stands for a missing key, null for an
empty list; memory is written ``mem`` there, and in MiB among resource stats. Not a number and infinity are written
null. Smoothing windows and weights go straight to the algorithm, which is why a window may be below 1 here. Only what a
case asks for is compared.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from serving.core.model.nodata import NoData
from serving.core.model.quantity import Resources
from serving.core.settings.placement import ORIGINAL, PlacementSettings
from serving.nodes.placement.scores.arrays import FloatArray, IntArray, Resource
from serving.nodes.placement.scores.load_variation import variation_score
from serving.nodes.placement.scores.low_risk import LowRiskOverCommitment, LowRiskWhy
from serving.nodes.placement.scores.metrics import NodeMetric, Usage, clamped_usage_ratio, read_usage, usage_ratio
from serving.nodes.placement.scores.nodes import place
from serving.nodes.placement.scores.pod import Container, PodContainers, pod_demand
from serving.nodes.placement.scores.risk import (
    Commitment,
    MeasuredLoad,
    fit_beta,
    incomplete_beta,
    limit_risk,
    load_risk,
    probability_below,
    smoothed_deviation,
    total_risk,
)
from tests.conformance.compare import same
from tests.conformance.placed_node import demand_as_read, table_of_node

Json = dict[str, Any]
ABSENT = -1
TOLERANCE = 1e-9
BYTES_PER_MIB = 1024.0 * 1024.0
RESOURCES = {"CPU": Resource.CPU, "Memory": Resource.MEMORY}
VARIATION = re.compile(r"lvrb_margin([\d.]+)_sens([\d.]+)")


def expected(case: Json) -> Json:
    """The compared part: all of "expect"."""
    expect: Json = case["expect"]
    return expect


def agrees(wanted: Json, fields: Json) -> bool:
    """Whether both are equal: whole numbers exactly, others within 1e-9."""
    return all(
        name in fields and (same(value, fields[name]) if name == "score" else _near(value, fields[name]))
        for name, value in wanted.items()
    )


def _near(wanted: object, value: object) -> bool:
    return same(wanted, value, relative=TOLERANCE, absolute=TOLERANCE)


def result_of(case: Json) -> Json:
    """Run a case of any kind."""
    if case["kind"] == "resource_stats":
        return _resource_stats(case["in"], [name for name in case["expect"] if VARIATION.fullmatch(name)])
    return RESULTS[case["kind"]](case["in"])


def _beta_fit(entry: Json) -> Json:
    mean, deviation = _one(entry["mean"]), _one(entry["std"])
    fit = fit_beta(mean, deviation, by_difference=ORIGINAL.small_deviations_get_lost)
    matched = bool(fit.matched[0])
    result: Json = {"matched": matched, "max_variance": max(entry["mean"] * (1 - entry["mean"]), 0.0)}
    if matched:
        a, b = float(fit.alpha[0]), float(fit.beta[0])
        total = a + b
        result |= {
            "alpha": _written(a),
            "beta": _written(b),
            "mean": _written(a / total) if total else None,
            "variance": _written(a * b / (total * total * (total + 1))) if total else None,
        }
    return result


def _reg_inc_beta(entry: Json) -> Json:
    value = float(incomplete_beta(_one(entry["a"]), _one(entry["b"]), _one(entry["x"]))[0])
    return {"nan": math.isnan(value), "value": _written(value)}


def _probability_below(entry: Json) -> Json:
    probability = probability_below(
        _one(entry["mean"]),
        _one(entry["std"]),
        _one(entry["threshold"]),
        small_deviations_get_lost=ORIGINAL.small_deviations_get_lost,
    )
    return {
        "probability": float(probability.probability[0]),
        "fitted": bool(probability.fit.matched[0]),
        "alpha": _written(float(probability.fit.alpha[0])),
        "beta": _written(float(probability.fit.beta[0])),
    }


def _resource_stats(entry: Json, variations: list[str]) -> Json:
    usage = _usage(entry)
    if isinstance(usage, NoData):
        return {"valid": False}
    is_cpu = RESOURCES[entry["resource"]] is Resource.CPU
    capacity = entry["node_cpu_m"] if is_cpu else entry["node_mem_bytes"]
    request = entry["pod_cpu_m"] if is_cpu else entry["pod_mem_bytes"]
    unit = 1.0 if is_cpu else BYTES_PER_MIB
    mean = usage_ratio(_one(usage.mean_percent), _amount(capacity), added=_amount(request))
    deviation = usage_ratio(_one(usage.deviation_percent), _amount(capacity))
    # The score clamps its inputs before it forms the mean; the statistics clamp the mean at the end.
    scored_mean = clamped_usage_ratio(_one(usage.mean_percent), _amount(capacity), added=_amount(request))
    scored_deviation = clamped_usage_ratio(_one(usage.deviation_percent), _amount(capacity))
    scores = {}
    for name in variations:
        match = VARIATION.fullmatch(name)
        assert match
        margin, sensitivity = float(match[1]), float(match[2])
        score = variation_score(
            scored_mean, scored_deviation, _amount(capacity), margin=margin, sensitivity=sensitivity
        )
        scores[name] = float(score[0])
    return {
        "valid": True,
        "capacity": capacity / unit,
        "req": request / unit,
        "used_avg": usage.mean_percent * (capacity / unit) / 100,
        "used_std": usage.deviation_percent * (capacity / unit) / 100,
        "mu": float(mean[0]),
        "sigma": float(deviation[0]),
        **scores,
    }


def _pod_resources(entry: Json) -> Json:
    demand = pod_demand(_pod(entry["pod"]))
    return {
        "request_cpu_m": demand.request_cpu_m,
        "request_mem_bytes": demand.request_memory_bytes,
        "limit_cpu_m": demand.limit_cpu_m,
        "limit_mem_bytes": demand.limit_memory_bytes,
        "best_effort": demand.best_effort,
    }


def _node_requests_limits(fields: Json) -> Json:
    why = _explain(fields, PlacementSettings(quirks=ORIGINAL))[1]
    return {
        "capacity": [why.cpu.allocatable, why.memory.allocatable],
        "request": [why.cpu.request, why.memory.request],
        "limit": [why.cpu.limit, why.memory.limit],
        "request_minus_pod": [why.cpu.request_minus_pod, why.memory.request_minus_pod],
        "limit_minus_pod": [why.cpu.limit_minus_pod, why.memory.limit_minus_pod],
    }


def _risk(entry: Json) -> Json:
    usage = _usage(entry)
    capacity = _amount(entry["capacity"])
    measured = isinstance(usage, Usage)
    mean = usage_ratio(_one(usage.mean_percent if isinstance(usage, Usage) else 0.0), capacity)
    deviation = usage_ratio(_one(usage.deviation_percent if isinstance(usage, Usage) else 0.0), capacity)
    with_pod = Commitment(request=_amount(entry["request"]), limit=_amount(entry["limit"]), allocatable=capacity)
    without_pod = Commitment(
        request=_amount(entry["request_minus_pod"]), limit=_amount(entry["limit_minus_pod"]), allocatable=capacity
    )
    smoothed = smoothed_deviation(mean, deviation, entry["smoothing_window"])
    load = MeasuredLoad(mean=mean, deviation=smoothed, measured=np.array([measured]))
    from_limits = limit_risk(with_pod)
    from_load = load_risk(load, without_pod, ORIGINAL).risk

    # The original shows both parts only through their weighted sum: with all the weight on the one, then on the other.
    def weighted(weight: float) -> float:
        return float(total_risk(from_limits, from_load, _one(weight))[0])

    return {
        "risk_limit": weighted(1.0),
        "risk_load": weighted(0.0),
        "total_risk": weighted(entry["risk_limit_weight"]),
    }


def _score(entry: Json) -> Json:
    weights = entry.get("risk_limit_weights") or {}
    settings = PlacementSettings(
        smoothing_window_size=entry["smoothing_window"],
        cpu_risk_limit_weight=weights.get("cpu", 0.0),
        memory_risk_limit_weight=weights.get("memory", 0.0),
        quirks=ORIGINAL,
    )
    score, why = _explain(entry, settings)
    return {"score": score, "risk_cpu": why.cpu.risk, "risk_memory": why.memory.risk}


def _explain(entry: Json, settings: PlacementSettings) -> tuple[int, LowRiskWhy]:
    metrics = entry.get("metrics") if entry.get("node_in_metrics", True) else None
    usage = None if metrics is None else read_usage(_metrics(metrics), at_s=0.0, quirks=settings.quirks)
    pods = [_pod(pod) for pod in entry["pods"] or ()]
    table = table_of_node(entry["node_cpu_m"], entry["node_mem_bytes"], pods, usage=usage)
    pending = demand_as_read(_pod(entry["pending"]))
    result = LowRiskOverCommitment(settings).evaluate(place(table, pending, now_s=0.0))
    return int(result.score[0]), result.explain(0)


def _usage(entry: Json) -> Usage | NoData:
    usage = read_usage(_metrics(entry["metrics"] or []), at_s=0.0, quirks=ORIGINAL)
    return usage.cpu if RESOURCES[entry["resource"]] is Resource.CPU else usage.memory


def _metrics(metrics: list[Json]) -> list[NodeMetric]:
    return [
        NodeMetric(type=metric["type"], operator=metric.get("operator", ""), value=metric.get("value", 0.0))
        for metric in metrics
    ]


def _pod(pod: Json | None) -> PodContainers:
    pod = pod or {}
    return PodContainers(
        containers=_containers(pod.get("containers")),
        init_containers=_containers(pod.get("init_containers")),
        overhead=_resources(pod.get("overhead")),
    )


def _containers(containers: list[Json] | None) -> tuple[Container, ...]:
    return tuple(
        Container(request=_resources(container.get("req")), limit=_resources(container.get("lim")))
        for container in containers or ()
    )


def _resources(amounts: list[int] | None) -> Resources:
    cpu_m, memory_bytes = (None if amount == ABSENT else amount for amount in amounts or (ABSENT, ABSENT))
    return Resources(cpu_m=cpu_m, memory_bytes=memory_bytes)


def _one(number: float) -> FloatArray:
    return np.array([number], dtype=np.float64)


def _amount(number: int) -> IntArray:
    return np.array([number], dtype=np.int64)


def _written(number: float) -> float | None:
    return number if math.isfinite(number) else None


RESULTS: dict[str, Callable[[Json], Json]] = {
    "beta_fit": _beta_fit,
    "reg_inc_beta": _reg_inc_beta,
    "probability_below": _probability_below,
    "pod_resources": _pod_resources,
    "node_requests_limits": _node_requests_limits,
    "risk": _risk,
    "score": _score,
}
