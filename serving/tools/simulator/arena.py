"""Figures of policies on workloads over several seeds, with intervals, and the rules that each policy breaks.

An interval is the mean over the seeds ± its half-width for 95 % by Student's distribution.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from serving.tools.simulator.curve import EqualPodSeconds
from serving.tools.simulator.report import COLD_WORTH_S, PolicyReport, WorstFunctions

PRICES = (20.0, COLD_WORTH_S, 180.0)
"""Prices of a cold request, in pod-seconds."""

# The 97.5th percentile of Student's distribution, from 1 degree of freedom on; later values are below the last.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
# A policy is worse above these limits: late requests and cost as changes, functions as a share.
_LATE_MAX, _COST_MAX, _WORSE_SHARE_MAX = 0.10, 0.02, 0.02


class Interval(msgspec.Struct, frozen=True):
    """A mean over seeds, and the half-width of its 95 % interval; None with one seed."""

    mean: float
    half: float | None


class ArenaRow(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one policy on one workload, for one start time of pods and one concurrency limit.

    ``figures`` are means over the seeds by name. ``changes`` compare them with the first policy's, as ratios: -0.3 is
    30 % less. ``functions`` are the functions with the worst results compared with the first policy.
    """

    policy: str
    figures: Mapping[str, Interval]
    changes: Mapping[str, Interval]
    """Changes from the first policy as ratios, each from the same seeds; -0.3 is 30 % less."""

    functions: WorstFunctions | None = None
    """The functions with the worst results compared with the first policy; None without enough requests."""

    @property
    def broken_rules(self) -> tuple[str, ...]:
        """The rules broken by the policy: late requests, cost, single functions, or cold requests and pod-seconds."""
        cold, late, pod_seconds, cost = (self.changes[name].mean for name in CHANGES)
        worse = self.functions is not None and self.functions.worse > _WORSE_SHARE_MAX * self.functions.functions
        broken = {
            "cold and pod-seconds": cold > 0 and pod_seconds > 0,
            "late": late > _LATE_MAX,
            "cost": cost > _COST_MAX,
            "functions": worse,
        }
        return tuple(rule for rule, is_broken in broken.items() if is_broken)


class ArenaSection(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all policies on one workload, for one start time of pods and one concurrency limit.

    ``functions``, ``requests`` and ``hours`` are the size of the workload. ``equal`` compares the policy that the plan
    names with each other policy at equal pod-seconds.
    """

    workload: str
    start_s: float
    limit: int
    functions: int
    requests: float
    hours: float
    rows: Sequence[ArenaRow]
    equal: Mapping[str, EqualPodSeconds] = {}
    """The changes of the plan's policy at the pod-seconds of each other policy."""


def _cost(price: float) -> Callable[[PolicyReport], float]:
    return lambda report: report.pod_seconds + price * report.cold_requests


_FIGURES: Mapping[str, Callable[[PolicyReport], float]] = {
    "cold": lambda report: report.cold_requests,
    "late": lambda report: report.late_share,
    "p99 wait": lambda report: report.wait_p99_s,
    "pod-seconds": lambda report: report.pod_seconds,
    "flaps": lambda report: report.flaps_per_hour,
    **{f"cost at {price:g}": _cost(price) for price in PRICES},
}

CHANGES: Mapping[str, Callable[[PolicyReport], float]] = {
    "cold": _FIGURES["cold"],
    "late": _FIGURES["late"],
    "pod-seconds": _FIGURES["pod-seconds"],
    "cost": _cost(COLD_WORTH_S),
}
"""Names of the values for the comparison with the first policy."""


def row_of(
    policy: str, reports: Mapping[str, Sequence[PolicyReport]], *, first: str, functions: WorstFunctions | None
) -> ArenaRow:
    """The row of a policy.

    ``reports`` has the reports of each policy, one per seed, including the policy ``first`` (the baseline) and the
    policies "oracle" and "clairvoyant" (lower bounds).
    """
    own = reports[policy]
    figures = {name: interval_of([value(report) for report in own]) for name, value in _FIGURES.items()}
    attained = [report.attained_share for report in own if report.attained_share is not None]
    if attained:
        figures["attained"] = interval_of(attained)
    for name, bound, value in (
        ("cost of oracle", "oracle", CHANGES["cost"]),
        ("pod-seconds of clairvoyant", "clairvoyant", CHANGES["pod-seconds"]),
    ):
        ratios = [1 + _change(value(ours), value(theirs)) for ours, theirs in zip(own, reports[bound], strict=True)]
        figures[name] = interval_of(ratios)
    return ArenaRow(
        policy=policy,
        figures=figures,
        changes={
            name: interval_of(
                [_change(value(ours), value(theirs)) for ours, theirs in zip(own, reports[first], strict=True)]
            )
            for name, value in CHANGES.items()
        },
        functions=functions,
    )


def interval_of(values: Sequence[float]) -> Interval:
    """The mean of one value per seed, with its interval."""
    mean, degrees = statistics.fmean(values), len(values) - 1
    if not degrees:
        return Interval(mean, None)
    student = _STUDENT[min(degrees, len(_STUDENT)) - 1]
    return Interval(mean, student * statistics.stdev(values) / math.sqrt(len(values)))


def _change(ours: float, theirs: float) -> float:
    return ours / theirs - 1.0 if theirs else float(ours > 0)
