"""A decision in numbers, for those who measure, and the one rule that had the last word on it.

Input: a revision and an ``ScalerOutcome``. Output: ``RevisionNumbers``. The rule is one of a closed list, whatever policies are
called: the gate to zero, a bound, a silent decider, the activator's wake, a policy, or the algorithm's own limit or mode.
"""

from serving.model.load.requests import CONCURRENCY
from serving.model.nodata import NoData
from serving.model.revisionnumbers import RevisionNumbers
from serving.scaling.classic.classic import ClassicDecision, ClassicMode
from serving.scaling.kpa.decide import ScaleDecision, ScalerMode
from serving.scaling.kpa.zero import GateAction
from serving.scaling.revision import ScaledRevision
from serving.scaling.scaler.scaler import ScalerOutcome

_ACTIVATOR = "activator"


def measured(revision: ScaledRevision, outcome: ScalerOutcome) -> RevisionNumbers:
    """What a decision about a revision says in numbers."""
    facts, merged, detail = outcome.facts, outcome.merged, outcome.decided.detail
    metric, stable_load, panic_load, target_load, excess = CONCURRENCY.name, None, None, None, None
    if isinstance(detail, ScaleDecision):
        metric = outcome.inputs.spec.metric
        stable_load, panic_load = detail.observed_stable, detail.observed_panic
        target_load, excess = outcome.inputs.spec.target_value, detail.excess_burst_capacity
    elif isinstance(detail, ClassicDecision):
        stable_load, panic_load = detail.observed_stable_concurrency, detail.observed_panic_concurrency
        target_load = detail.target_concurrency
    return RevisionNumbers(
        namespace=revision.key[0],
        configuration=revision.configuration,
        revision=revision.key[1],
        desired_count=None if isinstance(merged, NoData) else merged.desired_count,
        requested_count=facts.present_scale,
        ready_count=facts.ready_count,
        is_panic=not isinstance(detail, NoData) and detail.mode in (ScalerMode.PANIC, ClassicMode.PANIC),
        rule=rule_of(outcome),
        metric=metric,
        stable_load=stable_load,
        panic_load=panic_load,
        target_load=target_load,
        excess_burst_capacity=excess,
        learnt_target=None if outcome.inputs.learnt is None else outcome.inputs.learnt.total,
    )


def rule_of(outcome: ScalerOutcome) -> str:
    """The rule that had the last word, from the last in the chain to the first."""
    merged, decided = outcome.merged, outcome.decided
    if isinstance(merged, NoData):
        return "no-data"
    if outcome.gate.action is not GateAction.APPLY and merged.desired_count == 0 and outcome.facts.present_scale:
        return "gate-to-zero"
    if merged.bounds.limited_by is not None:
        return merged.bounds.limited_by.value
    if merged.decided_by is None:
        return "silence"
    if merged.decided_by == decided.proposal.decider and not isinstance(decided.detail, NoData):
        limit = decided.detail.limited_by
        return decided.detail.mode.value if limit is None else limit.value
    return "wake" if merged.decided_by == _ACTIVATOR else "policy"
