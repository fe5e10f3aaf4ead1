"""One interface to the KPA and the classic algorithm.

A decider keeps the windows of one revision. ``take`` records a completed second; ``decide`` proposes a number of pods.
``present`` is the present load. It replaces averages that would understate it: while no request is served
(``is_waiting``), because then the queue only grows, and before the first second is complete. So the proposal covers all waiting
requests at once, instead of 1 first and the rest later. ``reset_windows`` drops the seconds before a revision woke up, which
are unrelated to the load that woke it.

It does not know bounds, the gate to zero, or which source reported what.
"""

import abc
from typing import Self

import msgspec

from serving.model.knative import ServingState
from serving.model.loadmetric import LoadMetric
from serving.model.nodata import NoData
from serving.model.stat import Stat
from serving.scaling.classic.classic import ClassicDecision, ClassicMode, ClassicScaler
from serving.scaling.kpa.burst import excess_burst_capacity
from serving.scaling.kpa.decide import KpaState, ScaleDecision, ScaleLimit, decide, decide_count, starting_state
from serving.scaling.kpa.merge import Proposal
from serving.scaling.kpa.window import MetricWindows, Observation, WindowContents
from serving.scaling.kpa.zero import GatePhase, GateState, InactiveReason
from serving.scaling.resolve import classic_target
from serving.scaling.revision import ScaledRevision
from serving.scaling.sources import Second
from serving.scaling.spec import ScalingSpec
from serving.settings.autoscaler import CLASSIC_CLASS, AutoscalerSettings, KpaQuirks
from serving.settings.classic import ClassicSettings

# The source of a classic point while no pod reports: the original's activator counts as a pod too.
_ACTIVATOR = "activator"
_UNHEARD = NoData(missing="no stat in the stable window")


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """The present load in requests, and whether all of it waits because no pod is ready or wanted."""

    present: Stat
    is_waiting: bool

    def amount(self, metric: LoadMetric) -> float:
        """The load in the unit of the metric."""
        return metric.amount(self.present)


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal, and the algorithm's own record behind it."""

    proposal: Proposal
    detail: ScaleDecision | ClassicDecision | NoData

    @property
    def desired_count(self) -> int | None:
        """The count wanted by the algorithm; None without data."""
        return None if isinstance(self.proposal.desired, NoData) else self.proposal.desired


class Decider(abc.ABC):
    """One algorithm for one revision."""

    @abc.abstractmethod
    def target(self, spec: ScalingSpec) -> float:
        """Load that one pod should have."""

    @abc.abstractmethod
    def take(self, second: Second) -> None:
        """Record a completed second."""

    @abc.abstractmethod
    def decide(self, spec: ScalingSpec, inside: Inside, *, ready_count: int, now_s: float) -> Decided:
        """Propose a number of pods."""

    @property
    @abc.abstractmethod
    def state(self) -> KpaState | None:
        """The state after the last decision; None for the classic algorithm, whose state is its points."""

    @abc.abstractmethod
    def windows(self, spec: ScalingSpec) -> WindowContents | None:
        """Window contents of the last decision, until the next second is added; None for an algorithm with points."""

    @abc.abstractmethod
    def reset_windows(self, spec: ScalingSpec) -> None:
        """Drop the recorded load, but keep the state of decisions."""

    @abc.abstractmethod
    def resize(self, spec: ScalingSpec, now_s: float) -> None:
        """Apply changed numbers of the revision."""


class KpaDecider(Decider):
    """Knative's current algorithm."""

    def __init__(
        self, spec: ScalingSpec, *, quirks: KpaQuirks, ready_count: int, present_scale: int, now_s: float
    ) -> None:
        self._quirks = quirks
        self._metric = spec.load_metric
        self._windows = self._asked = self._new_windows(spec)
        self._state = starting_state(
            ready_count=ready_count, present_scale=present_scale, spec=spec, now_s=now_s, quirks=quirks
        )

    @classmethod
    def restored(cls, spec: ScalingSpec, *, quirks: KpaQuirks, state: KpaState, windows: WindowContents) -> Self:
        """Restore a decider from a recorded state and its windows."""
        made = cls(spec, quirks=quirks, ready_count=0, present_scale=0, now_s=0.0)
        made._state = state
        made._windows.restore(windows)
        return made

    @property
    def state(self) -> KpaState:
        """The state after the last decision."""
        return self._state

    def windows(self, spec: ScalingSpec) -> WindowContents:
        """Window contents of the last decision, until the next second is added."""
        del spec
        return self._asked.contents()

    def target(self, spec: ScalingSpec) -> float:
        """Load that one pod should have."""
        return spec.target_value

    def take(self, second: Second) -> None:
        """Record a completed second, in the bucket of the next, so that the newest bucket is never a future one."""
        self._windows.record(second.load, second.number + 1.0)

    def take_load(self, load: float, number: int) -> None:
        """Record the load of all sources in a completed second, in the unit of the metric."""
        self._windows.record_load(load, number + 1)

    def peek(self, spec: ScalingSpec, *, ready_count: int, now_s: float) -> tuple[KpaState, int, int] | None:
        """The next state, count and excess burst capacity if no request waits for a first pod; None without data.

        Changes nothing and makes no record: half the price of ``decide``. ``adopt`` makes it the decision.
        """
        observed = self._windows.query(now_s)
        if isinstance(observed, NoData):
            return None
        state, count = decide_count(
            self._state, observed=observed, ready_count=ready_count, spec=spec, now_s=now_s, quirks=self._quirks
        )
        excess = excess_burst_capacity(ready_count=ready_count, observed_panic=observed.panic, spec=spec)
        return state, count, excess

    def adopt(self, state: KpaState) -> None:
        """Set the state that ``peek`` found."""
        self._state, self._asked = state, self._windows

    def decide(self, spec: ScalingSpec, inside: Inside, *, ready_count: int, now_s: float) -> Decided:
        """Propose a number of pods."""
        self._asked = self._windows
        observed = self._windows.query(now_s)
        if inside.is_waiting or isinstance(observed, NoData):
            observed = at_least(observed, inside.amount(self._metric))
        self._state, detail = decide(
            self._state, observed=observed, ready_count=ready_count, spec=spec, now_s=now_s, quirks=self._quirks
        )
        if isinstance(detail, NoData):
            return Decided(proposal=Proposal(decider="kpa", desired=detail, reason=detail.missing), detail=detail)
        reason = detail.limited_by or detail.mode
        return Decided(proposal=Proposal(decider="kpa", desired=detail.desired_count, reason=reason), detail=detail)

    def reset_windows(self, spec: ScalingSpec) -> None:
        """Drop the recorded load, but keep the state of decisions."""
        self._windows = self._new_windows(spec)

    def resize(self, spec: ScalingSpec, now_s: float) -> None:
        """Apply changed numbers of the revision."""
        if spec.metric != self._metric.name:
            self._metric = spec.load_metric
            self._windows = self._new_windows(spec)
            return
        self._windows.resize(
            stable_window_s=spec.stable_window_s,
            panic_window_s=spec.panic_window_s,
            kind=spec.window_kind,
            now_s=now_s,
        )

    def _new_windows(self, spec: ScalingSpec) -> MetricWindows:
        return MetricWindows(
            stable_window_s=spec.stable_window_s,
            panic_window_s=spec.panic_window_s,
            kind=spec.window_kind,
            metric=spec.load_metric,
            quirks=self._quirks,
        )


class ClassicDecider(Decider):
    """The algorithm of June 2018, which averages over points of pods.

    Each pod that reports gives a point a second. Requests in activators are on their way to the pods, so they are spread evenly
    over them: the sum stays the load, each request counts once, and a pod's point is its load once they arrive. While no pod
    reports, the activators together give one point.
    """

    def __init__(
        self, settings: ClassicSettings, *, target_concurrency: float, present_scale: int, now_s: float
    ) -> None:
        self._settings = settings
        self._target = target_concurrency
        self._scaler = ClassicScaler(started_s=now_s)
        self._hold_count = present_scale
        self._watched_since_s: float | None = None
        self._recorded_s = now_s

    @property
    def state(self) -> None:
        """None: the state is the points."""

    def windows(self, spec: ScalingSpec) -> None:
        """None: the algorithm stores points."""

    def target(self, spec: ScalingSpec) -> float:
        """Load that one pod should have."""
        del spec
        return self._target

    def take(self, second: Second) -> None:
        """Record a completed second."""
        at_s = self._recorded_s = second.number + 1.0
        held = second.activators or Stat()
        if not second.pods:
            self._record(_ACTIVATOR, held, at_s)
            return
        share = 1 / len(second.pods)
        for pod in second.pods:
            load = Stat(
                concurrency=pod.concurrency - pod.proxied_concurrency + held.concurrency * share,
                request_count=pod.request_count - pod.proxied_request_count + held.request_count * share,
            )
            self._record(pod.pod, load, at_s)

    def decide(self, spec: ScalingSpec, inside: Inside, *, ready_count: int, now_s: float) -> Decided:
        """Propose a number of pods."""
        del spec
        detail: ClassicDecision | NoData
        if inside.is_waiting:
            self._recorded_s = now_s
            self._record(_ACTIVATOR, inside.present, now_s)
        detail = self._scaler.decide(self._settings, target_concurrency=self._target, now_s=now_s)
        is_idle = not isinstance(detail, NoData) and detail.mode is ClassicMode.IDLE
        if is_idle and ready_count and now_s - self._recorded_s > self._settings.stable_window_s:
            # The original takes silence for idleness; with ready pods it is a fault of the reports.
            detail = _UNHEARD
        if isinstance(detail, NoData):
            return Decided(proposal=Proposal(decider="classic", desired=detail, reason=detail.missing), detail=detail)
        if self._watched_since_s is None:
            self._watched_since_s = now_s
        desired = detail.desired_count
        reason: str = detail.limited_by or detail.mode
        # The original, which knows no pods, would take all of them after a restart; see KpaState.start_hold_count.
        if now_s - self._watched_since_s < self._settings.stable_window_s and desired < self._hold_count:
            desired, reason = self._hold_count, ScaleLimit.START_HOLD
        return Decided(proposal=Proposal(decider="classic", desired=desired, reason=reason), detail=detail)

    def reset_windows(self, spec: ScalingSpec) -> None:
        """Do nothing: deleted pods have few points, and the original keeps them."""

    def resize(self, spec: ScalingSpec, now_s: float) -> None:
        """Do nothing: the settings fix the windows."""

    def _record(self, source: str, load: Stat, at_s: float) -> None:
        self._scaler.record(
            Stat(
                pod=source,
                at_s=at_s,
                concurrency=max(0.0, load.concurrency),
                request_count=max(0.0, load.request_count),
            )
        )


def at_least(observed: Observation | NoData, load: float) -> Observation | NoData:
    """The averages, raised to the present load."""
    if isinstance(observed, NoData):
        return Observation(stable=load, panic=load) if load else observed
    return Observation(stable=max(observed.stable, load), panic=max(observed.panic, load))


def decider_of(
    revision: ScaledRevision, settings: AutoscalerSettings, *, present_scale: int, ready_count: int, now_s: float
) -> Decider:
    """The algorithm. ``present_scale`` and ``ready_count`` are held until a window has data; 0 holds nothing."""
    if revision.class_name == CLASSIC_CLASS:
        target = classic_target(settings, container_concurrency=revision.container_concurrency)
        return ClassicDecider(settings.classic, target_concurrency=target, present_scale=present_scale, now_s=now_s)
    return KpaDecider(
        revision.spec,
        quirks=settings.quirks,
        ready_count=ready_count,
        present_scale=present_scale,
        now_s=now_s,
    )


def starting_gate(revision: ScaledRevision, *, ready_count: int, now_s: float) -> GateState:
    """The initial gate, in the state of the revision's condition."""
    if revision.serving_state is not ServingState.ACTIVE:
        phase, reason = GatePhase.INACTIVE, InactiveReason.NO_TRAFFIC
    elif ready_count and revision.was_ready:
        phase, reason = GatePhase.ACTIVE, None
    else:
        phase, reason = GatePhase.ACTIVATING, InactiveReason.QUEUED
    return GateState(since_s=now_s, phase=phase, reason=reason, is_initialized=revision.was_ready)
