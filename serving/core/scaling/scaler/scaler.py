"""Scales one revision: takes stats and cluster state, returns scale decisions.

Input: stats with their receipt times, and the cluster's state (scale, ready pods, serving state). Output: a
``ScalerOutcome`` with the action, the time of the next decision, and every intermediate value. ``record`` returns
whether a stat needs an immediate decision.

A revision that is Active at scale 0 was woken by an activator: it gets at least one pod. The decision itself is
``serving.core.scaling.decision.step``. It uses no clock and no cluster.
"""

import enum
from collections.abc import Sequence

from serving.core.model.knative import ServingState
from serving.core.model.loadmetric import load_metric
from serving.core.model.stat import Stat
from serving.core.scaling.decision.budgeted import Limit
from serving.core.scaling.decision.policy import RevisionPolicy, SecondOfLoad
from serving.core.scaling.decision.records import DecisionCause, InFlight, ScalerOutcome
from serving.core.scaling.decision.step import StepInputs, step
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.kpa.window import WindowContents
from serving.core.scaling.kpa.zero import GatePhase, GateState, InactiveReason
from serving.core.scaling.learnt.learner import RevisionTarget
from serving.core.scaling.resolve import classic_target
from serving.core.scaling.revision import ScaledRevision
from serving.core.scaling.scaler.classicpoints import ClassicPoints
from serving.core.scaling.scaler.shadow import PolicyShadow
from serving.core.scaling.scaler.silence import change_in_silence_s
from serving.core.scaling.scaler.waitingtokens import WaitingTokens
from serving.core.scaling.scaler.windows import RevisionWindows, starting_revision_state, with_metrics
from serving.core.scaling.slo import RevisionSlo
from serving.core.scaling.sources import Sources
from serving.core.settings.autoscaler import CLASSIC_CLASS, AutoscalerSettings


class StatSource(enum.StrEnum):
    """The sender of a stat: a pod, which reports its current state, or an activator."""

    POD = "pod"
    ACTIVATOR = "activator"


class Scaler:
    """Scales one revision. Times are on one monotonic clock."""

    def __init__(  # noqa: PLR0913 - what a revision's decisions depend on
        self,
        revision: ScaledRevision,
        view: ScalerView,
        settings: AutoscalerSettings,
        *,
        is_restart: bool,
        now_s: float,
        policy: RevisionPolicy | None = None,
        shadow: PolicyShadow | None = None,
        limit: Limit | None = None,
    ) -> None:
        """``is_restart``: the revision existed before this process, so its scale is held until a window has data.

        ``policy`` defaults to Knative's. A ``shadow`` decides by another policy for comparison. ``limit`` applies the
        budgets over several revisions.
        """
        self.policy = RevisionPolicy() if policy is None else policy
        self.shadow = shadow
        self.target = RevisionTarget(revision, settings.adaptive)
        self._limit = limit
        self._is_workload = revision.is_workload
        self._slo = RevisionSlo(now_s)
        self._quirks = settings.quirks
        self._spec = revision.spec
        self._sources = Sources()
        self._tokens = WaitingTokens()
        self._windows = RevisionWindows(revision.spec, quirks=settings.quirks)
        present_scale, ready_count = (view.present_scale, view.ready_count) if is_restart else (0, 0)
        self._classic: ClassicPoints | None = None
        if revision.class_name == CLASSIC_CLASS:
            target = classic_target(settings, container_concurrency=revision.container_concurrency)
            self._classic = ClassicPoints(settings.classic, target=target, present_scale=present_scale, now_s=now_s)
        self._state = starting_revision_state(
            revision.spec,
            starting_gate(revision, ready_count=view.ready_count, now_s=now_s),
            ready_count=ready_count,
            present_scale=present_scale,
            now_s=now_s,
            quirks=settings.quirks,
        )
        self._view = view

    def __repr__(self) -> str:
        return f"Scaler({self._state.gate.phase}, {self._state.latest_count} wanted)"

    @property
    def _counts_waiting(self) -> bool:
        """Whether requests that wait for the first pod count immediately instead of from the next period on."""
        return self.policy.counts_waiting or self._classic is not None

    @property
    def learner(self) -> RevisionPolicy | None:
        """The policy that learns, in force or in shadow; None if neither learns."""
        if self.policy.observes:
            return self.policy
        return None if self.shadow is None else self.shadow.policy

    @property
    def pods(self) -> dict[str, Stat]:
        """The latest valid report of each pod."""
        return self._sources.pods

    @property
    def pod_reports(self) -> dict[str, Stat]:
        """The latest report of each pod. Pods of a ScaledWorkload do not report; activators report their requests."""
        if not self._is_workload:
            return self.pods
        return {pod: Stat(pod=pod, concurrency=load) for pod, load in self._sources.pod_loads.items()}

    @property
    def pod_heats(self) -> dict[str, float]:
        """The savings of each pod's prompt cache, if prompts choose pods."""
        return self._sources.pod_heats

    @property
    def is_idle(self) -> bool:
        """Whether no report of the last seconds has a load."""
        return self._sources.is_idle

    def update(self, revision: ScaledRevision, now_s: float) -> None:
        """Apply the changed settings of the revision."""
        is_new = self.target.update_revision(revision)
        self._adopt(now_s)
        if is_new and self.shadow is not None:
            self.shadow.update(revision.spec, now_s)

    def record(self, stat: Stat, source: StatSource) -> bool:
        """Add a stat, stamped with its time of receipt; return whether it needs an immediate decision.

        A decision is urgent if there is load at scale 0, if an activator has more requests than the wanted pods can take
        (71 requests, with 1 wanted pod for 70), or if a ScaledWorkload has a burst.
        """
        self._advance(stat.at_s)
        if self.shadow is not None:
            self.shadow.arrive(stat.request_count - stat.proxied_request_count, stat.at_s)
        latest_count = self._state.latest_count or 0
        if source is StatSource.POD:
            self._sources.record_pod(stat)
            self.target.record(stat)
            self._slo.record(stat.latency_bins, stat.at_s)
            return stat.concurrency > stat.proxied_concurrency and not latest_count
        self._sources.record_activator(stat)
        is_news = bool(stat.concurrency or stat.request_count)
        if not is_news and not (self._is_workload and stat.window_concurrency):
            return False
        # Requests wake a revision regardless of its metric.
        if stat.concurrency and not latest_count:
            return True
        in_flight, spec = self._in_flight(stat.at_s), self._spec
        if not self._counts_waiting and not (self._is_workload and in_flight.is_waiting):
            return False
        target = spec.target_value if self._classic is None else self._classic.target
        return in_flight.load(spec.load_metric) > latest_count * target or any(
            in_flight.load(load_metric(metric.metric)) > latest_count * metric.target_value
            for metric in spec.further_metrics
        )

    def started(self, took_s: float, now_s: float) -> None:
        """Record how many seconds a pod took from creation to readiness."""
        if self.learner is not None:
            # A policy learns from a second with the starts known so far, so starts come first.
            self._advance(now_s)
            self.learner.started(took_s)

    def forget_pod(self, name: str, now_s: float) -> None:
        """Drop a deleted pod, whose last report is no longer valid."""
        self._advance(now_s)
        self._sources.forget_pod(name)

    def tick(
        self,
        view: ScalerView,
        cause: DecisionCause,
        now_s: float,
        *,
        proposals: Sequence[Proposal] = (),
        wall_s: float = 0.0,
    ) -> ScalerOutcome:
        """Make a decision. ``proposals`` come from triggers; ``wall_s`` is now in seconds since the epoch."""
        self._advance(now_s)
        self._view = view
        self._adopt(now_s)
        in_flight = self._in_flight(now_s)
        classic = self._classic
        inputs = StepInputs(
            at_s=now_s,
            wall_s=wall_s,
            cause=cause,
            view=view,
            in_flight=in_flight,
            observed=self._windows.query(now_s),
            classic=None if classic is None else classic.decide(in_flight, ready_count=view.ready_count, now_s=now_s),
            further=self._windows.query_further(now_s),
            proposals=tuple(proposals),
            loading_count=sum(pod.is_loading for pod in self.pods.values()),
            knows_in_flight=self._knows_in_flight(view),
            spec=self._spec,
            quirks=self._quirks,
            learnt=self.target.learnt,
            slo=self._slo.outcome,
        )
        self._state, outcome = step(self._state, inputs, self.policy, limit=self._limit)
        if self._state.resets_windows:
            self._windows.reset(self._spec)
        if self.shadow is not None and self.learner is not None:
            self.shadow.decide(
                outcome.inputs.proposals,
                in_flight=in_flight.present if inputs.knows_in_flight else None,
                present_scale=view.present_scale,
                ready_count=view.ready_count,
                start_s=self.learner.start_s,
                now_s=now_s,
            )
        return outcome

    def _knows_in_flight(self, view: ScalerView) -> bool:
        """Whether any source reports requests in flight: a pod, or for a ScaledWorkload an activator."""
        is_reported = not self._sources.is_silent if self._is_workload else bool(self._sources.pods)
        return is_reported or not view.ready_count

    def change_in_silence_s(self, outcome: ScalerOutcome, times: Sequence[float]) -> float:
        """The first of ``times`` at which the decision, or the shadow's, may change if no request arrives until then.

        If neither may change, the last of ``times``.
        """
        change_s = change_in_silence_s(outcome, self._state, self._windows, times=times)
        return change_s if self.shadow is None else min(change_s, self.shadow.change_in_silence_s(times))

    def windows(self) -> WindowContents | None:
        """Window contents of the latest decision, valid until the next await; None for the classic algorithm."""
        return self._windows.contents() if self._classic is None else None

    def _adopt(self, now_s: float) -> None:
        """Apply the learnt target and the latency goal to further decisions."""
        self.target.update(now_s)
        ready_count, present_scale = self._view.ready_count, self._view.present_scale
        spec = self._slo.update(self.target.spec, ready_count=ready_count, present_scale=present_scale, now_s=now_s)
        before = self._spec
        if spec is before or spec == before:
            return
        self._advance(now_s)
        self._spec = spec
        self._windows.resize(spec, now_s)
        if spec.further_metrics != before.further_metrics:
            self._state = with_metrics(self._state, spec, before=before, now_s=now_s, quirks=self._quirks)
        self.policy.update(spec)

    def _advance(self, now_s: float) -> None:
        """Record all seconds completed by ``now_s``."""
        for second in self._sources.complete(now_s):
            load = second.load
            self._tokens.record(load)
            if self._classic is None:
                self._windows.record(second.number, load)
            else:
                self._classic.record(second)
            self._slo.record_load(self._spec.load_metric.amount(load), second.number + 1.0)
            self.policy.observe(SecondOfLoad(second.number, load.concurrency, load.request_count))
            if self.shadow is not None:
                self.shadow.record(second.number, load)

    def _in_flight(self, now_s: float) -> InFlight:
        """The load in flight now. ``is_waiting``: no pod is ready, or none was wanted when the requests arrived.

        ``is_waiting`` is also set in a burst of a ScaledWorkload, so that the activators' last reports, which are means
        of a second, replace the averages of the windows.
        """
        if self._is_workload and self._is_burst(reported := self._sources.reported(now_s)):
            return InFlight(present=reported, is_waiting=True)
        present = self._sources.present(now_s)
        if not self._view.ready_count:
            present = self._tokens.estimated(present)
        is_load = present.concurrency > 0 or self._spec.load_metric.amount(present) > 0
        is_unserved = self._view.ready_count == 0 or self._state.latest_count == 0
        return InFlight(present=present, is_waiting=is_load and is_unserved and self._counts_waiting)

    def _is_burst(self, load: Stat) -> bool:
        """Whether a load reaches the panic threshold of the ready pods."""
        spec = self._spec
        pod_count = max(self._view.ready_count, 1) * spec.panic_threshold_ratio
        return spec.load_metric.amount(load) >= pod_count * spec.target_value or any(
            load_metric(metric.metric).amount(load) >= pod_count * metric.target_value
            for metric in spec.further_metrics
        )


def starting_gate(revision: ScaledRevision, *, ready_count: int, now_s: float) -> GateState:
    """The initial gate state, from the revision's condition Active."""
    if revision.serving_state is not ServingState.ACTIVE:
        phase, reason = GatePhase.INACTIVE, InactiveReason.NO_TRAFFIC
    elif ready_count and revision.was_ready:
        phase, reason = GatePhase.ACTIVE, None
    else:
        phase, reason = GatePhase.ACTIVATING, InactiveReason.QUEUED
    return GateState(since_s=now_s, phase=phase, reason=reason, is_initialized=revision.was_ready)
