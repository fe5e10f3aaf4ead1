"""What nodes use, and how they score for the next pod of a revision: the dashboard's lines of nodes, made fuller.

Input: lines of nodes with what their pods ask for, NodeMetrics as a list brings them, and the demand of one pod. Output: the
same lines with ``used`` and ``scores``; None where nobody measured, or where there is no choice between nodes.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from serving.dashboard.views import View, amount
from serving.model.errors import SettingsError
from serving.model.nodata import NoData
from serving.scheduler.metrics import NodeUsage, Usage
from serving.scheduler.nodes import Node, node_table
from serving.scheduler.pod import Demand
from serving.scheduler.provider import PROVIDERS, Scorer
from serving.settings.placement import PlacementSettings, read_weights

__all__ = ["NodeScores", "NodeUses", "median_demand"]

# metrics-server measures each 15 s; four of its rounds.
_VALID_S = 60.0
_NAMES = {
    "LeastRequested": "least requested",
    "MostRequested": "most requested",
    "BalancedResourceAllocation": "balanced",
    "LowRiskOverCommitment": "low risk",
}
_GIB = 2**30


class _Sample(msgspec.Struct, frozen=True):
    """One measurement, its own word for when, and since when we have it."""

    stamp: str
    at_s: float
    cpu_millicores: int
    memory_bytes: int


class NodeUses:
    """The last measurements of each node, ``samples_max`` at most."""

    def __init__(self, samples_max: int) -> None:
        self._samples_max = samples_max
        self._by_node: dict[str, deque[_Sample]] = {}

    def __repr__(self) -> str:
        return f"NodeUses({len(self._by_node)} nodes)"

    def take(self, items: Iterable[Mapping[str, Any]], now_s: float) -> None:
        """All NodeMetrics that there are; a measurement counts once, and a node without one is forgotten."""
        before, self._by_node = self._by_node, {}
        for item in items:
            name, stamp = item["metadata"]["name"], str(item.get("timestamp", ""))
            used = item.get("usage") or {}
            samples = self._by_node[name] = before.get(name) or deque(maxlen=self._samples_max)
            if not samples or samples[-1].stamp != stamp:
                cpu, memory = amount(used.get("cpu"), is_cpu=True), amount(used.get("memory"), is_cpu=False)
                samples.append(_Sample(stamp, now_s, cpu, memory))

    def used(self, node: str, now_s: float) -> View | None:
        """What a node uses; None if nobody has measured it of late."""
        samples = self._by_node.get(node)
        if not samples or now_s - samples[-1].at_s >= _VALID_S:
            return None
        return {"cpu_millicores": samples[-1].cpu_millicores, "memory_bytes": samples[-1].memory_bytes}

    def usage(self, line: View) -> NodeUsage | NoData:
        """Mean and deviation as node scores take them."""
        samples = self._by_node.get(line["name"])
        if not samples:
            return NoData(missing="measurement of the node")
        return NodeUsage(
            at_s=samples[-1].at_s,
            cpu=_moments([one.cpu_millicores for one in samples], line["cpu_millicores"]),
            memory=_moments([one.memory_bytes for one in samples], line["memory_bytes"]),
        )


class NodeScores:
    """Scores nodes by the settings of placement. Without scipy low risk is left out."""

    def __init__(self, settings: PlacementSettings) -> None:
        self._weights = read_weights(settings.score_weights) or PROVIDERS[settings.provider]
        self._version = 0
        try:
            self._scorer = _scorer(settings, _NAMES)
        except SettingsError:
            self._scorer = _scorer(settings, [name for name in _NAMES if name != "LowRiskOverCommitment"])

    def __repr__(self) -> str:
        return f"NodeScores({self._weights})"

    def of(self, lines: list[View], pod: Demand, *, uses: NodeUses, now_s: float) -> dict[str, list[View]]:
        """The scores of each node for one pod, with a sentence each; nothing where fewer than two nodes say their size."""
        sized = [line for line in lines if line["cpu_millicores"] and line["memory_bytes"]]
        if len(sized) < 2:
            return {}
        self._version += 1
        nodes = (
            Node(
                name=line["name"],
                allocatable_cpu_m=line["cpu_millicores"],
                allocatable_memory_bytes=line["memory_bytes"],
                demand=line["demand"],
                usage=uses.usage(line),
            )
            for line in sized
        )
        scores = self._scorer.score(node_table(nodes, version=self._version), pod, now_s=now_s)
        return {line["name"]: [self._part(part) for part in scores.explain(line["name"]).parts] for line in sized}

    def _part(self, part: Any) -> View:  # noqa: ANN401 - a ScorePart, of which each kind has its own why
        return {
            "name": _NAMES[part.name],
            "score": part.score,
            "score_max": part.score_max,
            "weight": self._weights.get(part.name, 0),
            "why": _sentence(part.name, part.why),
        }


def median_demand(demands: Iterable[Demand]) -> Demand:
    """The middle of what pods ask for, amount by amount; of none, a pod that asks for nothing."""
    found = list(demands)
    if not found:
        return Demand()
    names = Demand.__struct_fields__
    return Demand(**{name: statistics.median_low(getattr(one, name) for one in found) for name in names})


def _scorer(settings: PlacementSettings, names: Iterable[str]) -> Scorer:
    return Scorer(msgspec.structs.replace(settings, score_weights=", ".join(f"{name}=1" for name in names)))


def _sentence(name: str, why: Any) -> str:  # noqa: ANN401 - each score has its own record
    if name == "BalancedResourceAllocation":
        full = f"; {' and '.join(why.full)} full" if why.full else ""
        return f"with the pod {why.cpu_ratio:.0%} of cpu and {why.memory_ratio:.0%} of memory are asked for{full}"
    if name == "LowRiskOverCommitment":
        zero = f", forced to 0: {why.forced_zero.replace('_', ' ')}" if why.forced_zero else ""
        return f"risk of overuse: cpu {why.cpu.risk:.2f}, memory {why.memory.risk:.2f}; {why.worst} decides{zero}"
    return (
        f"with the pod {why.cpu.total / 1000:g} of {why.cpu.allocatable / 1000:g} cores ({why.cpu.score} of 10) and "
        f"{why.memory.total / _GIB:.2g} of {why.memory.allocatable / _GIB:.2g} GiB ({why.memory.score} of 10)"
    )


def _moments(values: list[int], whole: int) -> Usage | NoData:
    if whole <= 0:
        return NoData(missing="size of the node")
    percents = [100.0 * value / whole for value in values]
    mean = math.fsum(percents) / len(percents)
    return Usage(mean_percent=mean, deviation_percent=statistics.pstdev(percents, mean))
