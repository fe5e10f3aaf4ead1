"""The use of pods, from PodMetrics of the metrics API."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from serving.core.model.objects import name_of, namespace_of, nested
from serving.tools.dashboard.views import amount


class PodUse(NamedTuple):
    """Cores and memory in use by all containers of a pod."""

    cpu_cores: float
    memory_bytes: int


def pod_uses(items: Iterable[Mapping[str, Any]]) -> dict[str, PodUse]:
    """The use of each pod, by "namespace/name"."""
    return {f"{namespace_of(measured)}/{name_of(measured)}": _use_of(measured) for measured in items}


def _use_of(measured: Mapping[str, Any]) -> PodUse:
    usages = [nested(container, "usage") or {} for container in measured.get("containers") or ()]
    millicores = sum(amount(usage.get("cpu"), is_cpu=True) for usage in usages)
    return PodUse(millicores / 1000, sum(amount(usage.get("memory"), is_cpu=False) for usage in usages))
