"""Finds which decisions about a simulated revision repeat an earlier one.

Input: the outcomes so far. Output: for the pods and the load of a decision, the earlier outcome with the same result. Only figures
that the simulator does not read may differ. The count is always the product's own decision.
"""

import msgspec

from serving.model.knative import TrafficPath
from serving.scaling.adaptive.advice import NEUTRAL
from serving.scaling.adaptive.policy import RevisionPolicy
from serving.scaling.kpa.decide import ScaleDecision
from serving.scaling.kpa.zero import GatePhase, GateReason
from serving.scaling.scaler.deciders import KpaDecider
from serving.scaling.scaler.scaler import ScalerOutcome
from serving.scaling.spec import ScalingSpec

# Outcomes kept for each revision: each is some kilobytes.
_OUTCOMES_MAX = 64


class RevisionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a decision: pods wanted and ready, and requests inside."""

    scale: int
    ready: int
    inside: int


class SteadyOutcomes:
    """Outcomes of one revision that held its pods.

    While the wanted pods are there, the merge, the gate and the path follow from the scale, the ready pods, the algorithm's count and
    the sign of its excess burst capacity alone.
    """

    __slots__ = ("_decider", "_outcomes", "_policy", "_spec")

    def __init__(self, spec: ScalingSpec, decider: KpaDecider, policy: RevisionPolicy | None) -> None:
        self._spec, self._decider, self._policy = spec, decider, policy
        self._outcomes: dict[tuple[int, int, int, bool], ScalerOutcome] = {}

    def keep(self, outcome: ScalerOutcome) -> None:
        """Keep an outcome, if it held the pods and only the algorithm had a say. An app's gauge has one too."""
        detail, facts = outcome.decided.detail, outcome.facts
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
            key = facts.present_scale, facts.ready_count, detail.desired_count, detail.excess_burst_capacity < 0
            self._outcomes[key] = outcome

    def repeated(self, counts: RevisionCounts, path: TrafficPath, now_s: float) -> ScalerOutcome | None:
        """Let the algorithm decide, and return the outcome kept for its count; None, and no decision, without one.

        The gate must be active. A policy without a forecast advises nothing while requests are in flight.
        """
        policy = self._policy
        if (
            not self._outcomes
            or not counts.ready
            or (policy is not None and (policy.counts_waiting or not counts.inside))
        ):
            return None
        found = self._decider.peek(self._spec, ready_count=counts.ready, now_s=now_s)
        if found is None:
            return None
        state, count, excess = found
        outcome = self._outcomes.get((counts.scale, counts.ready, count, excess < 0))
        if outcome is None or outcome.path is not path:
            return None
        self._decider.adopt(state)
        return outcome
