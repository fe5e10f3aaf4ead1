"""The records of one decision, stored in the decision log: its inputs, the algorithm's proposal, and the outcome."""

import enum

import msgspec

from serving.core.model.knative import TrafficPath
from serving.core.model.loadmetric import LoadMetric
from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.budget import Allowance
from serving.core.scaling.classic.classic import ClassicDecision
from serving.core.scaling.decision.policy import NEUTRAL, Advice
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.decide import KpaState, ScaleDecision
from serving.core.scaling.kpa.merge import MergeDecision, Proposal, conclusion
from serving.core.scaling.kpa.zero import GateDecision, GatePhase, GateState
from serving.core.scaling.learnt.target import LearntTarget
from serving.core.scaling.slo import SloOutcome
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import KpaQuirks


class DecisionCause(enum.StrEnum):
    """What triggered a decision: the decision period, an urgent load, a change of the cluster's state, or a probe."""

    PERIOD = "period"
    LOAD = "load"
    CHANGE = "change"
    PROOF = "proof"


class InFlight(msgspec.Struct, frozen=True, kw_only=True):
    """The requests in flight now, and whether all of them wait because no pod is ready or wanted."""

    present: Stat
    is_waiting: bool

    def load(self, metric: LoadMetric) -> float:
        """The load in the metric's unit."""
        return metric.amount(self.present)


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """The proposal of the scaling algorithm, and the detailed decision behind it."""

    proposal: Proposal
    detail: ScaleDecision | ClassicDecision | NoData

    @property
    def desired_count(self) -> int | None:
        """The algorithm's count; None without data."""
        return None if isinstance(self.proposal.desired, NoData) else self.proposal.desired


class DecisionInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of a decision except the windows, which only a stored record contains.

    ``view`` is the cluster's state. ``proposals`` are those of triggers, further metrics and loading pods. ``kpa`` is
    the state after the previous decision; None for the classic algorithm, whose state is its points. ``advice`` is that
    of the revision's policy, neutral under ``policy: knative``. If the target in ``learnt`` is in force, ``spec``
    contains it too; None without data. ``slo`` is the state of the latency goal, whose target ``spec`` contains.
    ``allowance`` is what a budget over several revisions allows; None means no limit. The names of the fields in JSON
    are those of the first version of the decision log.
    """

    at_s: float
    cause: DecisionCause
    view: ScalerView = msgspec.field(name="facts")
    in_flight: InFlight = msgspec.field(name="inside")
    proposals: tuple[Proposal, ...] = msgspec.field(name="beside")
    spec: ScalingSpec
    quirks: KpaQuirks
    kpa: KpaState | None
    gate: GateState
    advice: Advice = NEUTRAL
    learnt: LearntTarget | None = None
    slo: SloOutcome | None = None
    allowance: Allowance | None = None


class ScalerOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: its inputs, intermediate steps, and the actions that follow.

    ``apply_count`` is the scale to set; None leaves the scale. ``to_reserve``: move the revision to Reserve before its
    scale becomes 0. ``to_prove``: probe whether activators are in the path, and decide again. ``path`` is the traffic
    path; without a public Service, the path written last. After ``recheck_in_s`` seconds the clock alone may change the
    result; None: not before the next period. ``decided`` is the algorithm's count, ``merged`` that of all proposals,
    ``gate`` that after the gate to zero, and ``phase`` the gate's phase.
    """

    inputs: DecisionInputs

    apply_count: int | None
    to_reserve: bool
    to_prove: bool
    path: TrafficPath
    recheck_in_s: float | None
    decided: Decided
    merged: MergeDecision | NoData
    gate: GateDecision
    phase: GatePhase

    @property
    def at_s(self) -> float:
        """The time of the decision."""
        return self.inputs.at_s

    @property
    def view(self) -> ScalerView:
        """The cluster's state at the decision."""
        return self.inputs.view

    @property
    def present(self) -> Stat:
        """The load in flight."""
        return self.inputs.in_flight.present

    def is_like(self, other: "ScalerOutcome") -> bool:
        """Whether another decision differs only in a countdown, so that only one needs to be stored."""
        return (
            self.gate.is_like(other.gate)
            and self.phase is other.phase
            and self.view.present_scale == other.view.present_scale
            and self.view.ready_count == other.view.ready_count
            and conclusion(self.merged) == conclusion(other.merged)
        )
