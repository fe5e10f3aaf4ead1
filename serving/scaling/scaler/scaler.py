"""Scales one revision: stats and cluster state in, a scale decision out.

Input: stats, the time each was received, and the cluster's state (scale, ready pods, serving state). Output: a ``ScalerOutcome``
with what to do, when to decide again, and every intermediate value. ``record`` returns whether a stat needs a decision at once.

Combines the decisions beside it: sources, algorithm, triggers, merge with bounds, gate to zero. A revision that is Active at
scale 0 was woken by an activator: it gets at least one pod, and as many as its queue needs. It uses no clock and no cluster.
"""

import enum
from collections.abc import Sequence

import msgspec

from serving.model.knative import ServingState, TrafficPath
from serving.model.loadmetric import load_metric
from serving.model.nodata import NoData
from serving.model.stat import Stat
from serving.scaling.adaptive.advice import NEUTRAL, Advice
from serving.scaling.adaptive.policy import RevisionPolicy
from serving.scaling.budget import UNLIMITED, Allowance
from serving.scaling.kpa.decide import KpaState
from serving.scaling.kpa.merge import MergeDecision, Proposal, conclusion, merge, most
from serving.scaling.kpa.window import WindowContents
from serving.scaling.kpa.zero import GateAction, GateDecision, GateInputs, GatePhase, GateState, step
from serving.scaling.learnt.learner import RevisionTarget
from serving.scaling.learnt.target import LearntTarget
from serving.scaling.revision import ScaledRevision
from serving.scaling.scaler.budgeted import Limit, demand_of, gated, within
from serving.scaling.scaler.deciders import ClassicDecider, Decided, Inside, decider_of, starting_gate
from serving.scaling.scaler.further import FurtherDeciders, kept_while_loading
from serving.scaling.scaler.path import wanted_path
from serving.scaling.scaler.shadow import PolicyShadow
from serving.scaling.scaler.view import ScalerView
from serving.scaling.slo import RevisionSlo, SloOutcome
from serving.scaling.sources import Sources
from serving.scaling.spec import ScalingSpec
from serving.settings.autoscaler import AutoscalerSettings, KpaQuirks

_WOKEN = Proposal(decider="activator", desired=1, reason="active at scale 0")
# An app may report 0 while it works on its last request; the pod stays for it.
_BUSY = Proposal(decider="requests", desired=1, reason="requests in flight")


class StatSource(enum.StrEnum):
    """The sender of a stat: a pod reports its state, an activator its changes."""

    POD = "pod"
    ACTIVATOR = "activator"


class DecisionCause(enum.StrEnum):
    """The cause of a decision."""

    PERIOD = "period"
    LOAD = "load"
    CHANGE = "change"
    PROOF = "proof"


class DecisionInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of a decision, except the windows, which are read only for a record."""

    at_s: float
    cause: DecisionCause
    facts: ScalerView
    inside: Inside
    beside: tuple[Proposal, ...]
    """Proposals of deciders beside the algorithm."""

    spec: ScalingSpec
    quirks: KpaQuirks
    kpa: KpaState | None
    """The state after the previous decision; None for the classic algorithm, whose state is its points."""
    gate: GateState
    advice: Advice = NEUTRAL
    """Advice of the revision's policy; none under ``policy: knative``."""
    learnt: LearntTarget | None = None
    """The learnt target; when in force, ``spec`` contains it too. None without data."""
    slo: SloOutcome | None = None
    """The state of the goal for latency; ``spec`` contains its target. None without a goal."""
    allowance: Allowance | None = None
    """The pods that a budget over several revisions allows; None without one, or if it allows all."""


class ScalerOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One decision: its inputs, its result, and the steps between."""

    inputs: DecisionInputs

    apply_count: int | None
    """Scale to set; None to leave it."""

    to_reserve: bool
    """Whether to reserve the revision before its scale becomes 0."""

    to_prove: bool
    """Whether to prove that the activator is in the path, and to decide again."""

    path: TrafficPath
    """The path for requests; without a public Service, the path written last."""

    recheck_in_s: float | None
    """When the clock alone may change the result; None: not before the next period."""

    decided: Decided
    merged: MergeDecision | NoData
    gate: GateDecision
    phase: GatePhase

    @property
    def at_s(self) -> float:
        """The time of the decision."""
        return self.inputs.at_s

    @property
    def facts(self) -> ScalerView:
        """The cluster's state."""
        return self.inputs.facts

    @property
    def present(self) -> Stat:
        """The load in flight."""
        return self.inputs.inside.present

    def is_like(self, other: "ScalerOutcome") -> bool:
        """Whether another decision is equal but for a countdown, so that only one needs to be stored."""
        return (
            self.gate.is_like(other.gate)
            and self.phase is other.phase
            and self.facts.present_scale == other.facts.present_scale
            and self.facts.ready_count == other.facts.ready_count
            and conclusion(self.merged) == conclusion(other.merged)
        )


class Scaler:
    """Scales one revision. Times are those of one monotonic clock."""

    def __init__(
        self,
        revision: ScaledRevision,
        facts: ScalerView,
        settings: AutoscalerSettings,
        *,
        is_restart: bool,
        now_s: float,
        policy: RevisionPolicy | None = None,
    ) -> None:
        """``is_restart``: the revision existed before this process, so its scale is held until a window has data.

        ``policy`` is the adaptive one; None: Knative's. A ``shadow`` beside it decides by the other policy.
        """
        self.policy = policy
        self.shadow: PolicyShadow | None = None
        self.limit: Limit | None = None
        self.target = RevisionTarget(revision, settings.adaptive)
        self._slo = RevisionSlo(now_s)
        self._settings = settings
        self._spec = revision.spec
        self._sources = Sources()
        self._decider = decider_of(
            revision,
            settings,
            present_scale=facts.present_scale if is_restart else 0,
            ready_count=facts.ready_count if is_restart else 0,
            now_s=now_s,
        )
        self._further = FurtherDeciders(revision.spec, quirks=settings.quirks, now_s=now_s)
        self._gate = starting_gate(revision, ready_count=facts.ready_count, now_s=now_s)
        self._latest_count: int | None = None
        self._facts = facts

    def __repr__(self) -> str:
        return f"Scaler({self._gate.phase}, {self._latest_count} wanted)"

    @property
    def _counts_waiting(self) -> bool:
        """Whether requests waiting for the first pod count at once. Knative uses only its windows, each period."""
        is_counted = self.policy is not None and self.policy.counts_waiting
        return is_counted or isinstance(self._decider, ClassicDecider)

    @property
    def learner(self) -> RevisionPolicy | None:
        """The adaptive policy, in force or in shadow; None for classes without a policy."""
        return self.policy if self.policy is not None or self.shadow is None else self.shadow.policy

    @property
    def pods(self) -> dict[str, Stat]:
        """The latest valid report of each pod."""
        return self._sources.pods

    @property
    def is_silent(self) -> bool:
        """Whether no report counts any more."""
        return self._sources.is_silent

    def follow(self, revision: ScaledRevision, now_s: float) -> None:
        """Apply changed numbers of the revision."""
        is_new = self.target.follow(revision)
        self._adopt(now_s)
        if is_new and self.shadow is not None:
            self.shadow.follow(revision.spec, now_s)

    def record(self, stat: Stat, source: StatSource) -> bool:
        """Add a stat with the time of its receipt; return whether it needs a decision at once.

        A decision is urgent for load at a scale of 0, and for more requests in an activator than the wanted pods have room
        for: 71 requests, with 1 pod wanted for 70.
        """
        self._advance(stat.at_s)
        if self.shadow is not None:
            self.shadow.arrive(stat.request_count - stat.proxied_request_count, stat.at_s)
        if source is StatSource.POD:
            self._sources.record_pod(stat)
            self.target.take(stat)
            self._slo.take(stat.latency_bins, stat.at_s)
            return stat.concurrency > stat.proxied_concurrency and not self._latest_count
        self._sources.record_activator(stat)
        if not stat.concurrency and not stat.request_count:
            return False
        # Requests wake a revision whatever its metric is.
        if stat.concurrency and not self._latest_count:
            return True
        if not self._counts_waiting:
            return False
        inside, count, spec = self._inside(stat.at_s), self._latest_count or 0, self._spec
        return inside.amount(spec.load_metric) > count * self._target() or any(
            inside.amount(load_metric(one.metric)) > count * one.target_value for one in spec.further_metrics
        )

    def started(self, took_s: float, now_s: float) -> None:
        """Record the seconds from a pod's creation to its readiness."""
        if self.learner is not None:
            # The policy's learning from a second depends on the starts before it.
            self._advance(now_s)
            self.learner.started(took_s)

    def forget_pod(self, name: str, now_s: float) -> None:
        """Drop a deleted pod: its last report does not cover the time after."""
        self._advance(now_s)
        self._sources.forget_pod(name)

    def tick(
        self, facts: ScalerView, cause: DecisionCause, now_s: float, *, proposals: Sequence[Proposal] = ()
    ) -> ScalerOutcome:
        """Decide. ``proposals`` come from deciders beside the algorithm."""
        self._advance(now_s)
        self._facts = facts
        self._adopt(now_s)
        inside = self._inside(now_s)
        further = self._further.decide(self._spec, inside, ready_count=facts.ready_count, now_s=now_s)
        inputs = DecisionInputs(
            at_s=now_s,
            cause=cause,
            facts=facts,
            inside=inside,
            beside=(*proposals, *further, *kept_while_loading(self.pods.values(), facts)),
            spec=self._spec,
            quirks=self._settings.quirks,
            kpa=self._decider.state,
            gate=self._gate,
            learnt=self.target.learnt,
            slo=self._slo.outcome,
        )
        decided = self._decider.decide(self._spec, inputs.inside, ready_count=facts.ready_count, now_s=now_s)
        self._latest_count = decided.desired_count
        if further:
            self._latest_count = most((decided.proposal, *further))
        if self.policy is not None:
            advice = self.policy.next_advice(
                decided.proposal,
                in_flight=self._in_flight(inputs),
                present_scale=facts.present_scale,
                ready_count=facts.ready_count,
                now_s=now_s,
            )
            inputs = msgspec.structs.replace(inputs, advice=advice)
            if advice.proposals is not None:
                self._latest_count = most((*advice.proposals, *further))
        if self.shadow is not None and self.learner is not None:
            self.shadow.follow_decision(
                inputs.beside,
                inside=None if self._in_flight(inputs) is None else inputs.inside.present,
                present_scale=facts.present_scale,
                ready_count=facts.ready_count,
                start_s=self.learner.start_s,
                now_s=now_s,
            )
        self._gate, outcome = conclude(inputs, decided, self.limit)
        if outcome.apply_count and not facts.present_scale and self._counts_waiting:
            self._decider.reset_windows(self._spec)
            self._further.reset_windows(self._spec)
        return outcome

    def windows(self) -> WindowContents | None:
        """Window contents of the latest decision, in the same turn of the loop; None for the classic algorithm."""
        return self._decider.windows(self._spec)

    def _adopt(self, now_s: float) -> None:
        """Use these numbers for all further decisions."""
        self.target.update(now_s)
        ready_count, present_scale = self._facts.ready_count, self._facts.present_scale
        spec = self._slo.update(self.target.spec, ready_count=ready_count, present_scale=present_scale, now_s=now_s)
        if spec is self._spec or spec == self._spec:
            return
        self._advance(now_s)
        self._spec = spec
        self._decider.resize(spec, now_s)
        self._further.resize(spec, now_s)
        if self.policy is not None:
            self.policy.follow(spec)

    def _advance(self, now_s: float) -> None:
        for second in self._sources.complete(now_s):
            self._decider.take(second)
            self._further.take(second)
            self._slo.take_load(self._spec.load_metric.amount(second.load), second.number + 1.0)
            if self.policy is not None:
                self.policy.take(second.number, second.load.concurrency, second.load.request_count)
            if self.shadow is not None:
                self.shadow.take(second.number, second.load)

    def _inside(self, now_s: float) -> Inside:
        """The load in flight now. ``is_waiting`` is set while no pod is ready, or none was wanted on arrival."""
        present = self._sources.present(now_s)
        is_load = present.concurrency > 0 or self._spec.load_metric.amount(present) > 0
        is_unserved = self._facts.ready_count == 0 or self._latest_count == 0
        return Inside(present=present, is_waiting=is_load and is_unserved and self._counts_waiting)

    def _in_flight(self, inputs: DecisionInputs) -> float | None:
        """Requests in flight now; None while no ready pod reports, because silence is not idleness."""
        if inputs.facts.ready_count and not self._sources.pods:
            return None
        return inputs.inside.present.concurrency

    def _target(self) -> float:
        target = self._decider.target(self._spec)
        return target if self.policy is None else max(target, self.policy.pod_capacity)


def conclude(inputs: DecisionInputs, decided: Decided, limit: Limit | None = None) -> tuple[GateState, ScalerOutcome]:
    """Turn the algorithm's proposal into a decision: other proposals, bounds, budget and gate, and the next gate."""
    facts, spec, now_s = inputs.facts, inputs.spec, inputs.at_s
    # The load of a request that finds no pod is reported some milliseconds before its revision is seen Active.
    is_busy = inputs.inside.present.concurrency > 0
    woken = (_WOKEN,) if facts.is_starting or (facts.present_scale == 0 and is_busy) else ()
    busy = (_BUSY,) if spec.load_metric.gauge and is_busy else ()
    merged = merge(
        (*inputs.advice.proposed(decided.proposal), *inputs.beside, *woken, *busy),
        present_scale=facts.present_scale,
        spec=spec,
        is_initialized=inputs.gate.is_initialized,
    )
    if limit is not None:
        demand = demand_of(
            merged, decided, facts, inside=inputs.inside, spec=spec, is_initialized=inputs.gate.is_initialized
        )
        inputs = msgspec.structs.replace(inputs, allowance=limit(demand))
    allowance = inputs.allowance or UNLIMITED
    merged, spec = within(merged, allowance), gated(spec, allowance)
    # Without a public Service they have always been in the path for the grace period.
    proxy_since_s = facts.proxy_since_s if facts.has_public else now_s - spec.scale_to_zero_grace_s
    gate_facts = GateInputs(
        desired=merged if isinstance(merged, NoData) else merged.desired_count,
        present_scale=facts.present_scale,
        ready_count=facts.ready_count,
        is_recorded=facts.is_recorded,
        proxy_since_s=proxy_since_s,
        proved_at_s=facts.proof_s,
        active_min_s=inputs.advice.active_min_s if allowance.count else 0.0,
    )
    state, gate = step(inputs.gate, gate_facts, spec=spec, now_s=now_s, quirks=inputs.quirks)
    # Requests that wait for a turn under a budget keep their revision awake.
    may_rest = facts.serving_state is ServingState.ACTIVE and not (inputs.allowance and is_busy)
    apply_count = gate.wanted if gate.action is GateAction.APPLY and isinstance(gate.wanted, int) else None
    if apply_count is not None and apply_count > max(allowance.count, facts.present_scale):
        apply_count = None
    path = wanted_path(
        decided,
        present=facts.path,
        wanted_count=gate.wanted,
        is_inactive=state.is_inactive,
        ready_count=facts.ready_count,
    )
    waits_s = (gate.recheck_in_s, inputs.advice.recheck_in_s, allowance.recheck_in_s)
    outcome = ScalerOutcome(
        # The gate's story is for its own errors, and longer than all the rest.
        inputs=msgspec.structs.replace(inputs, gate=msgspec.structs.replace(inputs.gate, story=())),
        apply_count=apply_count,
        to_reserve=apply_count == 0 and may_rest,
        to_prove=gate.action is GateAction.PROBE and proxy_since_s is not None,
        path=path if facts.has_public else facts.path,
        recheck_in_s=min((one for one in waits_s if one is not None), default=None),
        decided=decided,
        merged=merged,
        gate=gate,
        phase=state.phase,
    )
    return state, outcome
