"""Finds decisions about a simulated revision that repeat an earlier decision.

Input: the outcomes so far. Output: the earlier outcome with the same result for a decision's pods and load. Only
figures that the simulator does not read may differ. The product's code always computes the count.
"""

import msgspec

from serving.core.model.knative import TrafficPath
from serving.core.model.nodata import NoData
from serving.core.scaling.decision.policy import NEUTRAL, RevisionPolicy
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.decision.step import RevisionState
from serving.core.scaling.kpa.decide import ScaleDecision, decide
from serving.core.scaling.kpa.zero import GatePhase, GateReason
from serving.core.scaling.scaler.windows import RevisionWindows
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import KpaQuirks

# Outcomes kept for each revision: an outcome takes some kilobytes.
_OUTCOMES_MAX = 64


class RevisionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a decision: desired and ready pods, and requests in flight."""

    scale: int
    ready: int
    inside: int


class SteadyOutcomes:
    """Outcomes of one revision that did not change its number of pods.

    While the desired pods are ready, the merge, the gate and the path depend only on the scale, the ready pods, the
    algorithm's count and the sign of its excess burst capacity.
    """

    __slots__ = ("_outcomes", "_policy", "_quirks", "_spec", "_windows")

    def __init__(
        self, spec: ScalingSpec, windows: RevisionWindows, *, policy: RevisionPolicy, quirks: KpaQuirks
    ) -> None:
        self._spec = spec
        self._windows = windows
        self._policy = policy
        self._quirks = quirks
        self._outcomes: dict[tuple[int, int, int, bool], ScalerOutcome] = {}

    def record(self, outcome: ScalerOutcome) -> None:
        """Record an outcome of the algorithm alone, without an app's gauge, that did not change the number of pods."""
        detail, view = outcome.decided.detail, outcome.view
        if (
            outcome.apply_count is None
            and outcome.gate.reason is GateReason.PODS_WANTED
            and outcome.phase is GatePhase.ACTIVE
            and outcome.inputs.advice is NEUTRAL
            and isinstance(detail, ScaleDecision)
            and not self._spec.load_metric.gauge
        ):
            if len(self._outcomes) >= _OUTCOMES_MAX:
                self._outcomes.clear()
            self._outcomes[_key(view.present_scale, detail)] = outcome

    def repeated(
        self, counts: RevisionCounts, state: RevisionState, *, path: TrafficPath, now_s: float
    ) -> tuple[RevisionState, ScalerOutcome] | None:
        """Run the algorithm, and return the next state and the stored outcome for its count; None without such an outcome.

        The gate must be active. A policy returns no advice while requests are in flight.
        """
        policy, kpa = self._policy, state.kpa
        if not self._outcomes or not counts.ready or kpa is None:
            return None
        if policy.observes and (policy.counts_waiting or not counts.inside):
            return None
        kpa_next, detail = decide(
            kpa,
            observed=self._windows.query(now_s),
            ready_count=counts.ready,
            spec=self._spec,
            now_s=now_s,
            quirks=self._quirks,
        )
        if isinstance(detail, NoData):
            return None
        outcome = self._outcomes.get(_key(counts.scale, detail))
        if outcome is None or outcome.path is not path:
            return None
        return msgspec.structs.replace(
            state, kpa=kpa_next, latest_count=detail.desired_count, resets_windows=False
        ), outcome


def _key(scale: int, detail: ScaleDecision) -> tuple[int, int, int, bool]:
    return scale, detail.ready_count, detail.desired_count, detail.excess_burst_capacity < 0
