"""Cases of the resource priorities of Kubernetes 1.7 (plugin/pkg/scheduler/algorithm/priorities), format in their spec.

Kinds: ``raw`` (one resource of one node), ``nonzero_requests`` (the sums of one pod), ``node`` (all that one pod gives
on one node, with both providers). A pod is a list of containers [cpu in millicores, memory in bytes], where -1 stands
for a missing key. Everything is compared exactly; memory is written ``mem`` there.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from serving.core.model.quantity import Resources
from serving.core.settings.placement import (
    CLUSTER_AUTOSCALER_PROVIDER,
    DEFAULT_PROVIDER,
    ORIGINAL,
    PlacementSettings,
)
from serving.nodes.placement.scores.arrays import share
from serving.nodes.placement.scores.balanced import BalancedResult
from serving.nodes.placement.scores.fit import FitResult, unused_tenths, used_tenths
from serving.nodes.placement.scores.pod import Container, PodContainers, PodDemand, pod_demand
from serving.nodes.placement.scores.provider import Scorer, Scores
from tests.conformance.compare import same
from tests.conformance.placed_node import demand_as_read, table_of_node

Json = dict[str, Any]
ABSENT = -1


def expected(case: Json) -> Json:
    """The compared part: all of "expect"."""
    expect: Json = case["expect"]
    return expect


def agrees(wanted: Json, fields: Json) -> bool:
    """Whether both are equal exactly."""
    return same(wanted, fields)


def result_of(case: Json) -> Json:
    """Run a case of any kind."""
    return RESULTS[case["kind"]](case["in"])


def _raw(entry: Json) -> Json:
    requested = np.array([entry["requested"]], dtype=np.int64)
    capacity = np.array([entry["capacity"]], dtype=np.int64)
    return {
        "fraction": float(share(requested, capacity, of_nothing=1.0)[0]),
        "unused": int(unused_tenths(requested, capacity)[0]),
        "used": int(used_tenths(requested, capacity)[0]),
    }


def _nonzero_requests(entry: Json) -> Json:
    demand = _demand(entry["pod"])
    return {"cpu_m": demand.nonzero_cpu_m, "mem_bytes": demand.nonzero_memory_bytes}


def _node(fields: Json) -> Json:
    spreading, packing = _scores(fields, DEFAULT_PROVIDER), _scores(fields, CLUSTER_AUTOSCALER_PROVIDER)
    least, balanced, most = _scores_of(spreading, 0), _scores_of(spreading, 1), _scores_of(packing, 0)
    assert isinstance(least, FitResult)
    assert isinstance(most, FitResult)
    assert isinstance(balanced, BalancedResult)
    free, occupied, evenness = least.explain(0), most.explain(0), balanced.explain(0)
    return {
        "total_cpu_m": free.cpu.total,
        "total_mem_bytes": free.memory.total,
        "least_cpu": free.cpu.score,
        "least_mem": free.memory.score,
        "least_requested": int(least.score[0]),
        "most_cpu": occupied.cpu.score,
        "most_mem": occupied.memory.score,
        "most_requested": int(most.score[0]),
        "cpu_fraction": evenness.cpu_ratio,
        "mem_fraction": evenness.memory_ratio,
        "balanced_resource_allocation": int(balanced.score[0]),
        "default_provider_sum": float(spreading.total[0]),
        "cluster_autoscaler_provider_sum": float(packing.total[0]),
    }


def _scores(entry: Json, provider: str) -> Scores:
    """By the placement daemon's own path: Node and Pods as objects, its book, its table."""
    table = table_of_node(
        entry["allocatable_cpu_m"], entry["allocatable_mem_bytes"], (_containers(pod) for pod in entry["pods"] or ())
    )
    settings = PlacementSettings(provider=provider, quirks=ORIGINAL)
    return Scorer(settings).score(table, demand_as_read(_containers(entry["pod"])), now_s=0.0)


def _scores_of(scores: Scores, part: int) -> object:
    return scores.parts[part].result


def _demand(containers: list[list[int]] | None) -> PodDemand:
    return pod_demand(_containers(containers))


def _containers(containers: list[list[int]] | None) -> PodContainers:
    return PodContainers(
        containers=tuple(
            Container(request=Resources(cpu_m=_present(cpu_m), memory_bytes=_present(memory_bytes)))
            for cpu_m, memory_bytes in containers or ()
        )
    )


def _present(amount: int) -> int | None:
    return None if amount == ABSENT else amount


RESULTS: dict[str, Callable[[Json], Json]] = {
    "raw": _raw,
    "nonzero_requests": _nonzero_requests,
    "node": _node,
}
