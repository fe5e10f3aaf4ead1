"""The autoscaler of one revision, without i/o: stats and facts in, a decision and what follows from it out.

It wires the decisions that stand in modules of their own: windows (or the classic points), the algorithm, the merger with
its bounds, and the gate to zero. Whoever runs it records stats when they come, calls ``decide`` every two seconds and when
``record`` says that it is urgent, and carries out the ``Outcome``. It reads no clock and writes nothing.
"""

import msgspec

from serving.autoscaler.classic import ClassicDecision, ClassicScaler
from serving.autoscaler.collection import Collection
from serving.autoscaler.decide import ScaleDecision, decide, is_poke, starting_state
from serving.autoscaler.merge import MergeDecision, Proposal, merge
from serving.autoscaler.resolve import classic_target
from serving.autoscaler.spec import ScalerSpec
from serving.autoscaler.zero import Action, GateDecision, GateFacts, GateState, InactiveReason, Phase, step
from serving.model.nodata import NoData
from serving.model.stat import Stat
from serving.settings.autoscaler import AutoscalerSettings

__all__ = ["Facts", "Outcome", "Scaler"]

_KPA, _CLASSIC = "kpa", "classic"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a revision's pods: how many its scale asks for, how many are ready.

    ``proved_at_s`` is when the service last answered as the activator, None if it never did.
    """

    present_scale: int
    ready_count: int
    proxy_since_s: float | None
    proved_at_s: float | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What to do: set the scale to ``apply`` unless that is None, prove the hand-off if ``probe``; and why."""

    at_s: float
    apply: int | None
    probe: bool
    recheck_in_s: float | None
    facts: Facts
    decision: ScaleDecision | ClassicDecision | NoData
    merged: MergeDecision | NoData
    gate: GateDecision


class Scaler:
    """Windows, panic and gate of one revision, from the moment at which it is first seen."""

    def __init__(
        self,
        *,
        spec: ScalerSpec,
        settings: AutoscalerSettings,
        is_classic: bool,
        container_concurrency: int,
        facts: Facts,
        now_s: float,
    ) -> None:
        self._settings = settings
        self._spec = spec
        self._target = classic_target(settings, container_concurrency=container_concurrency)
        self._classic = ClassicScaler(started_s=now_s) if is_classic else None
        self._collection = self._empty_collection()
        self._state = starting_state(
            ready_count=facts.ready_count,
            present_scale=facts.present_scale,
            spec=spec,
            now_s=now_s,
            quirks=settings.quirks,
        )
        self._gate = _starting_gate(facts, now_s)
        self._present_scale = facts.present_scale
        self._ready_count = facts.ready_count
        self._latest: ScaleDecision | None = None

    def __repr__(self) -> str:
        kind = _CLASSIC if self._classic else _KPA
        return f"Scaler({kind}, scale {self._present_scale}, {self._gate.phase})"

    @property
    def gate(self) -> GateState:
        """Where the revision is between its first pod and none."""
        return self._gate

    def record(self, stat: Stat, now_s: float, *, is_of_pod: bool) -> bool:
        """Take a stat that is received at ``now_s``; whether it asks for a decision at once.

        ``is_of_pod`` says that a pod sent it, not an activator. The classic algorithm counts pods by their points, so it
        hears of an activator only while there is no pod to speak for the requests that wait.
        Load for a revision at zero does. Its windows then begin anew: what was before the last pod went says nothing
        about how many are needed now, and the first decision is for as many as wait.
        """
        is_urgent = stat.concurrency > 0 and (
            self._present_scale == 0 or self._gate.is_inactive or is_poke(stat, self._latest)
        )
        if is_urgent and self._latest is not None and self._latest.desired_count == 0:
            self._collection = self._empty_collection()
            self._latest = None
        if self._classic and (is_of_pod or not self._ready_count):
            self._classic.record(msgspec.structs.replace(stat, at_s=now_s))
        self._collection.record(stat, now_s)
        return is_urgent

    def decide(self, facts: Facts, now_s: float) -> Outcome:
        """One decision on what was recorded, and what follows from it."""
        self._present_scale = facts.present_scale
        self._ready_count = facts.ready_count
        decision, proposal = self._propose(facts, now_s)
        merged = merge(
            [proposal],
            present_scale=facts.present_scale,
            spec=self._spec,
            is_initialized=self._gate.is_initialized,
        )
        gate_facts = GateFacts(
            desired=merged if isinstance(merged, NoData) else merged.desired_count,
            present_scale=facts.present_scale,
            ready_count=facts.ready_count,
            proxy_since_s=facts.proxy_since_s,
            proved_at_s=facts.proved_at_s,
        )
        self._gate, gate = step(self._gate, gate_facts, spec=self._spec, now_s=now_s, quirks=self._settings.quirks)
        applies = gate.action is Action.APPLY and isinstance(gate.wanted, int)
        if applies:
            assert isinstance(gate.wanted, int)
            self._present_scale = gate.wanted
        return Outcome(
            at_s=now_s,
            apply=self._present_scale if applies else None,
            probe=gate.action is Action.PROBE,
            recheck_in_s=gate.recheck_in_s,
            facts=facts,
            decision=decision,
            merged=merged,
            gate=gate,
        )

    def _propose(self, facts: Facts, now_s: float) -> tuple[ScaleDecision | ClassicDecision | NoData, Proposal]:
        if self._classic:
            classic = self._classic.decide(self._settings.classic, target_concurrency=self._target, now_s=now_s)
            if isinstance(classic, NoData):
                return classic, Proposal(decider=_CLASSIC, desired=classic, reason=classic.missing)
            reason = classic.limited_by or classic.mode
            return classic, Proposal(decider=_CLASSIC, desired=classic.desired_count, reason=reason)
        self._state, decision = decide(
            self._state,
            observed=self._collection.query(now_s, self._spec.metric),
            ready_count=facts.ready_count,
            spec=self._spec,
            now_s=now_s,
            quirks=self._settings.quirks,
        )
        if isinstance(decision, NoData):
            return decision, Proposal(decider=_KPA, desired=decision, reason=decision.missing)
        self._latest = decision
        return decision, Proposal(
            decider=_KPA, desired=decision.desired_count, reason=decision.limited_by or decision.mode
        )

    def _empty_collection(self) -> Collection:
        return Collection(
            stable_window_s=self._spec.stable_window_s,
            panic_window_s=self._spec.panic_window_s,
            kind=self._spec.window_kind,
            quirks=self._settings.quirks,
        )


def _starting_gate(facts: Facts, now_s: float) -> GateState:
    """The gate as the pods tell it after a start: at zero it is inactive, with ready pods active."""
    if facts.present_scale == 0:
        return GateState(since_s=now_s, phase=Phase.INACTIVE, reason=InactiveReason.NO_TRAFFIC, is_initialized=True)
    if facts.ready_count:
        return GateState(since_s=now_s, phase=Phase.ACTIVE, reason=None, is_initialized=True)
    return GateState(since_s=now_s)
