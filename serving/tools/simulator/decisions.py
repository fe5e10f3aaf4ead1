"""Makes the product's scaling decisions for one simulated revision, only when they can differ from the last decision.

Input: the load of each second, as the statistics report it, and the cluster's state. Output: the outcome of each
decision, and the time of the next decision that can change anything. The product's code makes the decisions: windows,
algorithm, merge with bounds, gate to zero, path. A period with a known outcome is skipped: at scale 0; while one ready
pod has load in the window and no second of it was above the target of one pod; while the load of several pods stays
within the bounds of their count; and while only the gate's clock can change the outcome.
"""

import math
from collections import deque
from collections.abc import Callable

from serving.core.model.knative import ServingState, TrafficPath
from serving.core.model.loadmetric import CONCURRENCY, TOKENS_GAUGE
from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.adaptive.gaps import GapPrior
from serving.core.scaling.budget import Allowance, BudgetDemand
from serving.core.scaling.classic.classic import ClassicDecision
from serving.core.scaling.decision.policy import NEUTRAL, Advice, PolicyView, SecondOfLoad
from serving.core.scaling.decision.records import DecisionCause, InFlight, ScalerOutcome
from serving.core.scaling.decision.step import StepInputs, step
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.burst import excess_burst_capacity
from serving.core.scaling.kpa.decide import ScaleDecision, decide
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.kpa.window import Observation
from serving.core.scaling.kpa.zero import GatePhase, GateReason, GateState, InactiveReason
from serving.core.scaling.scaler.registry import BUILT_IN, PolicyFactory
from serving.core.scaling.scaler.rest import DECISION_PAUSE_S, Periods
from serving.core.scaling.scaler.waitingtokens import WaitingTokens
from serving.core.scaling.scaler.windows import RevisionWindows, starting_revision_state
from serving.core.scaling.slo import RevisionSlo
from serving.core.scaling.spec import ScalingSpec, WindowKind
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.tools.simulator.signals import RevisionSignals
from serving.tools.simulator.steady import (
    Conclusion,
    Key,
    RevisionCounts,
    SteadyConclusions,
    SteadyLevel,
    conclusion_of,
    key_of,
)

LOAD_MIN = 1e-4
"""Load of a second that windows round to zero, with a margin."""

LoadedSecond = tuple[int, float, int, float]
"""Number of the second, mean requests in flight, arrivals, mean tokens in flight."""


class LoadedSeconds:
    """A revision's seconds with load, each identified by its number since the start of the simulation.

    ``pending`` has those not yet added to the autoscaler's windows, oldest first.
    """

    def __init__(self, spec: ScalingSpec) -> None:
        self._stable = math.ceil(spec.stable_window_s)
        self._panic = math.ceil(spec.panic_window_s)
        self.level: SteadyLevel | None = None
        """The loads in the windows; None unless each second was reported since the windows were full."""
        self.pending: deque[LoadedSecond] = deque(maxlen=self._stable + 2)
        self._metric = spec.load_metric
        self._has_further = bool(spec.further_metrics)
        self._loaded_number = self._loaded_before = self._hot_number = self._taken_number = -1
        self._reports_from = 0

    @property
    def was_ever_hot(self) -> bool:
        """Whether any second since the reset of the windows was recorded as hot."""
        return self._hot_number >= 0

    def record(self, second: LoadedSecond, *, is_hot: bool) -> None:
        """Record a completed second with its reported load.

        ``is_hot`` marks a second for which one pod is not the right number: it has no load, or more than one pod can
        serve.
        """
        self.pending.append(second)
        if self.level is not None:
            self.level.record(second[0], self._amount(second), self._panic)
        if second[1] > LOAD_MIN:
            self._loaded_before, self._loaded_number = self._loaded_number, second[0]
        if is_hot:
            self._hot_number = second[0]

    def begin_reports(self, number: int) -> None:
        """Record that pods report from the second with this number on; without pods, nothing reports a silent second."""
        self._reports_from = number

    def reset(self) -> None:
        """Forget earlier seconds. Called when the windows have been reset."""
        self.pending.clear()
        self.level = None
        self._hot_number = -1

    def measure(self, windows: RevisionWindows, now_s: float) -> SteadyLevel | None:
        """The loads up to now; None if a window is not full. All completed seconds were given to the windows."""
        if self.level is None:
            contents = windows.contents()
            if len(contents.stable.values) == self._stable and len(contents.panic.values) == self._panic:
                self.level = SteadyLevel(contents)
                for second in self.pending:
                    self.level.record(second[0], self._amount(second), self._panic)
        else:
            self.level.advance(math.floor(now_s) - 1, self._panic)
        return self.level

    def is_cool(self, at_s: float) -> bool:
        """Whether the stable window contains no second that was recorded as hot."""
        return self._hot_number < 0 or at_s > self._hot_number + 2 + self._stable

    def window_end(self, now_s: float) -> float:
        """The time at which the last load leaves the stable window.

        The load of a second is in the bucket of the next one, even if its report came early.
        """
        number = self._loaded_number if self._loaded_number < math.floor(now_s) else self._loaded_before
        return number + 1 + self._stable

    def flush_to(self, windows: RevisionWindows, now_s: float, *, has_reports: bool) -> None:
        """Add completed seconds to the windows; with ``has_reports`` (of ready pods), also seconds without load."""
        over, pending = math.floor(now_s) - 1, self.pending
        while pending and pending[0][0] <= over:
            second = pending.popleft()
            if has_reports:
                self._flush_silence(windows, second[0])
            self._flush_load(windows, second)
            self._taken_number = second[0]
        if has_reports and max(self._taken_number + 1, self._reports_from) <= over:
            self._flush_silence(windows, over)
            self._flush_load(windows, (over, 0.0, 0, 0.0))
            self._taken_number = over

    def _flush_load(self, windows: RevisionWindows, second: LoadedSecond) -> None:
        if self._has_further:
            windows.record(second[0], _stat_of(second))
        else:
            windows.record_load(second[0], self._amount(second))

    def _flush_silence(self, windows: RevisionWindows, until: int) -> None:
        """Add seconds without load, before the second ``until``, to the windows.

        Only two such seconds are added: the first in the stable window and the first in the panic window.
        """
        first = max(self._taken_number + 1, self._reports_from)
        if first >= until:
            return
        for number in (max(first, until - self._stable + 1), max(first, until - self._panic + 1)):
            if self._taken_number < number < until:
                self._flush_load(windows, (number, 0.0, 0, 0.0))
                self._taken_number = number

    def _amount(self, second: LoadedSecond) -> float:
        """The load of a second in the unit of the revision's metric; 0 for a gauge other than tokens."""
        if self._metric is CONCURRENCY:
            return second[1]
        return self._metric.amount(_stat_of(second))


def _stat_of(second: LoadedSecond) -> Stat:
    _, concurrency, arrivals, tokens = second
    gauges = {TOKENS_GAUGE: tokens} if tokens else {}
    return Stat(concurrency=concurrency, request_count=float(arrivals), gauges=gauges)


TimedLimit = Callable[[BudgetDemand, float], Allowance | None]
"""Limits the pods of one revision at a time by budgets; None: no limit."""

# Seconds of waiting for a first pod after which each period has a decision again, so that no period is dropped.
_PENDING_STARTING_MAX = 10
# Without load the gate depends on the clock only.
_CLOCK_REASONS = (GateReason.ACTIVE_TOO_SHORT, GateReason.POD_RETENTION, GateReason.GRACE)


class Decisions:
    """The decisions about one revision.

    ``due_s`` is the time of the next decision; a new second may change this time.
    """

    def __init__(  # noqa: PLR0913 - what decisions depend on
        self,
        settings: AutoscalerSettings,
        spec: ScalingSpec,
        *,
        has_burst_switch: bool,
        skips: bool = True,
        repeats: bool = True,
        prior: GapPrior | None = None,
        policy_of: PolicyFactory = BUILT_IN.policy_of,
        signals: RevisionSignals | None = None,
    ) -> None:
        """Several revisions share ``prior``. ``policy_of`` creates the policy.

        ``skips`` False decides in every period, for tests. ``repeats`` False computes each decision, rather than
        reusing the conclusion of an equal one. ``signals`` are the learnt target and the triggers, or None.
        """
        self._settings = settings
        self._spec = spec
        self._own = spec
        self.slo = RevisionSlo(0.0)
        self._signals = signals
        self._periods = Periods(settings.decision_period_s)
        self._windows = RevisionWindows(spec, quirks=settings.quirks)
        gate = GateState(since_s=0.0, phase=GatePhase.INACTIVE, reason=InactiveReason.NO_TRAFFIC, is_initialized=True)
        self._state = starting_revision_state(spec, gate, now_s=0.0, quirks=settings.quirks)
        self.policy = policy_of(spec, settings, prior=prior, explains=False)
        # Only the windows decide, also on the requests waiting for the first pod; in each period, except for the first
        # poke.
        self.counts_waiting = self.policy.counts_waiting
        # Load for which one pod is sufficient in either window.
        self.quiet_load = spec.target_value
        self._has_burst_switch = has_burst_switch
        # Whether the path is the same for any load within one pod.
        burst = spec.target_burst_capacity
        self._is_path_fixed = not has_burst_switch or burst <= 0 or spec.total_value < burst
        # Each second may change the result of a goal, tokens, a further metric or a single pod.
        is_load_of_requests = not spec.load_metric.gauge and not spec.further_metrics
        skips = skips and signals is None and spec.slo is None and is_load_of_requests and self.policy.skips_periods
        # Budgets depend on other revisions: with this limit no period may be skipped.
        self.limit: TimedLimit | None = None
        self._skips = skips
        self._steady = SteadyConclusions() if skips and repeats and not self.counts_waiting else None
        self._serving_state = ServingState.RESERVE
        # A revision that begins at zero has long had the activator in its path.
        self._proxy_since_s: float | None = -spec.scale_to_zero_grace_s
        self._proved_at_s: float | None = None
        self._seconds = LoadedSeconds(spec)
        self._tokens = WaitingTokens()
        # The counts of the last decision, if it repeats while the loads stay within the bounds of ``SteadyLevel``.
        self._level_counts: tuple[int, int] | None = None
        self.is_level = False
        """Whether decisions about several pods are skipped, as long as the loads stay within their bounds."""
        # Seconds for the policy, which also reads the seconds that a skipped period leaves to the windows.
        self._unobserved: deque[LoadedSecond] = deque()
        self._conclusion: Conclusion | None = None
        self._detail: ScaleDecision | ClassicDecision | NoData | None = None
        self.outcome: ScalerOutcome | None = None
        """The last decision that was made in full."""
        self._asked_s = self._recheck_s = math.inf
        self._recheck_in_s: float | None = None
        self._is_settled = False
        self._key: Key | None = None
        self.path = TrafficPath.PROXY
        # Decisions begin with the revision, not with its first request.
        self.due_s = 0.0
        self.count = 0

    @property
    def latest_count(self) -> int | None:
        """The last desired number of pods; None without data."""
        return self._state.latest_count

    @property
    def capacity(self) -> float:
        """The number of requests for which the desired pods have capacity."""
        return (self.latest_count or 0) * self._spec.target_value

    def wake(self) -> None:
        """Set the revision Active for a waiting request."""
        self._serving_state = ServingState.ACTIVE

    def record(self, number: int, load: float, arrivals: int, *, tokens: float = 0.0) -> None:
        """Record a completed second with load or arrivals; other seconds are not recorded."""
        if self._own.slo is not None:
            self.slo.record_load(load, number + 1.0)
        second = (number, max(0.0, load), arrivals, tokens)
        if tokens:
            self._tokens.record(_stat_of(second))
        self._seconds.record(second, is_hot=not LOAD_MIN < load <= self.quiet_load)
        if self.policy.observes:
            self._unobserved.append(second)
        if self.is_level:
            level = self._seconds.level
            if level is None or level.is_left:
                self.is_level = False
                self.due_s = min(self.due_s, self._periods.at(number + 1.0))
            return
        if (self.policy.observes or self._is_settled or not self.latest_count) and not self.is_next_due:
            # A result that depends only on the clock may differ now.
            self.due_s = min(self.due_s, self._periods.at(number + 1.0))

    def entered(self, now_s: float) -> None:
        """Decide at the end of the present decision period. Called when a request arrives while none is in flight.

        Without this call, a policy would learn of the request only when the second of its arrival is complete.
        """
        if self.policy.observes or self._is_settled:
            last_s = self._periods.until(now_s)
            self.due_s = min(self.due_s, last_s + self._periods.period_s)

    def started(self, took_s: float, now_s: float, *, is_first: bool) -> None:
        """Record the seconds until a pod became ready. ``is_first``: no other pod is ready."""
        if is_first:
            self._seconds.begin_reports(math.floor(now_s))
        # A policy's observation of a second depends on the earlier starts.
        self._observe(math.floor(self._periods.until(now_s)) - 1)
        self.policy.started(took_s)

    def decide_by(self, at_s: float, now_s: float, *, is_first: bool = False) -> None:
        """Schedule a decision for ``at_s``, or for the end of the present decision period if that comes first.

        The decision is later than ``at_s`` if the minimum pause since the last period has not passed by then. Periods
        whose decision was skipped count, too. ``is_first``: the period at ``now_s`` has not passed yet.
        """
        last_s = self._periods.until(now_s, is_first=is_first)
        asked_s = max(at_s, last_s + DECISION_PAUSE_S)
        if last_s + self._periods.period_s < asked_s:
            self.due_s = min(self.due_s, last_s + self._periods.period_s)
            return
        self._asked_s = min(self._asked_s, asked_s)
        self.due_s = min(self.due_s, self._asked_s)

    def decide(self, counts: RevisionCounts, now_s: float, cause: DecisionCause) -> Conclusion:
        """Decide now, and return the conclusion. Simulated probes of the activator succeed immediately."""
        self._adopt(counts, now_s)
        self._record_seconds(now_s, has_reports=counts.ready > 0)
        observed = self._windows.query(now_s)
        conclusion = self._decide(counts, observed, now_s=now_s, cause=cause)
        if conclusion.to_prove:
            self._proved_at_s = now_s
            conclusion = self._decide(counts, observed, now_s=now_s, cause=DecisionCause.PROOF)
        if self._state.resets_windows:
            self._windows.reset(self._spec)
            self._seconds.reset()
            self._unobserved.clear()
        self._periods.made_s, self._conclusion, self._asked_s = now_s, conclusion, math.inf
        self._recheck_s = math.inf if self._recheck_in_s is None else now_s + self._recheck_in_s
        self._level_counts = (counts.scale, counts.ready) if self._has_level(counts, conclusion, now_s) else None
        self.is_level = self._level_counts is not None and counts.inside > 0
        if self._signals is not None:
            self._recheck_s = min(self._recheck_s, now_s + max(DECISION_PAUSE_S, self._signals.due_in_s(now_s)))
        return conclusion

    def is_repeated(self, counts: RevisionCounts, now_s: float) -> bool:
        """Whether the due decision would repeat the last one. In this case, only the time of the next one is computed.

        This is so while a policy keeps a single ready pod, and no second had load for two pods. The policy observes
        the seconds immediately; the windows receive them at the next decision.
        """
        policy, conclusion = self.policy, self._conclusion
        if counts.scale > 1:
            return self._is_level_repeated(counts, now_s)
        if (
            not policy.observes
            or not self._skips
            or counts.scale != 1
            or counts.ready != 1
            or now_s >= self._asked_s
            or conclusion is None
            or conclusion.scale != 1
            or conclusion.ready != 1
            or not self._is_one_pod_wanted(counts)
        ):
            return False
        self._observe(math.floor(now_s) - 1)
        again_s = policy.unchanged_for_s(in_flight=float(counts.inside), now_s=now_s)
        if again_s is None:
            return False
        self._periods.made_s, self._asked_s, self._recheck_s = now_s, math.inf, now_s + again_s
        if counts.inside or self._unobserved:
            self.due_s = min(self._recheck_s, now_s + self._periods.period_s)
        else:
            # The decision is valid until the age of the gap changes it, or a request arrives.
            self.due_s = self._periods.before(self._recheck_s)
        return True

    @property
    def is_next_due(self) -> bool:
        """Whether the next decision is already scheduled for the end of the present period. No decision can be earlier."""
        return self.due_s == self._periods.made_s + self._periods.period_s

    def schedule(self, counts: RevisionCounts, now_s: float) -> None:
        """Set ``due_s`` to the next period in which the decision may differ from the last one."""
        conclusion = self._conclusion
        if conclusion is None:
            return
        recheck_s = self._recheck_s
        self._is_settled = False
        due_s = min(self._periods.at(now_s), recheck_s)
        if counts.scale > 1 and counts.inside:
            due_s = self._level_end_s if self.is_level else max(due_s, self._periods.made_s + DECISION_PAUSE_S)
            self.due_s = min(self._asked_s, due_s)
            return
        self.is_level = False
        if self._skips and (not self.policy.observes or self._is_silent(counts)):
            if (not counts.scale and not counts.inside and not self._seconds.pending) or (
                conclusion.apply_count is None and self._is_clock_alone(counts, conclusion)
            ):
                due_s = self._periods.before(min(recheck_s, self._panic_end_s))
            elif not self.policy.observes and counts.scale == counts.ready == 1 and self._is_one_pod_wanted(counts):
                # One pod is sufficient at each decision until the load leaves the window.
                end_s = self._seconds.window_end(now_s)
                due_s = self._periods.at(max(now_s, end_s)) if self._periods.made_s < end_s else due_s
        if self._skips and conclusion.apply_count is None:
            end_s = self._settled_until_s(counts, conclusion, now_s)
            settled_s = min(end_s, self._periods.before(recheck_s))
            if settled_s > due_s:
                self._is_settled, due_s = True, settled_s
        if self._skips and self._is_one_pod_starting(counts):
            due_s = self._periods.before(recheck_s)
        self.due_s = min(self._asked_s, max(due_s, self._periods.made_s + DECISION_PAUSE_S))

    def _has_level(self, counts: RevisionCounts, conclusion: Conclusion, now_s: float) -> bool:
        """Whether only the load can change the decision about several pods; sets the bounds of the load if so."""
        detail, spec = self._detail, self._spec
        if self._steady is None or not counts.ready:
            self._seconds.level = None
            return False
        if (
            counts.scale <= 1
            or conclusion.apply_count is not None
            or conclusion.phase is not GatePhase.ACTIVE
            or conclusion.is_status_changed
            or conclusion.gate_reason is not GateReason.PODS_WANTED
            or not isinstance(detail, ScaleDecision)
            or not detail.desired_stable_count
            or detail.start_hold_count
            or spec.scale_down_delay_s
            or spec.window_kind is not WindowKind.LINEAR
            # The sign of the excess burst capacity must not depend on the load.
            or 0 < spec.target_burst_capacity <= counts.ready * spec.total_value
        ):
            return False
        level = self._seconds.measure(self._windows, now_s)
        if level is None:
            return False
        level.bound(detail, spec)
        return not level.is_left

    def _is_level_repeated(self, counts: RevisionCounts, now_s: float) -> bool:
        """Whether the due decision about several pods would repeat the last one, because of the bounds of its load."""
        if (
            # A policy may advise on an idle revision.
            (not counts.inside and self.policy.observes)
            or self._level_counts != (counts.scale, counts.ready)
            or now_s >= min(self._asked_s, self._recheck_s, self._level_end_s)
        ):
            return False
        level = self._seconds.measure(self._windows, now_s)
        if level is None or level.is_left:
            return False
        self.is_level, self._recheck_s = counts.inside > 0, math.inf
        # Without requests, no report of a second ends the level.
        self.due_s = self._level_end_s if counts.inside else self._periods.at(now_s + self._periods.period_s)
        return True

    @property
    def _level_end_s(self) -> float:
        """The end of a level: the end of panic, or when seconds that wait for the windows would leave them."""
        end_s = self._periods.made_s + self._spec.stable_window_s
        state = self._state.kpa
        if state is not None and state.panic_since_s is not None:
            end_s = min(end_s, self._periods.at(state.panic_since_s + self._spec.stable_window_s))
        return end_s

    @property
    def _panic_end_s(self) -> float:
        """The time of the first period after panic mode; infinite outside panic mode."""
        state = self._state.kpa
        if state is None or state.panic_since_s is None:
            return math.inf
        return self._periods.at(state.panic_since_s + self._spec.stable_window_s + DECISION_PAUSE_S)

    @property
    def _is_in_panic(self) -> bool:
        state = self._state.kpa
        return state is not None and state.panic_since_s is not None

    def _is_silent(self, counts: RevisionCounts) -> bool:
        """Whether the policy has observed all load, and none is in flight.

        Its advice then changes only at times that the policy has announced.
        """
        return not (counts.inside or self._seconds.pending) and counts.scale == counts.ready <= 1

    def _is_clock_alone(self, counts: RevisionCounts, conclusion: Conclusion) -> bool:
        """Whether the decision can only change at a time that the policy has announced, or by the gate's clock."""
        if counts.inside or self._seconds.pending:
            return False
        # Once a policy releases the last pod, the gate continues in steps of one period.
        # A scale-down delay counts the algorithm's decisions.
        is_kept = conclusion.is_timed and bool(self.latest_count) and not self._spec.scale_down_delay_s
        return is_kept or conclusion.gate_reason in _CLOCK_REASONS

    def _settled_until_s(self, counts: RevisionCounts, conclusion: Conclusion, now_s: float) -> float:
        """The time until which the pod count and the traffic path stay the same if no further load arrives.

        This is the end of panic mode, or, if one pod is wanted, the time at which the last load leaves the stable
        window; 0 if unknown.
        """
        detail, spec = self._detail, self._spec
        if (
            counts.inside
            or self._seconds.pending
            or counts.scale != counts.ready
            or conclusion.gate_reason is not GateReason.PODS_WANTED
            or conclusion.phase is not GatePhase.ACTIVE
            or not isinstance(detail, ScaleDecision)
            or detail.is_over_panic_threshold
            or spec.scale_down_delay_s
            or spec.metric != CONCURRENCY.name
        ):
            return 0.0
        excess = excess_burst_capacity(ready_count=counts.ready, observed_panic=0.0, spec=spec)
        if (excess < 0) is not (detail.excess_burst_capacity < 0):
            return 0.0
        if detail.panic_since_s is not None:
            return self._periods.at(detail.panic_since_s + spec.stable_window_s)
        if detail.desired_count != 1:
            return 0.0
        return self._periods.at(max(now_s, self._seconds.window_end(now_s)))

    def _is_one_pod_starting(self, counts: RevisionCounts) -> bool:
        """Whether the first pod is starting and is sufficient. The next decision is then due when it is ready."""
        return (
            (counts.scale, counts.ready, self.latest_count) == (1, 0, 1)
            and 0 < counts.inside <= self.quiet_load
            and not self._is_in_panic
            and not self._seconds.was_ever_hot
            and len(self._seconds.pending) < _PENDING_STARTING_MAX
        )

    def _is_one_pod_wanted(self, counts: RevisionCounts) -> bool:
        """Whether one pod was desired, and no load since then exceeds its capacity."""
        spec, conclusion = self._spec, self._conclusion
        return (
            conclusion is not None
            and conclusion.phase is GatePhase.ACTIVE
            and self.latest_count == 1
            and self._is_path_fixed
            and spec.activation_scale <= 1
            and not spec.scale_down_delay_s
            and counts.inside <= self.quiet_load
            and not self._is_in_panic
            and self._seconds.is_cool(self._periods.made_s)
        )

    def _adopt(self, counts: RevisionCounts, now_s: float) -> None:
        """Apply the learnt target and the latency goal to further decisions."""
        spec = self._own if self._signals is None else self._signals.spec(now_s)
        if spec.slo is not None:
            spec = self.slo.update(spec, ready_count=counts.ready, present_scale=counts.scale, now_s=now_s)
        if spec is not self._spec:
            self._spec = spec
            self.policy.update(spec)

    def _record_seconds(self, now_s: float, *, has_reports: bool) -> None:
        """Record completed seconds in the windows, after the policy has observed them."""
        if self._unobserved:
            self._observe(math.floor(now_s) - 1)
        self._seconds.flush_to(self._windows, now_s, has_reports=has_reports)

    def _observe(self, last_number: int) -> None:
        """Pass the recorded seconds to the policy, up to the second with this number."""
        unobserved = self._unobserved
        while unobserved and unobserved[0][0] <= last_number:
            number, load, arrivals, _ = unobserved.popleft()
            self.policy.observe(SecondOfLoad(number, load, float(arrivals)))

    def _decide(
        self, counts: RevisionCounts, observed: Observation | NoData, *, now_s: float, cause: DecisionCause
    ) -> Conclusion:
        self.count += 1
        view = ScalerView(
            present_scale=counts.scale,
            ready_count=counts.ready,
            serving_state=self._serving_state,
            proved_at_s=self._proved_at_s,
            has_public=self._has_burst_switch,
            proxy_since_s=self._proxy_since_s,
            path=self.path,
        )
        conclusion = self._repeated(counts, view, observed, now_s=now_s) or self._decide_in_full(
            counts, view, observed, now_s=now_s, cause=cause
        )
        if conclusion.to_reserve:
            self._serving_state = ServingState.RESERVE
        if self._has_burst_switch and conclusion.path is not self.path:
            self.path = conclusion.path
            self._proxy_since_s = now_s if conclusion.path is TrafficPath.PROXY else None
        return conclusion

    def _repeated(
        self, counts: RevisionCounts, view: ScalerView, observed: Observation | NoData, *, now_s: float
    ) -> Conclusion | None:
        """The conclusion of an earlier decision with the same inputs; None if there is none."""
        self._key = None
        steady, state, spec = self._steady, self._state, self._spec
        # Requests without a report raise the load.
        if steady is None or state.kpa is None or (counts.inside and isinstance(observed, NoData)):
            return None
        kpa, detail = decide(
            state.kpa,
            observed=observed,
            ready_count=counts.ready,
            spec=spec,
            now_s=now_s,
            quirks=self._settings.quirks,
        )
        advice = self._advice(counts, detail, now_s) if self.policy.observes else NEUTRAL
        self._key = key = key_of(
            view, detail, advice, gate=state.gate, is_busy=counts.inside > 0, spec=spec, now_s=now_s
        )
        repeated = steady.repeated(key, gate=state.gate, kpa=kpa, now_s=now_s)
        if repeated is None:
            return None
        self._state, conclusion = repeated
        self._detail = detail
        gate_s, advice_s = conclusion.gate_recheck_in_s, advice.recheck_in_s
        self._recheck_in_s = advice_s if gate_s is None else gate_s if advice_s is None else min(gate_s, advice_s)
        return conclusion

    def _advice(self, counts: RevisionCounts, detail: ScaleDecision | NoData, now_s: float) -> Advice:
        """The policy's advice for these inputs. A full decision asks the policy again, with the same result."""
        desired = detail if isinstance(detail, NoData) else detail.desired_count
        return self.policy.propose(
            PolicyView(
                now_s=now_s,
                wall_s=now_s,
                algorithm=Proposal(decider="kpa", desired=desired, reason=""),
                in_flight=float(counts.inside),
                present_scale=counts.scale,
                ready_count=counts.ready,
                spec=self._spec,
            )
        )

    def _decide_in_full(
        self,
        counts: RevisionCounts,
        view: ScalerView,
        observed: Observation | NoData,
        *,
        now_s: float,
        cause: DecisionCause,
    ) -> Conclusion:
        is_unserved = counts.ready == 0 or self.latest_count == 0
        present = Stat(concurrency=float(counts.inside))
        inputs = StepInputs(
            at_s=now_s,
            wall_s=now_s,
            cause=cause,
            view=view,
            in_flight=InFlight(
                present=present if counts.ready else self._tokens.estimated(present),
                is_waiting=counts.inside > 0 and self.counts_waiting and is_unserved,
            ),
            observed=observed,
            further=self._windows.query_further(now_s),
            proposals=() if self._signals is None else self._signals.proposals(now_s),
            spec=self._spec,
            quirks=self._settings.quirks,
            learnt=None if self._signals is None else self._signals.learnt,
            slo=self.slo.outcome,
        )
        timed_limit = self.limit
        limit = None if timed_limit is None else lambda demand: timed_limit(demand, now_s)
        self._state, outcome = step(self._state, inputs, self.policy, limit=limit)
        conclusion = conclusion_of(outcome, self._state)
        if self._steady is not None and self._key is not None:
            self._steady.record(self._key, conclusion)
        self.outcome, self._detail, self._recheck_in_s = outcome, outcome.decided.detail, outcome.recheck_in_s
        return conclusion
