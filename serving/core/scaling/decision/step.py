"""One scaling decision of a revision, from updated windows to the outcome.

Only ``step`` combines the parts of a decision, in this order: the algorithm and each further metric, the policy's
advice, the proposals of triggers and of loading pods, bounds, the budget, the gate to zero, and the path. The
autoscaler, the simulator, the shadow and ``serving replay`` call it without additions. It reads no clock, and returns
the next state.
"""

import msgspec

from serving.core.model.knative import ServingState
from serving.core.model.nodata import NoData
from serving.core.scaling.budget import UNLIMITED
from serving.core.scaling.decision.budgeted import Limit, demand_of, gated, within
from serving.core.scaling.decision.path import wanted_path
from serving.core.scaling.decision.policy import PolicyView, RevisionPolicy
from serving.core.scaling.decision.records import Decided, DecisionCause, DecisionInputs, InFlight, ScalerOutcome
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.decide import KpaState, ScaleDecision, ScalerMode, decide, with_initial_scale
from serving.core.scaling.kpa.merge import ACTIVATOR_DECIDER, Proposal, merge, most
from serving.core.scaling.kpa.window import Observation
from serving.core.scaling.kpa.zero import GateAction, GateInputs, GateState
from serving.core.scaling.kpa.zero import step as gate_step
from serving.core.scaling.learnt.target import LearntTarget
from serving.core.scaling.slo import SloOutcome
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import KpaQuirks

_WOKEN = Proposal(decider=ACTIVATOR_DECIDER, desired=1, reason="active at scale 0")
# An app may report 0 while processing its last request, for which the pod stays.
_BUSY = Proposal(decider="requests", desired=1, reason="requests in flight")


class RevisionState(msgspec.Struct, frozen=True, kw_only=True):
    """A revision's state between two decisions: of the algorithm, of the gate to zero, and of each further metric.

    ``kpa`` is None for the classic algorithm, whose state is its points. ``further`` is in the order of
    ``ScalingSpec.further_metrics``. ``latest_count`` is the last count wanted by the algorithm, the policy and the
    further metrics; None without data. ``resets_windows``: the decision woke the revision under a policy that counts
    waiting requests. The windows do not contain the load that woke it, so they are emptied before the next decision.
    """

    kpa: KpaState | None
    gate: GateState
    further: tuple[KpaState, ...] = ()
    latest_count: int | None = None
    resets_windows: bool = False


class StepInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of one decision; the windows are already updated.

    ``wall_s`` is the time in seconds since the epoch, for scheduled policies. ``observed`` is the load in the windows
    of the first metric, ``further`` that of each further metric (``ScalingSpec.further_metrics``). ``classic`` is the
    classic algorithm's proposal, which then replaces ``observed``; None for Knative's current algorithm. ``proposals``
    come from triggers. ``loading_count`` pods report that their app is loading. ``knows_in_flight`` is False while no
    ready pod reports, so that ``in_flight`` is unknown.
    """

    at_s: float
    wall_s: float = 0.0
    cause: DecisionCause
    view: ScalerView
    in_flight: InFlight
    observed: Observation | NoData = NoData(missing="no observation")
    classic: Decided | None = None
    further: tuple[Observation | NoData, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    loading_count: int = 0
    knows_in_flight: bool = True
    spec: ScalingSpec
    quirks: KpaQuirks
    learnt: LearntTarget | None = None
    slo: SloOutcome | None = None


def step(
    state: RevisionState, inputs: StepInputs, policy: RevisionPolicy, *, limit: Limit | None = None
) -> tuple[RevisionState, ScalerOutcome]:
    """Make one decision; return the next state and the outcome.

    ``limit`` applies budgets over several revisions; None applies none.
    """
    view, in_flight, now_s = inputs.view, inputs.in_flight, inputs.at_s
    kpa, decided = (state.kpa, inputs.classic) if inputs.classic is not None else _decided(state, inputs)
    further_states, further = _further(state, inputs) if inputs.further else ((), ())
    advice = policy.propose(
        PolicyView(
            now_s=now_s,
            wall_s=inputs.wall_s,
            algorithm=decided.proposal,
            in_flight=in_flight.present.concurrency if inputs.knows_in_flight else None,
            present_scale=view.present_scale,
            ready_count=view.ready_count,
            spec=inputs.spec,
        )
    )
    latest_count = decided.desired_count
    if further or advice.proposals is not None:
        latest_count = most((*advice.proposed(decided.proposal), *further))
    record = DecisionInputs(
        at_s=now_s,
        cause=inputs.cause,
        view=view,
        in_flight=in_flight,
        proposals=(*inputs.proposals, *further, *_loading(inputs.loading_count, view)),
        spec=inputs.spec,
        quirks=inputs.quirks,
        kpa=state.kpa,
        gate=state.gate,
        advice=advice,
        learnt=inputs.learnt,
        slo=inputs.slo,
    )
    gate, outcome = conclude(record, decided, limit)
    if kpa is not None and not state.gate.is_initialized:
        kpa = with_initial_scale(kpa, spec=inputs.spec, now_s=now_s, quirks=inputs.quirks)
    state = RevisionState(
        kpa=kpa,
        gate=gate,
        further=further_states,
        latest_count=latest_count,
        resets_windows=policy.counts_waiting and bool(outcome.apply_count) and not view.present_scale,
    )
    return state, outcome


def spec_of_metric(spec: ScalingSpec, index: int) -> ScalingSpec:
    """The scaling numbers for one of the revision's further metrics."""
    metric = spec.further_metrics[index]
    return msgspec.structs.replace(
        spec,
        metric=metric.metric,
        target_value=metric.target_value,
        total_value=metric.total_value,
        further_metrics=(),
    )


def _decided(state: RevisionState, inputs: StepInputs) -> tuple[KpaState, Decided]:
    """The next state and the proposal of Knative's current algorithm."""
    assert state.kpa is not None
    kpa, detail = _decide(state.kpa, inputs.observed, spec=inputs.spec, inputs=inputs)
    if isinstance(detail, NoData):
        return kpa, Decided(proposal=Proposal(decider="kpa", desired=detail, reason=detail.missing), detail=detail)
    reason = detail.limited_by or detail.mode
    return kpa, Decided(proposal=Proposal(decider="kpa", desired=detail.desired_count, reason=reason), detail=detail)


def _decide(
    state: KpaState, observed: Observation | NoData, *, spec: ScalingSpec, inputs: StepInputs
) -> tuple[KpaState, ScaleDecision | NoData]:
    """Decide by one metric; return its next state and the decision.

    The averages are raised to the current load while requests wait for the first pod, because the queue only grows, and
    before the first second is complete.
    """
    if inputs.in_flight.is_waiting or isinstance(observed, NoData):
        observed = _at_least(observed, inputs.in_flight.load(spec.load_metric))
    return decide(
        state,
        observed=observed,
        ready_count=inputs.view.ready_count,
        spec=spec,
        now_s=inputs.at_s,
        quirks=inputs.quirks,
    )


def _at_least(observed: Observation | NoData, load: float) -> Observation | NoData:
    """The averages, raised to the current load."""
    if isinstance(observed, NoData):
        return Observation(stable=load, panic=load) if load else observed
    return Observation(stable=max(observed.stable, load), panic=max(observed.panic, load))


def _further(state: RevisionState, inputs: StepInputs) -> tuple[tuple[KpaState, ...], tuple[Proposal, ...]]:
    """The next state and the proposal of each further metric."""
    states, proposals = [], []
    for index, (kpa, observed) in enumerate(zip(state.further, inputs.further, strict=True)):
        spec = spec_of_metric(inputs.spec, index)
        kpa_next, detail = _decide(kpa, observed, spec=spec, inputs=inputs)
        states.append(kpa_next)
        proposals.append(_proposal_of_metric(spec, detail))
    return tuple(states), tuple(proposals)


def _proposal_of_metric(spec: ScalingSpec, detail: ScaleDecision | NoData) -> Proposal:
    if isinstance(detail, NoData):
        return Proposal(decider=spec.metric, desired=detail, reason=detail.missing)
    load = detail.observed_stable
    if detail.mode is ScalerMode.PANIC:
        load = max(load, detail.observed_panic)
    reason = f"{load:.4g} in all, target {spec.target_value:g} each"
    return Proposal(decider=spec.metric, desired=detail.desired_count, reason=reason, is_content=True)


def _loading(count: int, view: ScalerView) -> tuple[Proposal, ...]:
    """The proposal to keep loading pods: when the scale is lowered, Kubernetes removes unready pods first."""
    if not count or not view.present_scale:
        return ()
    desired = min(view.present_scale, view.ready_count + count)
    reason = f"{count} pod{' loads' if count == 1 else 's load'}"
    return (Proposal(decider="loading", desired=desired, reason=reason, is_content=True),)


def conclude(inputs: DecisionInputs, decided: Decided, limit: Limit | None = None) -> tuple[GateState, ScalerOutcome]:
    """Merge and limit all proposals, and apply the gate to zero; return the gate's next state and the outcome."""
    view, spec, now_s = inputs.view, inputs.spec, inputs.at_s
    # A request without a pod is reported some milliseconds before its revision becomes Active.
    is_busy = inputs.in_flight.present.concurrency > 0
    woken = (_WOKEN,) if view.is_starting or (view.present_scale == 0 and is_busy) else ()
    busy = (_BUSY,) if spec.load_metric.gauge and is_busy else ()
    merged = merge(
        (*inputs.advice.proposed(decided.proposal), *inputs.proposals, *woken, *busy),
        present_scale=view.present_scale,
        spec=spec,
        is_initialized=inputs.gate.is_initialized,
    )
    if limit is not None:
        demand = demand_of(
            merged, decided, view, in_flight=inputs.in_flight, spec=spec, is_initialized=inputs.gate.is_initialized
        )
        inputs = msgspec.structs.replace(inputs, allowance=limit(demand))
    allowance = inputs.allowance or UNLIMITED
    merged, spec = within(merged, allowance), gated(spec, allowance)
    # Without a public Service the activators have always been in the path, so the grace period has passed.
    proxy_since_s = view.proxy_since_s if view.has_public else now_s - spec.scale_to_zero_grace_s
    gate_inputs = GateInputs(
        desired=merged if isinstance(merged, NoData) else merged.desired_count,
        present_scale=view.present_scale,
        ready_count=view.ready_count,
        is_recorded=view.is_recorded,
        is_failed=view.is_failed,
        proxy_since_s=proxy_since_s,
        proved_at_s=view.proof_s,
        active_min_s=inputs.advice.active_min_s if allowance.count else 0.0,
    )
    state, gate = gate_step(inputs.gate, gate_inputs, spec=spec, now_s=now_s, quirks=inputs.quirks)
    # Requests that wait under a budget keep their revision awake.
    may_rest = view.serving_state is ServingState.ACTIVE and not (inputs.allowance and is_busy)
    apply_count = gate.wanted if gate.action is GateAction.APPLY and isinstance(gate.wanted, int) else None
    if apply_count is not None and apply_count > max(allowance.count, view.present_scale):
        apply_count = None
    path = wanted_path(
        decided,
        present=view.path,
        wanted_count=gate.wanted,
        is_inactive=state.is_inactive,
        ready_count=view.ready_count,
    )
    waits_s = (gate.recheck_in_s, inputs.advice.recheck_in_s, allowance.recheck_in_s)
    outcome = ScalerOutcome(
        # The gate's story only serves its error messages, and is longer than the rest of the record.
        inputs=msgspec.structs.replace(inputs, gate=msgspec.structs.replace(inputs.gate, story=())),
        apply_count=apply_count,
        to_reserve=apply_count == 0 and may_rest,
        to_prove=gate.action is GateAction.PROBE and proxy_since_s is not None,
        path=path if view.has_public else view.path,
        recheck_in_s=min((wait_s for wait_s in waits_s if wait_s is not None), default=None),
        decided=decided,
        merged=merged,
        gate=gate,
        phase=state.phase,
    )
    return state, outcome
