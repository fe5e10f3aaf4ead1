"""Anticipates the pods that a revision will need when a node requested now becomes ready.

Input: each decision, the policy's expectation, and a node's boot time. Output: a number of pods, and the annotation for
node groups. The expected load extrapolates a line through the load of a past span as long as the boot time, or is the
load of the decision's windows. A number above the decided one takes effect immediately, and stays for the boot time of
a node, so that a requested node is still needed when it is ready. The number is published only while it exceeds the
decided pods. Pure.
"""

import math
from collections import deque

import msgspec

from serving.core.model.anticipation import AnticipatedPods
from serving.core.model.nodata import NoData
from serving.core.scaling.decision.policy import RevisionPolicy
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.kpa.decide import ScaleDecision
from serving.core.scaling.kpa.delay import DelayWindow, slot_count
from serving.core.scaling.kpa.merge import bounded
from serving.core.scaling.spec import ScalingSpec

# Samples in a window; more hardly improve the line.
_SAMPLES = 30
# Fewest samples that show their own noise.
_SAMPLES_MIN = 5
# Standard errors subtracted from a slope.
_SIGNIFICANCE = 3.0
# Tolerated earliness of a sample, as a share of the sampling interval.
_EARLY = 0.1

# Shortest time span of a trend.
_TREND_WINDOW_MIN_S = 10.0
# A publication is valid for two boot times and renewed after one, with this minimum because writes may be late.
_VALID_MIN_S = 20.0
_VALID_BOOTS = 2.0


class LoadTrend:
    """The load of the last ``window_s`` seconds."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES + 1)

    def record(self, load: float, *, at_s: float, window_s: float) -> None:
        """Record the load at a time. Samples closer than a thirtieth of the window are dropped."""
        samples = self._samples
        if samples and at_s - samples[-1][0] < window_s / _SAMPLES * (1.0 - _EARLY):
            return
        samples.append((at_s, load))
        while samples[0][0] < at_s - window_s:
            samples.popleft()

    def expected(self, *, ahead_s: float) -> float | None:
        """The load ``ahead_s`` seconds after the last sample; None unless the load clearly rises.

        Example: loads of 0, 2, 4, 6 and 8 at 0 to 4 s rise by 2 per second without noise. The load 10 s ahead is 28.
        """
        count = len(self._samples)
        if count < _SAMPLES_MIN:
            return None
        mean_s = sum(at_s for at_s, _ in self._samples) / count
        mean = sum(load for _, load in self._samples) / count
        spread = sum((at_s - mean_s) ** 2 for at_s, _ in self._samples)
        slope = sum((at_s - mean_s) * (load - mean) for at_s, load in self._samples) / spread
        rest = sum((load - mean - slope * (at_s - mean_s)) ** 2 for at_s, load in self._samples)
        error = math.sqrt(rest / (count - 2) / spread)
        certain = slope - _SIGNIFICANCE * error
        if certain <= 0:
            return None
        return mean + certain * (self._samples[-1][0] - mean_s + ahead_s)


def validity_s(boot_s: float) -> float:
    """How long a published number of pods is valid, in seconds, if a node takes ``boot_s`` seconds to boot."""
    return max(_VALID_MIN_S, _VALID_BOOTS * boot_s)


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """The annotation's new value: a number of pods, or None to remove the annotation."""

    pods: AnticipatedPods | None


class Anticipation:
    """Anticipates the pods of one revision, so that a node can boot before the pods exist."""

    __slots__ = ("_delayed", "_trend")

    def __init__(self) -> None:
        self._delayed = DelayWindow()
        self._trend = LoadTrend()

    def update(self, outcome: ScalerOutcome, policy: RevisionPolicy, *, boot_s: float) -> int:
        """Pods wanted ``boot_s`` seconds after a decision, within the revision's bounds; 0 without data."""
        merged, spec, now_s = outcome.merged, outcome.inputs.spec, outcome.at_s
        if isinstance(merged, NoData):
            return 0
        load = spec.load_metric.amount(outcome.present)
        self._trend.record(load, at_s=now_s, window_s=max(_TREND_WINDOW_MIN_S, boot_s))
        ahead = 0
        if spec.reachable:
            expected = max(
                _window_load(outcome.decided.detail, spec, ahead_s=boot_s), self._trend.expected(ahead_s=boot_s) or 0.0
            )
            coming = max(0, math.ceil(expected / spec.target_value))
            coming = max(coming, policy.anticipated_count(ahead_s=boot_s, now_s=now_s))
            ahead = bounded(coming, spec=spec, is_initialized=True).count
        # Decided pods are not held, because their nodes may be removed with them.
        beyond = ahead if ahead > merged.desired_count else 0
        self._delayed = self._delayed.record(beyond, slot_count=max(1, slot_count(boot_s)), now_s=now_s)
        return max(merged.desired_count, self._delayed.maximum)

    def due(
        self, count: int, *, outcome: ScalerOutcome, written: AnticipatedPods | None, boot_s: float, wall_s: float
    ) -> Publication | None:
        """What to write to the annotation; None while ``written`` is up to date. ``wall_s`` is now in unix seconds.

        Example: with a boot time of 30 s a publication is valid for 60 s, and is written again when 30 s remain.
        """
        merged = outcome.merged
        decided_count = 0 if isinstance(merged, NoData) else merged.desired_count
        if count <= decided_count:
            return None if written is None else Publication(pods=None)
        valid_s = validity_s(boot_s)
        if written is not None and written.count == count and written.until_s - wall_s > valid_s / 2:
            return None
        return Publication(pods=AnticipatedPods(count=count, until_s=wall_s + valid_s))


def _window_load(detail: object, spec: ScalingSpec, *, ahead_s: float) -> float:
    """The stable window's load in ``ahead_s`` seconds, if the panic window's load continues.

    The panic window's load then fills a part of the stable window. Example: with 10 in flight in the stable window of
    60 s and 40 in the panic window, the load 30 s ahead is 10 + 30 x 30 / 60 = 25. Unlike a decision, it is not limited
    by the scale-up rate, because many decisions are made until then.
    """
    if not isinstance(detail, ScaleDecision):
        return 0.0
    share = min(1.0, ahead_s / spec.stable_window_s)
    return detail.observed_stable + share * max(0.0, detail.observed_panic - detail.observed_stable)
