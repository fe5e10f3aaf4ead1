"""Learns the target concurrency of a revision's pods from response times, cpu and memory.

Input: each second of each pod (requests in flight, ended requests, their mean response time), and measurements of cpu
and memory. Output: a ``LearntTarget``. It replaces the revision's target if the revision requests that; otherwise it is
only shown. It is the "slow brain" of Knative's 2018 design, and changes once per period, half a minute by default, by a
bounded step. Without a history it is the revision's target.

The smallest of three bounds counts:

- **latency**: the knee of the response times (``curve``), once they have grown by half at some concurrency;
- **cpu**: the same knee from the utilization law (Denning and Buzen 1978), also before a pod was ever that busy. If a
  request takes D seconds of cpu, at most limit / D requests per second are possible, so N* = R x limit / D;
- **memory**: the requests that fit below the limit (``MemoryLine``), minus three standard deviations of the requests in
  flight; and half of the concurrency at which a container was killed for its memory.

At a utilisation u of the bottleneck, a pod has u / (1 - u) requests there (M/M/1; Kleinrock, Queueing Systems I, 1975),
and u x (N* - 1) elsewhere. So the target is N* - 1 + 1 / (1 - u). Example: a knee of 8 and a utilisation of 70 % give
10.3, and the autoscaler aims at 7.2. Without a bound the target is 1.5 times the largest observed concurrency.
"""

import math

import msgspec

from serving.core.model.knative import TargetMode
from serving.core.model.quantity import Resources
from serving.core.model.stat import Stat
from serving.core.scaling.learnt.curve import Knee, LatencyCurve, MemoryLine
from serving.core.scaling.learnt.target import (
    TARGET_MIN,
    LearntState,
    LearntTarget,
    TargetBound,
    bounded,
    in_flight,
    learnt_target,
    read_state,
    with_target,
)
from serving.core.scaling.revision import ScaledRevision, ServingContainer
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import AdaptiveSettings

# Half-life of observations, in periods with load.
_HALF_LIFE_PERIODS = 20
_FADE_RATIO = 0.5 ** (1 / _HALF_LIFE_PERIODS)
# Growth of the response time that proves a knee.
_SLOWDOWN_MIN = 1.5
# Ratio between two concurrencies of equal response time that proves no queueing at the lower one.
_FLAT_RATIO = 2.0
# Growth per period of a knee that is no longer observed; it doubles in half an hour.
_KNEE_RELAX_RATIO = 1.01
# Growth per period of the idle response time and of the concurrency of OOM kills; both double in three hours.
_RELAX_RATIO = 1.002
# Safe share of the concurrency of an OOM kill: it was the mean of a second, and the kill came at its peak.
_KILLED_RATIO = 0.5
# Target relative to the highest concurrency that worked, if there is no bound.
_GROWTH_RATIO = 1.5
# Largest changes in one period.
_STEP_UP_RATIO, _STEP_DOWN_RATIO = 1.25, 0.5
# Smallest relative change.
_STEP_MIN_RATIO = 0.1
# Share of the cpu limit below which a pod's usage is mostly overhead; and above which it lacks cpu.
_CPU_USE_MIN, _CPU_USE_MAX = 0.2, 0.9
# Ratio to the cpu knee above which the knee of response times is the same knee.
_SAME_KNEE_RATIO = 0.75
# Fewest cpu measurements for the cpu time of a request.
_CPU_WEIGHT_MIN = 3.0
# Safety margin for memory in standard deviations of requests in flight, whose variance equals their mean.
_MEMORY_DEVIATIONS = 3.0
# Highest utilisation with a useful queue length.
_UTILISATION_MAX = 0.9
# Decay per report of the recent peak concurrency: a killed container had more requests than its successor.
_PEAK_RATIO = 0.97
# Smallest knee, for requests that need only a small share of a core.
_KNEE_MIN = 0.01
# How long a moving target is not saved, in seconds: each save is an API write.
_SAVE_PERIOD_S = 60.0


class TargetLearner:
    """Learns the target concurrency of one revision."""

    __slots__ = (
        "_checked_s",
        "_cpu",
        "_curve",
        "_is_new",
        "_is_settled",
        "_memory",
        "_peak",
        "_saved_s",
        "_saved_total",
        "state",
    )

    def __init__(self) -> None:
        self._curve = LatencyCurve()
        self._memory = MemoryLine()
        self.state = LearntState()
        # Sums over measurements under load: count, cpu seconds a second, requests a second, requests in flight.
        self._cpu = (0.0, 0.0, 0.0, 0.0)
        self._peak = 0.0
        self._is_new = False
        # Whether the target has settled at the last result, rather than moving towards it.
        self._is_settled = False
        self._checked_s: float | None = None
        self._saved_total: float | None = None
        self._saved_s: float | None = None

    def record(self, concurrency: float, ended_count: float, response_time_s: float) -> None:
        """Add one second of one pod; seconds without ended requests are ignored."""
        peak = self._peak * _PEAK_RATIO
        self._peak = concurrency if concurrency >= peak else peak  # noqa: FURB136 - each report of each pod
        if ended_count > 0 and response_time_s > 0:
            self._curve.record(concurrency, ended_count, response_time_s)
            self._is_new = True

    def measure(self, concurrency: float, ended_count: float, *, used: Resources, limits: Resources) -> None:
        """Add a pod's cpu and memory usage, with its requests in the last second."""
        if used.memory_bytes is not None:
            self._memory.record(concurrency, used.memory_bytes)
            self._is_new = True
        if used.cpu_m is None or not limits.cpu_m or ended_count <= 0 or used.cpu_m < _CPU_USE_MIN * limits.cpu_m:
            return
        weight, cpu, ended, inside = self._cpu
        self._cpu = (weight + 1.0, cpu + used.cpu_m / 1000, ended + ended_count, inside + concurrency)

    def killed(self) -> None:
        """Record an OOM kill of a container."""
        if self._peak <= 0:
            return
        safe = max(TARGET_MIN, _KILLED_RATIO * self._peak)
        self.state.killed = safe if self.state.killed is None else min(safe, self.state.killed)
        # Earlier measurements no longer describe the pod.
        self._peak = 0.0
        self._is_new = True
        self._checked_s = None

    def update(
        self, spec: ScalingSpec, limits: Resources, *, period_s: float, total_max: float, now_s: float
    ) -> LearntTarget | None:
        """Update and return the target; None without enough data. ``spec`` has the revision's configured target.

        Learns at most once a period, and only after new samples.
        """
        own, spec = spec, in_flight(spec)
        checked_s = self._checked_s
        if self._is_new and (checked_s is None or not 0 <= now_s - checked_s < period_s):
            self._checked_s = now_s
            self._is_new = False
            if checked_s is not None or self.state.killed is not None:
                self._learn(spec, limits, total_max)
        return learnt_target(self.state, own, total_max=total_max)

    def due_save(self, spec: ScalingSpec, now_s: float) -> str | None:
        """Return the learnt state as text for ``load`` if a save is due, otherwise None.

        A save is due once the target has moved by more than the smallest step, and has settled or was saved long ago.
        """
        total, saved = self.state.total, self._saved_total or in_flight(spec).total_value
        if total is None or abs(total / saved - 1) <= _STEP_MIN_RATIO:
            return None
        if self._saved_s is None:
            self._saved_s = now_s
        if not self._is_settled and 0 <= now_s - self._saved_s < _SAVE_PERIOD_S:
            return None
        self._saved_total = total
        self._saved_s = now_s
        return msgspec.json.encode(self.state).decode()

    def load(self, learnt: str) -> None:
        """Restore the learnt state. Raises ``InvalidValue``."""
        self.state = read_state(learnt)
        self._saved_total = self.state.total

    def _learn(self, spec: ScalingSpec, limits: Resources, total_max: float) -> None:
        state, knee = self.state, self._curve.knee()
        utilisation = min(_UTILISATION_MAX, spec.target_value / spec.total_value)
        candidates: list[tuple[float, TargetBound | None, float | None]] = []
        if knee is not None:
            candidates.append((max(spec.total_value, _GROWTH_RATIO * knee.top / utilisation), None, None))
            self._update_knee(knee)
        cpu = self._cpu_knee(limits)
        if cpu is not None:
            candidates.append((_with_queue(cpu, utilisation), TargetBound.CPU, cpu))
        if state.knee is not None and (cpu is None or state.knee < _SAME_KNEE_RATIO * cpu):
            candidates.append((_with_queue(state.knee, utilisation), TargetBound.LATENCY, state.knee))
        if limits.memory_bytes:
            state.memory = self._memory.in_flight_max(limits.memory_bytes) or state.memory
        if state.memory is not None:
            candidates.append((_safe_mean(state.memory) / utilisation, TargetBound.MEMORY, state.memory))
        if state.killed is not None:
            state.killed *= _RELAX_RATIO
            candidates.append((state.killed / utilisation, TargetBound.MEMORY, state.killed))
        if candidates:
            total, bound, above = min(candidates, key=lambda candidate: candidate[0])
            start = bounded(spec.total_value, spec, total_max)
            self._step(bounded(total, spec, total_max), bound, above, start=start)
        self._curve.fade(_FADE_RATIO)
        self._memory.fade(_FADE_RATIO)
        weight, cpu_s, ended, inside = self._cpu
        self._cpu = (weight * _FADE_RATIO, cpu_s * _FADE_RATIO, ended * _FADE_RATIO, inside * _FADE_RATIO)

    def _update_knee(self, knee: Knee) -> None:
        """Update the knee from response times. Older values decay slowly.

        The least response time is stored, because busy pods do not show the response time of an idle pod. It is
        replaced, also by a longer one, once response times no longer depend on the concurrency.
        """
        state = self.state
        is_flat = knee.slowdown < _SLOWDOWN_MIN and knee.top >= _FLAT_RATIO * knee.bottom
        if state.response_s is None or is_flat:
            state.response_s = knee.response_s
        state.response_s = min(_RELAX_RATIO * state.response_s, knee.response_s)
        if knee.top_response_s >= _SLOWDOWN_MIN * state.response_s:
            state.knee = state.response_s * knee.throughput_max
        elif state.knee is not None:
            state.knee = max(_KNEE_RELAX_RATIO * state.knee, knee.top)

    def _cpu_knee(self, limits: Resources) -> float | None:
        """The knee by the cpu time of a request. While cpu is exhausted, the knee is below the recent concurrency."""
        state, (weight, cpu, ended, inside) = self.state, self._cpu
        if not limits.cpu_m:
            return None
        cores = limits.cpu_m / 1000
        if weight >= _CPU_WEIGHT_MIN:
            state.cpu_s = cpu / ended
        if state.cpu_s is None or state.response_s is None:
            return None
        knee = state.response_s * cores / state.cpu_s
        if weight >= _CPU_WEIGHT_MIN and cpu / weight > _CPU_USE_MAX * cores:
            # All response times may come from busy pods; fewer requests will show shorter ones.
            knee = min(knee, _STEP_DOWN_RATIO * inside / weight)
        return max(knee, _KNEE_MIN)

    def _step(self, total: float, bound: TargetBound | None, above: float | None, *, start: float) -> None:
        """Move the target one bounded step towards ``total``; from ``start`` if there is no target yet.

        A decrease for memory is unbounded, to prevent OOM kills. ``bound`` and ``above`` are stored as in
        ``LearntTarget``.
        """
        state, wanted = self.state, total
        present = start if state.total is None else state.total
        if abs(total / present - 1) <= _STEP_MIN_RATIO and not (bound is TargetBound.MEMORY and total < present):
            total = wanted = present
        if bound is not TargetBound.MEMORY:
            total = max(total, _STEP_DOWN_RATIO * present)
        state.total = min(total, _STEP_UP_RATIO * present)
        self._is_settled = state.total == wanted
        state.bound, state.above = bound, above


def _with_queue(knee: float, utilisation: float) -> float:
    """The target before utilisation at a knee, by an M/M/1 queue (see the top of this file).

    Example: a knee of 8 requests and a utilisation of 0.7 give 8 - 1 + 1 / (1 - 0.7) = 10.3.
    """
    return knee - 1.0 + 1.0 / (1.0 - utilisation)


def _safe_mean(most: float) -> float:
    """The mean m for which m plus three standard deviations is ``most``: m + 3 x sqrt(m) = most. 10 gives 4."""
    return ((math.sqrt(_MEMORY_DEVIATIONS**2 + 4.0 * most) - _MEMORY_DEVIATIONS) / 2.0) ** 2


class RevisionTarget:
    """The target of one revision. Decisions use ``spec``; ``learnt`` is None without enough data."""

    __slots__ = ("_container", "_learner", "_own", "_settings", "learnt", "spec")

    def __init__(self, revision: ScaledRevision, settings: AdaptiveSettings) -> None:
        self._own = self.spec = revision.spec
        self._container: ServingContainer = revision.container
        self._settings = settings
        self._learner = TargetLearner()
        self.learnt: LearntTarget | None = None

    @property
    def _is_on(self) -> bool:
        return self._own.target_mode is not TargetMode.OFF

    def update_revision(self, revision: ScaledRevision) -> bool:
        """Apply the changed settings of the revision; return whether they differ."""
        self._container = revision.container
        if revision.spec == self._own:
            return False
        self._own = revision.spec
        state, most = self._learner.state, self._settings.learnt_target_max
        self.learnt = learnt_target(state, self._own, total_max=most)
        self.spec = with_target(self._own, self.learnt, state)
        return True

    def load(self, learnt: str) -> None:
        """Restore the learnt state. Raises ``InvalidValue``."""
        self._learner.load(learnt)

    def record(self, stat: Stat) -> None:
        """Add a pod's report."""
        if self._is_on:
            self._learner.record(stat.concurrency, stat.ended_count, stat.response_time_s)

    def measure(self, stat: Stat, used: Resources) -> None:
        """Add the usage of a pod's container, with the pod's latest report."""
        if self._is_on:
            self._learner.measure(stat.concurrency, stat.ended_count, used=used, limits=self._container.limits)

    def killed(self) -> None:
        """Record a container's OOM kill."""
        if self._is_on:
            self._learner.killed()

    def update(self, now_s: float) -> None:
        """Update ``learnt`` and ``spec``."""
        if not self._is_on:
            return
        learnt = self._learner.update(
            self._own,
            self._container.limits,
            period_s=self._settings.learnt_target_period_s,
            total_max=self._settings.learnt_target_max,
            now_s=now_s,
        )
        if learnt != self.learnt:
            self.learnt = learnt
            self.spec = with_target(self._own, learnt, self._learner.state)

    def due_save(self, now_s: float) -> str | None:
        """The learnt state as text for ``load``; None if it is unchanged or was saved recently."""
        return self._learner.due_save(self._own, now_s)
