"""The node scores as their specifications tell them: one node at a time, in plain Python.

The peer that ``serving.nodes.placement.scores`` is timed against, and held against in the property tests. It does what the originals
do, defects included; scipy's beta function is all that it shares with the product.
"""

import math

import msgspec
from scipy.special import betainc

from serving.core.model.nodata import NoData
from serving.nodes.placement.scores.metrics import Usage
from serving.nodes.placement.scores.nodes import ScoredNode
from serving.nodes.placement.scores.pod import PodDemand


class NaivePod(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of a pod, or of all pods of a node; each as (cpu, memory)."""

    nonzero: tuple[int, int]
    request: tuple[int, int]
    limit: tuple[int, int]


class NaiveNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node. ``load`` is None without an entry among the metrics, else (mean, deviation) in percent or None each."""

    allocatable: tuple[int, int]
    pods: NaivePod
    load: tuple[tuple[float, float] | None, tuple[float, float] | None] | None


def naive_pod(demand: PodDemand) -> NaivePod:
    """The product's record of a pod, or of all pods of a node."""
    return NaivePod(
        nonzero=(demand.nonzero_cpu_m, demand.nonzero_memory_bytes),
        request=(demand.request_cpu_m, demand.request_memory_bytes),
        limit=(demand.limit_cpu_m, demand.limit_memory_bytes),
    )


def naive_node(node: ScoredNode) -> NaiveNode:
    """The product's record of a node."""
    usage = node.usage
    return NaiveNode(
        allocatable=(node.allocatable_cpu_m, node.allocatable_memory_bytes),
        pods=naive_pod(node.demand),
        load=None if isinstance(usage, NoData) else (_naive_load(usage.cpu), _naive_load(usage.memory)),
    )


def _naive_load(usage: Usage | NoData) -> tuple[float, float] | None:
    return None if isinstance(usage, NoData) else (usage.mean_percent, usage.deviation_percent)


def least_requested(node: NaiveNode, pod: NaivePod) -> int:
    """Free tenths of both, averaged and cut off."""
    return sum(_unused(node.pods.nonzero[r] + pod.nonzero[r], node.allocatable[r]) for r in (0, 1)) // 2


def most_requested(node: NaiveNode, pod: NaivePod) -> int:
    """Taken tenths of both, averaged and cut off."""
    return sum(_used(node.pods.nonzero[r] + pod.nonzero[r], node.allocatable[r]) for r in (0, 1)) // 2


def balanced(node: NaiveNode, pod: NaivePod) -> int:
    """10 less ten times the difference of the shares, cut off; 0 if one is full."""
    cpu, memory = (_share(node.pods.nonzero[r] + pod.nonzero[r], node.allocatable[r]) for r in (0, 1))
    if cpu >= 1 or memory >= 1:
        return 0
    return int(10 - abs(cpu - memory) * 10)


def low_risk(node: NaiveNode, pod: NaivePod, *, window_size: int, limit_weight: float) -> int:
    """100 times 1 less the risk of the riskier resource, rounded."""
    if node.load is None or not any((*pod.request, *pod.limit)):
        return 0
    risk = max(_risk(node, pod, r, window_size=window_size, limit_weight=limit_weight) for r in (0, 1))
    return math.floor(100 * (1 - risk) + 0.5)


def _unused(total: int, allocatable: int) -> int:
    return 0 if allocatable == 0 or total > allocatable else (allocatable - total) * 10 // allocatable


def _used(total: int, allocatable: int) -> int:
    return 0 if allocatable == 0 or total > allocatable else total * 10 // allocatable


def _share(total: int, allocatable: int) -> float:
    return 1.0 if allocatable == 0 else float(total) / float(allocatable)


def _risk(node: NaiveNode, pod: NaivePod, r: int, *, window_size: int, limit_weight: float) -> float:
    capacity = node.allocatable[r]
    limit = node.pods.limit[r] + pod.limit[r]
    request = min(node.pods.request[r] + pod.request[r], capacity)
    from_limits = (limit - capacity) / (limit - request) if limit > capacity else 0.0
    load = node.load[r] if node.load else None
    from_load = 0.0 if load is None else 1 - _probability(node, r, load, window_size)
    return min(max(limit_weight * from_limits + (1 - limit_weight) * from_load, 0.0), 1.0)


def _probability(node: NaiveNode, r: int, load: tuple[float, float], window_size: int) -> float:
    capacity, limit = node.allocatable[r], node.pods.limit[r]
    request = min(node.pods.request[r], capacity)
    mu, sigma = (min(max(percent * capacity / 100 / capacity, 0.0), 1.0) if capacity else 0.0 for percent in load)
    sigma *= math.sqrt(window_size)
    sigma = min(sigma, math.sqrt(0.99 * mu * (1 - mu)))
    fit = _fit(mu, sigma) if mu and sigma else None
    if mu == 0:
        probability = 1.0
    elif sigma == 0:
        probability = 1.0 if mu <= request / capacity else 0.0
    else:
        probability = _below(fit, min(max(request / capacity, 0.0), 1.0))
    if limit < capacity and request <= limit:
        if limit == 0:
            probability = 1.0
        elif fit and (within := _below(fit, limit / capacity)) > 0:
            probability = min(max(probability / within, 0.0), 1.0)
    return probability


def _fit(mu: float, sigma: float) -> tuple[float, float] | None:
    variance = sigma * sigma + mu * mu - mu * mu
    if variance < 0 or variance >= mu * (1 - mu):
        return None
    k = max(mu * (1 - mu) / variance - 1, 5e-324) if variance else math.inf
    return mu * k, (1 - mu) * k


def _below(fit: tuple[float, float] | None, x: float) -> float:
    if fit is None or x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    value = float(betainc(*fit, x))
    return value if 0 <= value <= 1 else 0.0
