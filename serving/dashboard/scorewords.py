"""The reasons of node scores as sentences."""

from collections.abc import Mapping

import msgspec

from serving.placement.scores.balanced import BalancedWhy
from serving.placement.scores.fit import FitWhy
from serving.placement.scores.load_variation import LoadVariationWhy, ResourceLoad
from serving.placement.scores.low_risk import LowRiskWhy

_GIB = 2**30

SCORE_WORDS: Mapping[str, str] = {
    "LeastRequested": "least requested",
    "MostRequested": "most requested",
    "BalancedResourceAllocation": "balanced",
    "LowRiskOverCommitment": "low risk",
    "LoadVariationRiskBalancing": "steady load",
}
"""Display names of node scores by their names in the settings."""


def sentence_of(why: msgspec.Struct) -> str:
    """The reason of one score of one node as a sentence with its numbers; "" for an unknown kind."""
    if isinstance(why, FitWhy):
        return (
            f"with the pod {why.cpu.total / 1000:g} of {why.cpu.allocatable / 1000:g} cores ({why.cpu.score} of 10) and "
            f"{why.memory.total / _GIB:.2g} of {why.memory.allocatable / _GIB:.2g} GiB ({why.memory.score} of 10)"
        )
    if isinstance(why, BalancedWhy):
        full = f"; {' and '.join(why.full)} full" if why.full else ""
        return f"with the pod {why.cpu_ratio:.0%} of cpu and {why.memory_ratio:.0%} of memory are requested{full}"
    if isinstance(why, LowRiskWhy):
        zero = f", forced to 0: {why.forced_zero.replace('_', ' ')}" if why.forced_zero else ""
        return f"risk of overuse: cpu {why.cpu.risk:.2f}, memory {why.memory.risk:.2f}; {why.worst} decides{zero}"
    if isinstance(why, LoadVariationWhy):
        return f"measured load with the pod: cpu {_load(why.cpu)}, memory {_load(why.memory)}; the worse decides"
    return ""


def _load(one: ResourceLoad | None) -> str:
    if one is None:
        return "not measured"
    return f"{one.mean_ratio:.0%} ± {one.deviation_ratio:.0%}"
