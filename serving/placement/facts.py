"""Reads objects for placement: the capacity of a Node, and the requests of a Pod.

Input: objects as the API has them. Output: small records, or None for a pod that takes nothing of any node. An amount that
cannot be read counts as absent: the server refuses such a value, so there is none.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from serving.model.objects import key_of
from serving.model.quantity import resources_of
from serving.placement.scores.pod import Container, PodContainers, PodDemand, pod_demand

_OVER = ("Succeeded", "Failed")


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A node's facts for placement. ``pod_count_max`` is the number of pods it may run; None if it is not set."""

    name: str
    allocatable_cpu_m: int
    allocatable_memory_bytes: int
    pod_count_max: int | None


class PlacedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod on a node, with its requests."""

    key: tuple[str, str]
    node: str
    demand: PodDemand


def node_of(found: Mapping[str, Any]) -> NodeFacts:
    """The facts of a Node object."""
    allocatable = (found.get("status") or {}).get("allocatable") or {}
    amounts = resources_of(allocatable)
    pods = str(allocatable.get("pods", ""))
    return NodeFacts(
        name=found["metadata"]["name"],
        allocatable_cpu_m=amounts.cpu_m or 0,
        allocatable_memory_bytes=amounts.memory_bytes or 0,
        pod_count_max=int(pods) if pods.isdecimal() else None,
    )


def pod_of(found: Mapping[str, Any]) -> PlacedPod | None:
    """The facts of a bound Pod; None for a pending or ended one."""
    spec = found.get("spec") or {}
    node, phase = spec.get("nodeName"), (found.get("status") or {}).get("phase")
    if not node or phase in _OVER:
        return None
    return PlacedPod(key=key_of(found), node=node, demand=demand_of(found))


def demand_of(pod: Mapping[str, Any]) -> PodDemand:
    """The demand of a Pod."""
    spec = pod.get("spec") or {}
    return pod_demand(
        PodContainers(
            containers=_containers(spec.get("containers") or ()),
            init_containers=_containers(spec.get("initContainers") or ()),
            overhead=resources_of(spec.get("overhead")),
        )
    )


def _containers(written: Iterable[Mapping[str, Any]]) -> tuple[Container, ...]:
    return tuple(
        Container(
            request=resources_of((one.get("resources") or {}).get("requests")),
            limit=resources_of((one.get("resources") or {}).get("limits")),
            is_sidecar=one.get("restartPolicy") == "Always",
        )
        for one in written
    )
