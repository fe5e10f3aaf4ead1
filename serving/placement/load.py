"""The load of nodes over the last minutes: mean and deviation, from single measurements.

Input: NodeMetrics as a list of metrics.k8s.io/v1beta1 brings them, and what the nodes have. Output: ``NodeUsage`` of each
node, in percent of what is allocatable. A measurement counts once, however often it is listed. A node that is listed no
more is forgotten. It lists nothing itself.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from serving.model.errors import InvalidValue
from serving.model.nodata import NoData
from serving.model.quantity import parse_bytes, parse_millicores
from serving.placement.book import NodeFacts
from serving.placement.scores.metrics import NodeUsage, usage_of

_NOTHING_MEASURED = NoData(missing="measurement of the node")


class _LoadSample(msgspec.Struct, frozen=True):
    """One measurement, in percent; None where the measurement or its whole is unknown."""

    stamp: str
    at_s: float
    cpu_percent: float | None
    memory_percent: float | None


class NodeLoads:
    """The newest samples of each node, ``samples_max`` at most."""

    def __init__(self, samples_max: int) -> None:
        self._samples_max = samples_max
        self._by_node: dict[str, deque[_LoadSample]] = {}

    def take(
        self, items: Iterable[Mapping[str, Any]], node: Callable[[str], NodeFacts | None], now_s: float
    ) -> dict[str, NodeUsage]:
        """Add a complete list of NodeMetrics; returns the usage of each node. ``node`` finds a node by name."""
        before, self._by_node = self._by_node, {}
        for item in items:
            name, stamp = item["metadata"]["name"], str(item.get("timestamp", ""))
            samples = before.get(name) or deque(maxlen=self._samples_max)
            self._by_node[name] = samples
            facts = node(name)
            if facts is not None and (not samples or samples[-1].stamp != stamp):
                used = item.get("usage") or {}
                cpu = _percent(used.get("cpu"), parse_millicores, facts.allocatable_cpu_m)
                memory = _percent(used.get("memory"), parse_bytes, facts.allocatable_memory_bytes)
                samples.append(_LoadSample(stamp, now_s, cpu, memory))
        return {name: _usage(samples) for name, samples in self._by_node.items() if samples}


def _usage(samples: deque[_LoadSample]) -> NodeUsage:
    return NodeUsage(
        at_s=samples[-1].at_s,
        cpu=usage_of((one.cpu_percent for one in samples), missing=_NOTHING_MEASURED),
        memory=usage_of((one.memory_percent for one in samples), missing=_NOTHING_MEASURED),
    )


def _percent(written: object, parse: Callable[[str], int], allocatable: int) -> float | None:
    if written is None or allocatable <= 0:
        return None
    try:
        return 100.0 * parse(str(written)) / allocatable
    except InvalidValue:
        return None
