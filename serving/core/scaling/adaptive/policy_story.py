"""Records of the adaptive policy's gaps and savings, and their description in a sentence.

Input: costs of both policies. Output: "over the last day: 12 cold requests instead of 31, 40 pod-minutes less than
under Knative's policy, estimated", or under Knative's policy the estimate for the adaptive one. The module imports no
decider, so that a command that only prints sentences starts quickly.
"""

from typing import NamedTuple

import msgspec

from serving.core.model.revisionnumbers import PolicyCosts
from serving.core.settings.autoscaler import KNATIVE_POLICY

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0
# Smaller costs are not reported.
_COVERED_MIN_S = 60.0
# A smaller difference, in pod-seconds and in share, counts as none.
_SAVED_MIN_S, _SAVED_MIN_RATIO = 30.0, 0.005


class _Cost(NamedTuple):
    pod_seconds: float
    cold_requests: float


class HazardCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of the next request by the time since the last one ended (the age, in seconds).

    ``rates`` are requests per second of idle time between consecutive ``ages_s``. At rates above ``threshold`` (1 /
    worth of a cold start) a pod is kept: from the first to the second age of each window. All windows but the first
    start a pod ahead of a request. ``gap_count`` is the number of recorded gaps.
    """

    ages_s: tuple[float, ...]
    rates: tuple[float, ...]
    threshold: float
    windows: tuple[tuple[float, float], ...]
    gap_count: int


class PolicyStory(msgspec.Struct, frozen=True, kw_only=True):
    """One revision: the policy in force, the policy that it is compared with, and the costs of both.

    ``policy`` is the one in force; the other would have ``shadow_scale`` pods now. ``sentence`` tells the savings, ""
    if there are none to report. ``idle_since_wall_s`` is when the last request ended, in seconds since the epoch; None
    without one. ``curve`` is None before the first gap, and if not requested.
    """

    namespace: str
    revision: str
    policy: str
    shadow_scale: int
    costs: PolicyCosts
    sentence: str
    idle_since_wall_s: float | None
    curve: HazardCurve | None


def savings_sentence(costs: PolicyCosts, *, running: str) -> str:
    """A sentence comparing the costs of both policies, where ``running`` is in force; "" without enough data."""
    adaptive = _Cost(costs.adaptive_pod_seconds, costs.adaptive_cold_requests)
    knative = _Cost(costs.knative_pod_seconds, costs.knative_cold_requests)
    if costs.covered_s < _COVERED_MIN_S or not adaptive.pod_seconds + knative.pod_seconds:
        return ""
    span = f"over the last {_span(costs.covered_s)}"
    if running != KNATIVE_POLICY:
        return f"{span}: {_cold(adaptive, knative)}, {_pods(adaptive, knative)} under Knative's policy, estimated"
    cold, other = round(knative.cold_requests), round(adaptive.cold_requests)
    would = "as many" if cold == other else f"{other:,}"
    saved = f"and {_pods(adaptive, knative)} Knative's"
    return f"{span}: {_requests(cold)}; the adaptive policy would have had {would}, {saved}, estimated"


def _span(span_s: float) -> str:
    if span_s >= _DAY_S - _HOUR_S:
        return "day"
    if span_s >= 2 * _HOUR_S:
        return f"{span_s / _HOUR_S:.0f} hours"
    return f"{span_s / _MINUTE_S:.0f} minutes" if span_s >= 2 * _MINUTE_S else "minute"


def _requests(cold: int) -> str:
    return f"{cold:,} cold request{'' if cold == 1 else 's'}"


def _cold(adaptive: _Cost, knative: _Cost) -> str:
    cold, other = round(adaptive.cold_requests), round(knative.cold_requests)
    return f"{_requests(cold)} in both cases" if cold == other else f"{_requests(cold)} instead of {other:,}"


def _pods(adaptive: _Cost, knative: _Cost) -> str:
    saved_s = knative.pod_seconds - adaptive.pod_seconds
    if abs(saved_s) < max(_SAVED_MIN_S, _SAVED_MIN_RATIO * knative.pod_seconds):
        return "as many pod-seconds as"
    size_s = abs(saved_s)
    amount = f"{size_s / _HOUR_S:,.1f} pod-hours" if size_s >= 2 * _HOUR_S else f"{size_s / _MINUTE_S:.0f} pod-minutes"
    if size_s < 2 * _MINUTE_S:
        amount = f"{size_s:.0f} pod-seconds"
    return f"{amount} {'less' if saved_s > 0 else 'more'} than"
