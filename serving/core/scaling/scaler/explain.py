"""Explains a decision in one sentence, for ``serving why``, the dashboard, Events and the log.

Input: an ``ScalerOutcome``. Output: "3 → 8: panic; 6 s average 41.0 in flight over 3 ready pods, target 7 each; limited
by max-scale 8". The parts are in the order of the computation: the algorithm with its limiting rule, the other
deciders, the bounds, the gate to zero. Parts without an effect are omitted. The module computes no numbers.
"""

from serving.core.model.knative import TargetMode
from serving.core.model.loadmetric import load_metric
from serving.core.model.nodata import NoData
from serving.core.scaling.budget import UNLIMITED, Allowance, AllowanceReason
from serving.core.scaling.classic.classic import ClassicDecision, ClassicLimit, ClassicMode
from serving.core.scaling.decision.budgeted import allowance_reason, gated
from serving.core.scaling.decision.policy import KEEP_ALIVE, PRE_WARMING, RegretReason
from serving.core.scaling.decision.records import DecisionInputs, ScalerOutcome
from serving.core.scaling.kpa.decide import ScaleDecision, ScaleLimit, ScalerMode, count_for
from serving.core.scaling.kpa.merge import ACTIVATOR_DECIDER, Bounded, MergeDecision, Proposal, ScaleBound, most
from serving.core.scaling.kpa.zero import GateAction, GateReason
from serving.core.scaling.slo import SloOutcome, SloVerdict
from serving.core.scaling.spec import ScalingSpec

_MINUTES_FROM_S = 120.0
_MS = 1000.0

_LIMITS = {
    ScaleLimit.UP_RATE: "max-scale-up-rate {spec.max_scale_up_rate:g} allows {detail.rate_count_max}",
    ScaleLimit.DOWN_RATE: "max-scale-down-rate {spec.max_scale_down_rate:g} keeps {detail.rate_count_min}",
    ScaleLimit.ACTIVATION_SCALE: "any load starts activation-scale {spec.activation_scale}",
    ScaleLimit.PANIC_HOLD: "panic keeps {detail.panic_count_max}, the most it asked for",
    ScaleLimit.SCALE_DOWN_DELAY: (
        "scale-down-delay {spec.scale_down_delay_s:g} s keeps {detail.delayed_count}, now {detail.undelayed_count} would do"
    ),
    ScaleLimit.START_HOLD: (
        "until {spec.stable_window_s:g} s of load are known, the scale found at the start keeps {detail.start_hold_count}"
    ),
}
_CLASSIC_LIMITS = {
    ClassicLimit.SCALE_UP_RATE: "max-scale-up-rate allows {detail.desired_count}",
    ClassicLimit.PANIC_HOLD: "panic keeps {detail.desired_count}, the most it asked for",
    ClassicLimit.AT_LEAST_ONE: "1 stays until it is idle for long enough",
}
_BOUNDS = {
    ScaleBound.MIN_SCALE: "raised to min-scale {bounds.count_min}",
    ScaleBound.INITIAL_SCALE: "raised to initial-scale {bounds.count_min}, which must be ready once",
    ScaleBound.MAX_SCALE: "limited by max-scale {bounds.count_max}",
    ScaleBound.BUDGET: "the budget of {one.budget} allows {one.count} of {one.wanted}",
    ScaleBound.MEMORY: "the machine's memory is short: {one.budget}",
}
_GATE = {
    GateReason.NO_DECISION: "nothing is changed",
    GateReason.PODS_WANTED: "",
    GateReason.ZERO_DISABLED: "1 stays, for scale to zero is disabled",
    GateReason.ACTIVATION_PENDING: "its first pods have {rest_s:.0f} s more to become ready",
    GateReason.ACTIVATION_FAILED: "its first pods did not become ready within {spec.progress_deadline_s:g} s",
    GateReason.REVISION_FAILED: "it failed, and no route names it",
    GateReason.ACTIVE_TOO_SHORT: (
        "1 stays until it was active for the stable window of {spec.stable_window_s:g} s, {rest_s:.0f} s more"
    ),
    GateReason.NOT_RECORDED: "1 stays until the controller has recorded that its first pods were ready",
    GateReason.MARKED_INACTIVE: "idle, so it is marked inactive and the activator takes over",
    GateReason.ALREADY_ZERO: "already at 0",
    GateReason.HAND_OFF_IN_DOUBT: "first the activator must prove that it answers in the pods' place",
    GateReason.POD_RETENTION: (
        "the last pod is retained for {spec.scale_to_zero_pod_retention_s:g} s, {rest_s:.0f} s more"
    ),
    GateReason.GRACE: (
        "the activator is in the path for less than the grace period of {spec.scale_to_zero_grace_s:g} s, "
        "{rest_s:.0f} s more"
    ),
    GateReason.INACTIVE_LONG_ENOUGH: (
        "inactive for longer than the grace period of {spec.scale_to_zero_grace_s:g} s and the retention of "
        "{spec.scale_to_zero_pod_retention_s:g} s"
    ),
    GateReason.PROXIED_LONG_ENOUGH: "the activator is proved to answer in the pods' place",
}


def explain(outcome: ScalerOutcome) -> str:
    """The sentence that explains a decision."""
    parts = (
        *_algorithm(outcome),
        *_unreported(outcome),
        _slo(outcome.inputs.slo),
        _learnt(outcome),
        _advice_text(outcome),
        *_others(outcome),
        *_gate(outcome),
    )
    return f"{headline(outcome)}{_by(outcome)}: {'; '.join(part for part in parts if part)}"


def headline(outcome: ScalerOutcome) -> str:
    """The change in the number of pods: "3 → 8", "stays 3", "stays 1, heading for 0"."""
    present, gate = outcome.view.present_scale, outcome.gate
    if gate.action is GateAction.APPLY:
        return f"{present} → {gate.wanted}"
    is_settled = isinstance(gate.wanted, NoData) or gate.wanted == present
    return f"stays {present}" if is_settled else f"stays {present}, heading for {gate.wanted}"


def _by(outcome: ScalerOutcome) -> str:
    """The policy's contribution as text, if the policy changed the algorithm's count."""
    proposals, algorithm = outcome.inputs.advice.proposals, outcome.decided.proposal
    if proposals is None or most(proposals) == most((algorithm,)):
        return ""
    return f" by policy {outcome.inputs.spec.policy}"


# The algorithm.


def _algorithm(outcome: ScalerOutcome) -> tuple[str, ...]:
    inputs, detail = outcome.inputs, outcome.decided.detail
    if isinstance(detail, NoData):
        return (f"no data ({detail.missing})",)
    if isinstance(detail, ClassicDecision):
        return (_classic(detail), _classic_limit(outcome.decided.proposal, detail))
    return (detail.mode, _load(inputs, detail), _limit(inputs.spec, detail))


def _unreported(outcome: ScalerOutcome) -> tuple[str, ...]:
    """Names of gauges that no ready pod reports while no request runs; such a name may be misspelt."""
    inputs = outcome.inputs
    if not inputs.view.ready_count:
        return ()
    unknown = {proposal.decider for proposal in inputs.proposals if isinstance(proposal.desired, NoData)}
    if isinstance(outcome.decided.detail, NoData):
        unknown.add(inputs.spec.metric)
    metrics = (
        inputs.spec.load_metric,
        *(load_metric(further_metric.metric) for further_metric in inputs.spec.further_metrics),
    )
    return tuple(
        metric.missing
        for metric in metrics
        if metric.gauge and metric.gauge not in inputs.in_flight.present.gauges and metric.name not in unknown
    )


def _load(inputs: DecisionInputs, detail: ScaleDecision) -> str:
    spec, unit = inputs.spec, inputs.spec.load_metric.unit
    if inputs.in_flight.is_waiting:
        observed = inputs.in_flight.load(spec.load_metric)
        what = f"{_amount(observed)} {unit} and no pod to serve them"
    else:
        is_panic = detail.mode is ScalerMode.PANIC and detail.observed_panic >= detail.observed_stable
        observed, window_s = (
            (detail.observed_panic, spec.panic_window_s) if is_panic else (detail.observed_stable, spec.stable_window_s)
        )
        what = f"{window_s:g} s average {_amount(observed)} {unit} over {_pods(detail.ready_count)}"
    sentence = f"{what}, target {spec.target_value:g} each"
    # Rounded numbers can give another count than exact ones: 49.04 over 7 are 8 pods, 49.0 are 7.
    count = count_for(float(_amount(observed)), spec.target_value)
    return sentence if detail.limited_by or count == detail.desired_count else f"{sentence}, so {detail.desired_count}"


def _limit(spec: ScalingSpec, detail: ScaleDecision) -> str:
    return "" if detail.limited_by is None else _LIMITS[detail.limited_by].format(spec=spec, detail=detail)


def _classic(detail: ClassicDecision) -> str:
    if detail.mode is ClassicMode.IDLE:
        return f"classic; no request for {detail.idle_s:.0f} s"
    is_panic = detail.mode is ClassicMode.PANIC and detail.observed_panic_concurrency is not None
    observed = detail.observed_panic_concurrency if is_panic else detail.observed_stable_concurrency
    reporting = f"{detail.observed_pod_count} pod{'' if detail.observed_pod_count == 1 else 's'} that reported"
    average = f"average {_amount(observed or 0.0)} in flight a pod over {reporting}"
    return f"classic {detail.mode}; {average}, target {detail.target_concurrency:g} each"


def _classic_limit(proposal: Proposal, detail: ClassicDecision) -> str:
    if proposal.reason == ScaleLimit.START_HOLD:
        return f"the scale found at the start keeps {proposal.desired}"
    return "" if detail.limited_by is None else _CLASSIC_LIMITS[detail.limited_by].format(detail=detail)


# The learnt target.


def _learnt(outcome: ScalerOutcome) -> str:
    """The learnt target as text; empty unless it is in force or differs from the configured target."""
    learnt, spec = outcome.inputs.learnt, outcome.inputs.spec
    if learnt is None:
        return f"no target is learnt yet: {spec.total_value:g}" if spec.target_mode is TargetMode.USE else ""
    if learnt.bound is None and not learnt.is_used and learnt.total <= spec.total_value:
        return ""
    why = "nothing bounds it yet" if learnt.bound is None else f"{learnt.bound}-bound above {learnt.above:.3g}"
    used = "" if learnt.is_used else f", not used: target {spec.total_value:g}"
    return f"learnt target {learnt.total:.3g} ({why}){used}"


# The latency goal.


def _slo(slo: SloOutcome | None) -> str:
    """The latency goal as text: "p95 410 ms over 300: 2 more pods", where 300 ms is the limit."""
    if slo is None:
        return ""
    name, limit, least = slo.slo.name, f"{_MS * slo.slo.limit_s:g}", f"{slo.target:.3g}"
    if slo.verdict is SloVerdict.UNKNOWN:
        return f"too few requests to judge {name} of {limit} ms, target {least} each"
    if slo.verdict in {SloVerdict.HELD, SloVerdict.ROOM}:
        room = f": room for {least} each" if slo.verdict is SloVerdict.ROOM else ""
        return f"{name} {_MS * slo.quantile_s:.0f} ms of {limit}{room}"
    more = f"{slo.more_count} more pod{'' if slo.more_count == 1 else 's'}"
    so = {
        SloVerdict.LATE: more if slo.more_count else f"target {least} each",
        SloVerdict.SETTLING: f"waits for {more}" if slo.more_count else f"target {least} each is being tried",
        SloVerdict.BOUNDED: "max-scale allows no more pods",
        SloVerdict.HOPELESS: "pods with hardly a request each were late too, so that the revision's own target counts",
    }
    return f"{name} {_MS * slo.quantile_s:.0f} ms over {limit}: {so[slo.verdict]}"


# The adaptive policy.


def _advice_text(outcome: ScalerOutcome) -> str:
    advice = outcome.inputs.advice
    if advice.failure is not None:
        return f"Knative's policy decides: {advice.failure}"
    keep = advice.keep
    if keep is None:
        return "" if advice.regret is None else _regret(advice.regret)
    what = "no request is expected" if keep.until_s is None else "kept for a request"
    if keep.is_ahead:
        what = "started ahead of a request"
    gaps_lasted = round(keep.gaps_lasted)
    why = (
        f"as {keep.gaps_ended:.0f} of the last {gaps_lasted} gaps did"
        if gaps_lasted
        else "though no gap lasted as long"
    )
    return f"{what}: one comes within the next {_duration(keep.ahead_s)} with {keep.probability:.0%}, {why}"


def _regret(regret: RegretReason) -> str:
    return (
        "kept as by Knative, for what it learnt would have cost "
        f"{regret.pod_seconds:+.0f} pod-seconds and {regret.cold_requests:+.1f} cold requests over the last gaps"
    )


def _duration(span_s: float) -> str:
    """A duration in seconds, or in minutes from two minutes on."""
    return f"{span_s / 60:.0f} minutes" if span_s >= _MINUTES_FROM_S else f"{span_s:.0f} s"


# The other deciders, and the bounds.


def _others(outcome: ScalerOutcome) -> tuple[str, ...]:
    merged = outcome.merged
    if isinstance(merged, NoData):
        return ()
    return (*_decided_by(outcome, merged), _memory(outcome), _bound(merged.bounds, outcome.inputs.allowance))


def _decided_by(outcome: ScalerOutcome, merged: MergeDecision) -> tuple[str, ...]:
    algorithm = outcome.decided.proposal.decider
    proposals = [
        proposal
        for proposal in merged.proposals
        if proposal.decider not in {algorithm, ACTIVATOR_DECIDER, KEEP_ALIVE, PRE_WARMING}
    ]
    silent = [
        f"{proposal.decider} has no data ({proposal.desired.missing})"
        for proposal in proposals
        if isinstance(proposal.desired, NoData)
    ]
    if merged.decided_by is None:
        return (f"{merged.present_scale} kept because {' and '.join(merged.silent)} cannot be heard", *silent)
    if merged.decided_by == ACTIVATOR_DECIDER and merged.decided_by != algorithm:
        return ("woken by the activator",)
    deciding = [
        f"{proposal.decider} wants {proposal.desired} ({proposal.reason})"
        for proposal in proposals
        if proposal.decider == merged.decided_by
        or (proposal.desired == merged.present_scale and not proposal.is_content)
    ]
    return (*deciding, *silent)


def _memory(outcome: ScalerOutcome) -> str:
    """Why a dormant pod is removed for memory, even if the revision wants no pods."""
    allowance = outcome.inputs.allowance
    if allowance is None or allowance.reason is not AllowanceReason.MEMORY:
        return ""
    return _BOUNDS[ScaleBound.MEMORY].format(one=allowance)


def _bound(bounds: Bounded, allowance: Allowance | None) -> str:
    if bounds.limited_by in (None, ScaleBound.MEMORY):
        return ""
    text = _BOUNDS[bounds.limited_by].format(bounds=bounds, one=allowance)
    return text if allowance is None else f"{text}: {allowance_reason(allowance)}"


# The gate to zero, step by step.


def _gate(outcome: ScalerOutcome) -> tuple[str, ...]:
    spec = gated(outcome.inputs.spec, outcome.inputs.allowance or UNLIMITED)
    rest_s = outcome.gate.recheck_in_s or 0.0
    reason = _GATE[outcome.gate.reason].format(spec=spec, rest_s=rest_s)
    return (reason, "into reserve first") if outcome.to_reserve else (reason,)


def _pods(count: int) -> str:
    return f"{count} ready pod{'' if count == 1 else 's'}"


def _amount(value: float) -> str:
    return f"{value:.1f}"
