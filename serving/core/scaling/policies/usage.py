"""Collects the cpu and memory of pods for triggers: usage from PodMetrics, requests from Pods.

Input: lists of metrics.k8s.io/v1beta1 objects, and Pods. Output: ``ContainerUse`` of each container. A measurement that
has not changed for a minute is dropped, because its source has stopped. The module makes no calls.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from serving.core.model.quantity import Resources, resources_of
from serving.core.model.stat import Stat
from serving.core.scaling.policies.triggertypes import ContainerUse, ObservedPods
from serving.core.scaling.revision import Trouble

# Four measurement periods of metrics-server, of 15 s each.
_VALID_S = 60.0
_PodKey = tuple[str, str]


class _MeasuredPod(msgspec.Struct, frozen=True):
    """The last measurement of a pod, with the measurement's timestamp and the time of receipt."""

    stamp: str
    since_s: float
    containers: tuple[Mapping[str, Any], ...]


class Usages:
    """The latest measurement of each pod."""

    __slots__ = ("_by_pod",)

    def __init__(self) -> None:
        self._by_pod: dict[_PodKey, _MeasuredPod] = {}

    def __len__(self) -> int:
        return len(self._by_pod)

    def replace(self, items: Iterable[Mapping[str, Any]], now_s: float) -> None:
        """Replace all measurements by a complete list of PodMetrics."""
        before, self._by_pod = self._by_pod, {}
        for item in items:
            metadata = item.get("metadata") or {}
            key = (str(metadata.get("namespace", "")), str(metadata.get("name", "")))
            stamp, old = str(item.get("timestamp", "")), before.get(key)
            since_s = old.since_s if old is not None and old.stamp == stamp else now_s
            self._by_pod[key] = _MeasuredPod(stamp, since_s, tuple(item.get("containers") or ()))

    def used(self, pod: _PodKey, now_s: float) -> Mapping[str, Resources]:
        """The usage of each container of a pod; empty without a recent measurement."""
        metrics = self._by_pod.get(pod)
        if metrics is None or now_s - metrics.since_s >= _VALID_S:
            return {}
        return {
            str(container.get("name", "")): resources_of(container.get("usage")) for container in metrics.containers
        }

    def new_measurement(self, pod: _PodKey, now_s: float) -> Mapping[str, Resources]:
        """The usage of a pod's containers, if the list received at ``now_s`` measured it again; otherwise empty."""
        metrics = self._by_pod.get(pod)
        return {} if metrics is None or metrics.since_s != now_s else self.used(pod, now_s)


def requests_of(containers: Iterable[Mapping[str, Any]]) -> dict[str, Resources]:
    """The requests of each container of a pod or revision, by name."""
    return {
        str(container.get("name", "")): resources_of((container.get("resources") or {}).get("requests"))
        for container in containers
    }


def container_uses(requests: Mapping[str, Resources], used: Mapping[str, Resources]) -> tuple[ContainerUse, ...]:
    """The containers of one pod; empty if the pod is not measured."""
    if not used:
        return ()
    return tuple(
        ContainerUse(requested=requested, used=used.get(name, Resources())) for name, requested in requests.items()
    )


def observed_pods(
    *,
    present_scale: int,
    ready: Iterable[str],
    troubles: Collection[Trouble],
    pods: Mapping[str, Stat],
    uses: Callable[[str], tuple[ContainerUse, ...]],
    occupied_concurrency: float,
) -> ObservedPods:
    """A revision's pods by state, for triggers. The counts add up to the scale, even if some pods do not exist yet.

    A pod is occupied if its last report has a mean of at least ``occupied_concurrency`` requests in flight. Example: at
    scale 5 with 3 of 4 ready pods busy, 3 are occupied, 1 is idle, and 1 is being created.
    """
    names = sorted(ready)
    ready_count = min(len(names), present_scale)
    busy = [name for name in names if name in pods and pods[name].concurrency >= occupied_concurrency]
    occupied_count = min(len(busy), ready_count)
    return ObservedPods(
        creating_count=present_scale - ready_count,
        idle_count=ready_count - occupied_count,
        occupied_count=occupied_count,
        pending_count=sum(trouble is Trouble.PENDING for trouble in troubles),
        failing_count=sum(trouble is Trouble.FAILING for trouble in troubles),
        pods=tuple(use for name in names if (use := uses(name))),
        gauges=_gauges(pods[name] for name in names if name in pods),
    )


def _gauges(stats: Iterable[Stat]) -> dict[str, float]:
    """Gauges reported by the apps of all ready pods, summed by name."""
    total: dict[str, float] = {}
    for stat in stats:
        for name, value in stat.gauges.items():
            total[name] = total.get(name, 0.0) + value
    return total
