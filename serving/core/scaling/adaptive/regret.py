"""Compares the costs of a revision's learnt keep-alive with Knative's, gap by gap, and decides which is used.

The policies differ only in the pods that they keep during a gap. So the length of a gap gives the cost of both policies
without simulating a queue. Costs are counted in pod-seconds and cold requests; a gap counts half after 50 more gaps.
Knative's keep-alive decides in two cases: until the learnt one would have saved enough, and if the learnt one had more
cold requests. The first case values a cold start at half of the setting.
"""

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.scaling.adaptive.gaps import HALF_LIFE_GAPS, KeepWindow
from serving.core.scaling.decision.policy import RegretReason
from serving.core.scaling.spec import ScalingSpec

_KEPT = 2.0 ** (-1.0 / HALF_LIFE_GAPS)
# Price of a cold request, as part of the dial: the cost of long gaps is certain, the saving is not.
_WORTH_RATIO = 0.5
# Fewest saved cold starts, and most excess cold requests that count as noise.
_SAVED_MIN_COUNT, _NOISE_COUNT = 0.25, 0.5
# Names of these counts in a saved state, next to those of gaps.
_SAVED = ("regret-pod-seconds", "regret-cold")
_SAVED_MAX = 1e9


class GapCost(msgspec.Struct, frozen=True):
    """Cost of a gap under one policy: pod-seconds, and whether the request at its end was cold."""

    pod_seconds: float
    is_cold: bool


def cost_of(gap_s: float, windows: Iterable[KeepWindow], *, pod_count: int, start_s: float) -> GapCost:
    """The cost of keeping pods through the windows of one gap.

    ``pod_count`` pods stay during the first window, which begins at 0. One pod is started ahead of each later window.
    If no pod is left at the end of the gap, the request is cold, which costs another start. Example: 2 pods stay for
    the first 60 s of a gap of 100 s, and a start takes 10 s. The cost is 2 x 60 + 10 = 130 pod-seconds.
    """
    later = iter(windows)
    kept_s = next(later).to_s
    pod_seconds = pod_count * min(gap_s, kept_s)
    is_cold = gap_s > kept_s
    for window in later:
        if window.from_s - start_s > gap_s:
            break
        pod_seconds += max(0.0, min(gap_s, window.to_s) - (window.from_s - start_s))
        is_cold = is_cold and not window.from_s <= gap_s <= window.to_s
    return GapCost(pod_seconds + start_s * is_cold, is_cold)


def difference(
    gap_s: float, windows: Iterable[KeepWindow], *, spec: ScalingSpec, pod_count: int, start_s: float
) -> tuple[float, int]:
    """The pod-seconds and cold requests by which the windows exceed Knative's keep-alive in one gap.

    Knative keeps all pods for the sum of its stable window, the decision period and the retention of the last pod.
    """
    kept_s = spec.stable_window_s + spec.decision_period_s + spec.scale_to_zero_pod_retention_s
    ours = cost_of(gap_s, windows, pod_count=pod_count, start_s=start_s)
    theirs = cost_of(gap_s, (KeepWindow(0.0, kept_s),), pod_count=pod_count, start_s=start_s)
    return ours.pod_seconds - theirs.pod_seconds, ours.is_cold - theirs.is_cold


class KeepRegret:
    """The excess cost of a revision's learnt keep-alive over Knative's; negative if it costs less."""

    __slots__ = ("cold_requests", "pod_seconds")

    is_counted: ClassVar[bool] = True
    """Whether gaps are compared; False for the rival policies of a benchmark."""

    def __init__(self) -> None:
        self.pod_seconds = self.cold_requests = 0.0

    def record(self, pod_seconds: float, cold_requests: float) -> None:
        """Add the excess pod-seconds and cold requests of one gap; older gaps lose weight."""
        self.pod_seconds = self.pod_seconds * _KEPT + pod_seconds
        self.cold_requests = self.cold_requests * _KEPT + cold_requests

    def is_worse(self, dial_s: float) -> bool:
        """Whether Knative's keep-alive replaces the learnt one. ``dial_s`` is the worth of a cold start in pod-seconds.

        A cold request counts as half of ``dial_s``. The learnt keep-alive is used once it has saved at least a quarter
        of that in all, and has not caused more than half a cold request. Example: with 120, a cold request counts as 60
        pod-seconds, so 15 pod-seconds must be saved. One cold request saved for 45 more pod-seconds is enough.
        """
        worth_s = _WORTH_RATIO * dial_s
        cost_s = self.pod_seconds + worth_s * self.cold_requests
        return self.cold_requests > _NOISE_COUNT or cost_s > -_SAVED_MIN_COUNT * worth_s

    def reason(self, dial_s: float) -> RegretReason | None:
        """The excess costs, for explanations; None if the learnt keep-alive is used, or if there is no data."""
        if not self.is_worse(dial_s) or not (self.pod_seconds or self.cold_requests):
            return None
        return RegretReason(pod_seconds=self.pod_seconds, cold_requests=self.cold_requests)

    def dump(self) -> dict[str, float]:
        """The counts by name, as input for ``load``; empty without data."""
        counts = (round(self.pod_seconds, 1), round(self.cold_requests, 2))
        return dict(zip(_SAVED, counts, strict=True)) if any(counts) else {}

    def load(self, dumped: dict[str, float]) -> dict[str, float]:
        """Restore saved counts, and return the unread entries. Raises ``InvalidValue``."""
        counts = [dumped.get(name, 0.0) for name in _SAVED]
        for name, count in zip(_SAVED, counts, strict=True):
            if not -_SAVED_MAX <= count <= _SAVED_MAX:
                raise InvalidValue(text=f"{name}: {count}", expected="pod-seconds or cold requests")
        self.pod_seconds, self.cold_requests = counts
        return {name: count for name, count in dumped.items() if name not in _SAVED}
