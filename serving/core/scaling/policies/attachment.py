"""A ScalingPolicy attached to one revision: evaluated once a period; a proposal is valid until the next evaluation.

Input: the observed pods, the time, and whether the scale changed. Output: proposals for the merge, each with its reason
in words, and the state for the next evaluation, also in another process. A cooldown starts only when the scale has
changed. A proposal that lost the merge or was bounded starts none.
"""

import enum

import msgspec

from serving.core.model.nodata import NoData
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.policies.apply import PanicVerdict, panic
from serving.core.scaling.policies.evaluate import TriggerVerdict, VerdictKind
from serving.core.scaling.policies.scalingpolicy import ScalingPolicySpec
from serving.core.scaling.policies.tick import TickDecision, TriggerRule, TriggerState, changed, decide
from serving.core.scaling.policies.triggertypes import ObservedPods
from serving.core.settings.triggers import TriggerSettings

# Evaluations are due on a fixed grid; a late evaluation does not delay the following ones.
_PERIODS_MISSED_MAX = 1.0


class _HeldProposal(msgspec.Struct, frozen=True):
    """A decided change that has not been observed yet."""

    at_s: float
    observed_count: int
    delta: int


class LastDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The last evaluation of a revision, and its reason."""

    revision: str
    at_s: float
    decision: TickDecision
    reason: str


class Triggered:
    """The state of one revision under one policy. Times are on one monotonic clock."""

    __slots__ = (
        "_is_panic_due",
        "_name",
        "_occupied",
        "_panic_count",
        "_panic_until_s",
        "_settings",
        "_spec",
        "_wish",
        "due_s",
        "last",
        "state",
    )

    def __init__(
        self, name: str, spec: ScalingPolicySpec, settings: TriggerSettings, *, state: TriggerState, now_s: float
    ) -> None:
        """``name`` is the policy's; ``state`` comes from earlier evaluations."""
        self.state = state
        self.due_s = now_s
        self.last: LastDecision | None = None
        self._name = name
        self._spec = spec
        self._settings = settings
        self._wish: _HeldProposal | None = None
        self._occupied: set[str] = set()
        self._is_panic_due = False
        self._panic_until_s: float | None = None
        self._panic_count = 0

    def update(self, spec: ScalingPolicySpec, now_s: float) -> None:
        """Apply the changed policy; the next evaluation is due immediately."""
        if spec != self._spec:
            self._spec = spec
            self.due_s = now_s

    def process_report(self, pod: str, *, concurrency: float) -> bool:
        """Process a pod's report; return whether its first request triggers an immediate decision."""
        if not self._spec.panic_scale:
            return False
        if concurrency < self._settings.occupied_concurrency:
            self._occupied.discard(pod)
            return False
        is_new = pod not in self._occupied
        self._occupied.add(pod)
        self._is_panic_due = self._is_panic_due or is_new
        return is_new

    def forget_pod(self, pod: str) -> None:
        """Drop a deleted pod."""
        self._occupied.discard(pod)

    def is_due(self, now_s: float) -> bool:
        """Whether the next evaluation is due."""
        return now_s >= self.due_s

    def evaluate(self, revision: str, observed: ObservedPods, now_s: float) -> None:
        """Evaluate the policy once."""
        self.settle(observed.available_count)
        self.state, decision = decide(self.state, observed, self._spec, settings=self._settings, now_s=now_s)
        reason = reason_of(decision, spec=self._spec)
        self.last = LastDecision(revision=revision, at_s=now_s, decision=decision, reason=reason)
        delta = decision.change.delta
        self._wish = _HeldProposal(now_s, observed.available_count, delta) if delta else None
        period_s = self._settings.period_s
        is_far_behind = now_s - self.due_s > period_s * _PERIODS_MISSED_MAX
        self.due_s = (now_s if is_far_behind else self.due_s) + period_s

    def settle(self, present_scale: int) -> None:
        """Check whether the wanted change has happened; only then do cooldowns start."""
        wish = self._wish
        if wish is None or (present_scale - wish.observed_count) * wish.delta <= 0:
            return
        self.state = changed(self.state, at_s=wish.at_s)
        self._wish = None

    def panic(self, observed: ObservedPods, now_s: float) -> None:
        """Evaluate panic if pods received their first requests since the last call."""
        is_there = observed.available_count >= self._panic_count and not observed.creating_count
        if self._panic_until_s is not None and is_there:
            # Pods added by panic are ready for requests.
            self._panic_until_s = None
        if not self._is_panic_due:
            return
        self._is_panic_due = False
        outcome = panic(observed, self._spec, self._settings, locked_until_s=self._panic_until_s, now_s=now_s)
        if outcome.verdict is PanicVerdict.PANIC and outcome.change.delta > 0:
            self._panic_until_s = outcome.locked_until_s
            self._panic_count = observed.available_count + outcome.change.delta
            if outcome.starts_cooldown:
                self.state = changed(self.state, at_s=now_s)

    def proposals(self, now_s: float) -> tuple[Proposal, ...]:
        """The policy's proposals: the last one, and panic's pods until they exist."""
        proposals: list[Proposal] = []
        if self.last is not None:
            wanted = self.last.decision.desired_count
            is_content = self.last.decision.rule is TriggerRule.IN_SYNC and not _is_at_max(
                self.last.decision, self._spec
            )
            proposals.append(
                Proposal(decider=f"policy {self._name}", desired=wanted, reason=self.last.reason, is_content=is_content)
            )
        if self._panic_until_s is not None and now_s < self._panic_until_s:
            reason = f"{len(self._occupied)} pods are occupied, so {self._spec.up.delta} more at once"
            proposals.append(
                Proposal(decider=f"panic of policy {self._name}", desired=self._panic_count, reason=reason)
            )
        return tuple(proposals)


class _Compared(enum.StrEnum):
    """The text for what a usage ratio compares, such as "of the requested cpu"."""

    OCCUPANCY = "of the pods are occupied"
    CPU = "of the requested cpu"
    MEM = "of the requested memory"


_COMPARED = {
    "occupancy": _Compared.OCCUPANCY,
    "fixed-step": _Compared.OCCUPANCY,
    "cpu": _Compared.CPU,
    "mem": _Compared.MEM,
}


def reason_of(decision: TickDecision, *, spec: ScalingPolicySpec) -> str:
    """The reason as text: rule, trigger with its numbers, cooldown, and effective bounds.

    Example: "points: 92 % of the requested cpu, aims at 50 %, 8 of 8 points; +2 pods".
    """
    parts = [_rule(decision, spec)]
    change = decision.change
    if change.wanted_delta:
        parts.append(f"{change.wanted_delta:+d} pod{'' if abs(change.wanted_delta) == 1 else 's'}")
        parts += [f"{clamp.clamp} makes it {clamp.amount_after}" for clamp in change.clamps]
    return "; ".join(parts)


def _rule(decision: TickDecision, spec: ScalingPolicySpec) -> str:
    acting, rule = decision.acting, decision.rule
    if acting is not None:
        return f"{rule}: {_trigger(acting)}"
    if rule is TriggerRule.COOLDOWN:
        waiting = next(verdict for verdict in decision.verdicts if verdict.verdict is VerdictKind.COOLDOWN)
        return f"{rule}: {_trigger(waiting)}, {waiting.cooldown_left_s:.0f} s more"
    if rule is TriggerRule.BELOW_MIN:
        return f"{rule}: {decision.observed_count} of at least {spec.min_count}"
    if rule is TriggerRule.ABOVE_MAX:
        return f"{rule}: {decision.observed_count} of at most {spec.max_count}"
    known = [_usage(kind, usage) for kind, usage in decision.usages.items() if not isinstance(usage, NoData)]
    if known and rule is TriggerRule.IN_SYNC and _is_at_max(decision, spec):
        return f"at its max {spec.max_count}: {' and '.join(known)}"
    return f"{rule}: {' and '.join(known)}" if known else str(rule)


def _is_at_max(decision: TickDecision, spec: ScalingPolicySpec) -> bool:
    return 0 < spec.max_count <= decision.observed_count


def _trigger(verdict: TriggerVerdict) -> str:
    usage = _usage(verdict.type, verdict.observed_usage_ratio)
    if verdict.verdict is VerdictKind.LIMIT and verdict.limit_ratio is not None:
        return f"{usage}, limit {_percent(verdict.limit_ratio)}"
    points = (
        f"{verdict.counted_count} of {verdict.examined_count} points {'above' if verdict.way == 'up' else 'below'} it"
    )
    return f"{usage}, aims at {_percent(verdict.target_usage_ratio)}, {points}"


def _usage(kind: str, usage: float | NoData) -> str:
    compared = _COMPARED.get(kind, kind)
    return f"no usage {compared}" if isinstance(usage, NoData) else f"{_percent(usage)} {compared}"


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.0f} %"
