"""The adaptive policy of one revision: observes seconds of load, and gives advice for each decision.

While requests are in flight, Knative's algorithm decides. Once the revision is idle, its earlier gaps decide how long
its last pod stays, and whether a pod is started ahead of the next request; that request keeps the pod. The last pod
stays as long as under Knative until five gaps are known, and while the learnt keep-alive would have cost more
(``KeepRegret``). Costs are counted in pod-seconds.
"""

import math

import msgspec

from serving.core.model.errors import UNREADABLE, InvalidValue
from serving.core.model.nodata import NoData
from serving.core.scaling.adaptive.advice import PreWarmBudget, proposals_of, reason_of
from serving.core.scaling.adaptive.gaps import (
    BIN_STARTS_S,
    SHIPPED_PRIOR,
    GapHistory,
    GapPlan,
    GapPrior,
    KeepBounds,
    KeepWindow,
    curve_of,
    keep_windows,
)
from serving.core.scaling.adaptive.policy_story import HazardCurve
from serving.core.scaling.adaptive.regret import KeepRegret, difference
from serving.core.scaling.decision.policy import (
    KEEP_ALIVE,
    NEUTRAL,
    Advice,
    KeepReason,
    PolicyView,
    RevisionPolicy,
    SecondOfLoad,
)
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, AdaptiveSettings, AutoscalerSettings

# Weight of the newest cold start in the mean number of waiting requests.
_WOKEN_WEIGHT = 0.2
# Fewest recorded gaps before they decide; until then the last pod stays for the stable window.
_GAPS_MIN = 5
# The last pod stays at least this many times its start time.
_KEPT_STARTS = 3.0
# Most gaps of one revision in the population's prior, so that all revisions weigh equally.
_PRIOR_GAPS = 50
# Shortest time between two saves of a revision's history, in seconds: each save is an API write.
_SAVE_PERIOD_S = 300.0
# Greatest age of the figures that explain a decision, in seconds.
_REPEATED_AFTER_S = 10.0
# Seconds by which the load may cross the edge of the stable window late: one report, and one bucket.
_WINDOW_SLACK_S = 3.0
# Shortest time to the next check, in seconds; rounding must not cause a busy loop.
_RECHECK_MIN_S = 0.05
_KEEPS_BUSY_POD = Advice(proposals=(Proposal(decider=KEEP_ALIVE, desired=1, reason="a request is in flight"),))


class AdaptivePolicy(RevisionPolicy):
    """The adaptive policy of one revision. All revisions of an autoscaler share ``budget`` and ``prior``."""

    name = ADAPTIVE_POLICY
    observes = True

    def __init__(
        self,
        spec: ScalingSpec,
        settings: AutoscalerSettings,
        *,
        prior: GapPrior,
        budget: PreWarmBudget,
        explains: bool = True,
    ) -> None:
        """``explains`` adds explanations (``KeepReason``) to the advice. Computing them costs more than the advice."""
        super().__init__()
        self._explains = explains
        self._spec = spec
        self._settings = settings.adaptive
        self._hold_min_s = self._least_kept_s()
        self._prior = prior
        self._budget = budget
        self._gaps = GapHistory()
        self._idle: GapPlan | None = None
        self._regret = KeepRegret()
        # Knative's pods in this gap, and the last gap's excess cost over Knative, whose cold requests still arrive.
        self._tail_count = 1
        self._unsettled: tuple[float, int] | None = None
        # Mean requests that wait for a cold start, and those counted so far at the last gap's end.
        self._arrivals_per_start = 1.0
        self._woken_count = 0.0
        self._woken_second: int | None = None
        self._warmed_window: KeepWindow | None = None
        self._saved_at_s: float | None = None
        self._saved_count = 0
        self._explained: tuple[KeepWindow | None, KeepReason] | None = None

    def started(self, took_s: float) -> None:
        """Record how many seconds a pod took to start."""
        super().started(took_s)
        self._hold_min_s = self._least_kept_s()

    def _least_kept_s(self) -> float:
        """The minimum keep time of the last pod. It grows with the start time, so that a slow start is not wasted."""
        settings = self._settings
        return max(settings.keep_alive_min_s, min(_KEPT_STARTS * self.start_s, settings.keep_alive_start_max_s))

    def update(self, spec: ScalingSpec) -> None:
        """Apply the changed settings of the revision."""
        self._spec = spec
        self._idle = None
        self._explained = None

    def observe(self, second: SecondOfLoad) -> None:
        """Record a completed second; seconds without load may be skipped."""
        if second.concurrency <= 0 and second.request_count <= 0:
            return
        number, since_s = second.number, self.idle_since_s
        if since_s is not None and number - since_s >= 1.0:
            self._record_gap(number - since_s, number)
        if self._woken_second is not None and (left_s := self._woken_second + self.start_s - number) > 0:
            # If the second outlasts the start, only part of its requests wait for the pod.
            self._woken_count += second.request_count * min(1.0, left_s)
        if since_s is None or number >= since_s:
            self.idle_since_s = max(number + 1.0, since_s or 0.0)
        self._idle = self._warmed_window = self._explained = None

    def _record_gap(self, gap_s: float, number: int) -> None:
        """Record a gap of ``gap_s`` seconds, which ended in the second with this ``number`` (``SecondOfLoad``)."""
        if gap_s >= self._hold_min_s:
            if self._unsettled is not None:
                # The cold requests of a gap are complete only at the next gap.
                pod_seconds, cold = self._unsettled
                self._regret.record(pod_seconds, cold * max(1.0, self._woken_count))
            if self._regret.is_counted and self._gaps.gap_count >= _GAPS_MIN:
                plan = self._idle or self._plan()
                self._unsettled = difference(
                    gap_s, plan, spec=self._spec, pod_count=self._tail_count, start_s=self.start_s
                )
            self._tail_count = 1
            # The gap removed the pod under Knative: count the requests that would have waited for a new one.
            if self._woken_second is not None:
                self._arrivals_per_start += _WOKEN_WEIGHT * (max(1.0, self._woken_count) - self._arrivals_per_start)
            self._woken_second = number
            self._woken_count = 0.0
        self._gaps.record(gap_s)
        self._prior.record(gap_s, weight=min(1.0, _PRIOR_GAPS / self._gaps.gap_count))

    def propose(self, view: PolicyView) -> Advice:
        """The advice for one decision; the scaler combines the advice with the count of Knative's algorithm."""
        in_flight, wanted, now_s = view.in_flight, view.algorithm.desired, view.now_s
        if self.idle_since_s is None:
            self.idle_since_s = now_s
        if in_flight is None:
            return NEUTRAL
        if not in_flight and not isinstance(wanted, NoData) and now_s - self.idle_since_s < self._hold_min_s:
            self._tail_count = max(1, wanted)
        is_learnt = _is_learnt_used(self._gaps, self._regret, spec=self._spec, settings=self._settings)
        if in_flight > 0:
            # The windows are still empty if the pod was kept for longer than they last, or started ahead.
            return _KEEPS_BUSY_POD if wanted == 0 and is_learnt else NEUTRAL
        if not is_learnt:
            regret = self._regret.reason(self._spec.cold_start_worth_s) if self._explains else None
            return NEUTRAL if regret is None else Advice(regret=regret)
        age_s = max(0.0, now_s - self.idle_since_s)
        min_s = self._hold_min_s
        if age_s < min_s:
            # Most gaps end before a plan is needed, and the plan is the most expensive part.
            proposals = proposals_of(view.algorithm, KeepWindow(0.0, min_s))
            return Advice(proposals=proposals, active_min_s=min_s, recheck_in_s=max(_RECHECK_MIN_S, min_s - age_s))
        if self._idle is None:
            self._idle = self._plan()
        window, recheck_in_s = self._window_at(age_s, present_scale=view.present_scale, now_s=now_s)
        return Advice(
            proposals=proposals_of(view.algorithm, window),
            active_min_s=min_s,
            recheck_in_s=recheck_in_s,
            keep=self._reason(age_s, window) if self._explains else None,
        )

    def anticipated_count(self, *, ahead_s: float, now_s: float) -> int:
        """Pods needed in ``ahead_s`` seconds for an expected request: 1 or 0."""
        if self._idle is None or self.idle_since_s is None:
            return 0
        age_s = now_s - self.idle_since_s
        return int(any(window.from_s - self.start_s - ahead_s <= age_s < window.to_s for window in self._idle))

    def unchanged_for_s(self, *, in_flight: float, now_s: float) -> float | None:
        """How long, in seconds, the policy keeps one ready pod unchanged; None requires a call of ``propose``.

        The result is valid only while Knative's algorithm also wants one pod, and each second in its windows had a
        load. With requests in flight the result is infinite, because only a change of the load changes the advice.
        """
        if self.idle_since_s is None:
            return None
        age_s = now_s - self.idle_since_s
        is_in_window = age_s < self._spec.stable_window_s - _WINDOW_SLACK_S
        if in_flight > 0:
            return math.inf if is_in_window else None
        if not _is_learnt_used(self._gaps, self._regret, spec=self._spec, settings=self._settings):
            # Knative's keep-alive holds the pod while the windows have load, and decides once per period only.
            left_s = self._spec.stable_window_s - _WINDOW_SLACK_S - age_s
            return left_s if left_s > self._spec.decision_period_s else None
        to_s = self._hold_min_s
        if age_s >= to_s:
            if self._idle is None:
                self._idle = self._plan()
            to_s = next(iter(self._idle)).to_s
        return max(_RECHECK_MIN_S, to_s - age_s) if age_s < to_s else None

    def due_save(self, now_s: float) -> str | None:
        """The learnt state as text for ``load``; None if it is unchanged or was saved recently."""
        is_new = self._gaps.gap_count != self._saved_count
        if not is_new or (self._saved_at_s is not None and 0 <= now_s - self._saved_at_s < _SAVE_PERIOD_S):
            return None
        self._saved_at_s = now_s
        self._saved_count = self._gaps.gap_count
        return msgspec.json.encode(self._gaps.dump() | self._regret.dump()).decode()

    def load(self, learnt: str) -> None:
        """Restore the learnt state. Raises ``InvalidValue``."""
        try:
            dumped = msgspec.json.decode(learnt, type=dict[str, float])
        except UNREADABLE as error:
            raise InvalidValue(text=learnt, expected="counts of gaps by bin, as JSON") from error
        regret = KeepRegret()
        dumped = regret.load(dumped)
        self._gaps.load(dumped)
        self._regret = regret
        weight = min(1.0, _PRIOR_GAPS / max(self._gaps.gap_count, 1))
        for name, count in dumped.items():
            self._prior.record(BIN_STARTS_S[int(name)], weight=weight * count)
        self._saved_count = self._gaps.gap_count
        self._idle = self._explained = None

    def curve(self) -> HazardCurve | None:
        """The request rates behind the keep-alive, for display; None before the first gap."""
        if not self._gaps.gap_count:
            return None
        if self._idle is None:
            self._idle = self._plan()
        idle = self._idle
        hazard = self._gaps.hazard(self._prior)
        return curve_of(hazard, tuple(idle), worth_s=idle.worth_s, gap_count=self._gaps.gap_count)

    def _plan(self) -> GapPlan:
        settings, spec = self._settings, self._spec
        bounds = KeepBounds(
            # All requests that arrive during a start are cold.
            worth_s=spec.cold_start_worth_s * self._arrivals_per_start,
            min_s=self._hold_min_s,
            max_s=settings.keep_alive_max_s,
            bridge_s=settings.keep_alive_bridge_s,
            start_s=self.start_s,
            pre_warms=settings.pre_warming,
            dormant_after_s=math.inf if spec.dormant_after_s is None else spec.dormant_after_s,
            dormant_cost=spec.dormant_cost,
        )
        # The first window lasts at least until then, whatever the rates before are.
        hazard = self._gaps.hazard_by_group(self._prior, rate_min=bounds.rate_min, from_s=bounds.min_s)
        return GapPlan(keep_windows(hazard, bounds), bounds.worth_s)

    def _window_at(self, age_s: float, *, present_scale: int, now_s: float) -> tuple[KeepWindow | None, float | None]:
        """The keep window for this idle age, and the seconds until the result may change, if known.

        The window is None if no pod is kept at this age.
        """
        assert self._idle is not None
        for window in self._idle:
            lead_s = self.start_s if window.from_s else 0.0
            if age_s < window.from_s - lead_s:
                return None, max(_RECHECK_MIN_S, window.from_s - lead_s - age_s)
            if age_s < window.to_s:
                if not window.from_s or present_scale or self._may_warm(window, now_s):
                    return window, max(_RECHECK_MIN_S, window.to_s - age_s)
                # The budget has no starts remaining.
                return None, 60.0 / self._settings.pre_warming_per_minute
        return None, None

    def _may_warm(self, window: KeepWindow, now_s: float) -> bool:
        """Whether a pod may be started for the window; each window uses the budget once."""
        if self._warmed_window != window and self._budget.spend(now_s):
            self._warmed_window = window
        return self._warmed_window == window

    def _reason(self, age_s: float, window: KeepWindow | None) -> KeepReason:
        """Why the pod is kept or not. The result may be some seconds old: computing it costs more than a decision."""
        explained = self._explained
        if explained is None or explained[0] != window or not 0 <= age_s - explained[1].age_s < _REPEATED_AFTER_S:
            hazard = self._gaps.hazard(self._prior)
            explained = self._explained = (window, reason_of(hazard, self._gaps, age_s, window=window))
        return explained[1]


def _is_learnt_used(gaps: GapHistory, regret: KeepRegret, *, spec: ScalingSpec, settings: AdaptiveSettings) -> bool:
    """Whether the gaps decide the keep-alive; otherwise Knative's algorithm does."""
    is_known = settings.keep_alive and gaps.gap_count >= _GAPS_MIN
    return is_known and not regret.is_worse(spec.cold_start_worth_s)


def adaptive_policy(
    spec: ScalingSpec,
    settings: AutoscalerSettings,
    *,
    prior: GapPrior | None = None,
    budget: PreWarmBudget | None = None,
    explains: bool = True,
) -> AdaptivePolicy:
    """Create the adaptive policy of a revision. The default prior is the shipped one."""
    return AdaptivePolicy(
        spec,
        settings,
        prior=prior or GapPrior(SHIPPED_PRIOR),
        budget=budget or PreWarmBudget(settings.adaptive.pre_warming_per_minute),
        explains=explains,
    )
