"""Matches revisions with ScalingPolicies and collects their proposals; an autoscaler has one engine.

Input: policies, and the state of a revision at each decision. Output: proposals for its merge, the time of its next
evaluation, and the status of each policy. ``on_change`` is called with each policy whose status changed. A revision
without a route has no policy, so that none delays its scale-down. The module uses no cluster and no clock. Times in a
status are converted by the difference of the two clocks, which is an argument.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.knative import RevisionKey, ServingState
from serving.core.model.nodata import NoData
from serving.core.model.objects import with_transition_time
from serving.core.model.quantity import Resources
from serving.core.model.scaledworkload import Schedule
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.policies.attachment import LastDecision, Triggered
from serving.core.scaling.policies.index import Policies, PolicyKey, ScalingPolicyView, state_of, stored_state
from serving.core.scaling.policies.scalingpolicy import (
    ScalingPolicySpec,
    ScheduleState,
    TargetRef,
    check_scaling_policy,
)
from serving.core.scaling.policies.tick import TriggerState, rebased
from serving.core.scaling.policies.triggertypes import REGISTRY, ObservedPods
from serving.core.scaling.revision import ScaledRevision
from serving.core.settings.triggers import TriggerSettings

StateAt = Callable[[Schedule, float], ScheduleState]
"""The state of a schedule at a time, in seconds since the epoch."""

_MEASURED_TYPES = frozenset({"cpu", "mem"})

Requests = Callable[[RevisionKey], Mapping[str, Resources]]
"""The requests of a revision's containers, by name."""


class PolicyCalendar:
    """The schedules of a policy, each with its state at the last check and the time of that check."""

    __slots__ = ("_name", "_schedules", "_seen", "_state_at")

    def __init__(self, name: str, schedules: Sequence[Schedule], state_at: StateAt) -> None:
        """``name`` is the policy's name; ``state_at`` returns a schedule's state at a time."""
        self._name = name
        self._schedules = schedules
        self._state_at = state_at
        self._seen: list[tuple[float, ScheduleState]] = []

    @property
    def min_count(self) -> int:
        """The highest minimum of active schedules; 0 without any."""
        return max((schedule.min_count for schedule, (_, state) in self._pairs() if state.is_active), default=0)

    def update(self, wall_s: float) -> bool:
        """Check all schedules; return whether any has changed since the last call."""
        if len(self._seen) == len(self._schedules) and all(
            at_s <= wall_s < state.until_s for at_s, state in self._seen
        ):
            return False
        self._seen = [(wall_s, self._state_at(schedule, wall_s)) for schedule in self._schedules]
        return True

    def proposals(self) -> tuple[Proposal, ...]:
        """The proposals of the active schedules."""
        return tuple(
            Proposal(
                decider=f"schedule {schedule.shown_name} of policy {self._name}",
                desired=schedule.min_count,
                reason=f"until {state.until}",
            )
            for schedule, (_, state) in self._pairs()
            if state.is_active
        )

    def status(self) -> list[dict[str, Any]]:
        """Each schedule, whether it is active, and until when."""
        return [
            {"name": schedule.shown_name, "active": state.is_active, "until": state.until}
            for schedule, (_, state) in self._pairs()
        ]

    def _pairs(self) -> Iterator[tuple[Schedule, tuple[float, ScheduleState]]]:
        """Each schedule with its last check and state; none before the first check."""
        return zip(self._schedules, self._seen, strict=False)


class _AttachedRevision:
    """A revision and its policy. ``problem`` is why the policy is not in force.

    ``is_asleep``: the revision is at scale 0, so triggers are not evaluated; only a policy's min can request pods.
    """

    __slots__ = ("calendar", "is_asleep", "policy", "problem", "revision", "triggered")

    def __init__(
        self,
        revision: ScaledRevision,
        policy: ScalingPolicyView,
        triggered: Triggered,
        *,
        calendar: PolicyCalendar,
        problem: str,
    ) -> None:
        self.revision = revision
        self.policy = policy
        self.triggered = triggered
        self.calendar = calendar
        self.problem = problem
        self.is_asleep = True


class Triggers:
    """Evaluates all ScalingPolicies for their revisions."""

    def __init__(
        self,
        settings: TriggerSettings,
        *,
        requests: Requests,
        on_change: Callable[[PolicyKey], None],
        state_at: StateAt,
    ) -> None:
        """``requests`` returns the resource requests of a revision's containers; ``state_at`` evaluates schedules.

        ``on_change`` is called with each policy whose status may have changed.
        """
        self._settings = settings
        self._state_at = state_at
        self._requests = requests
        self._on_change = on_change
        self._policies = Policies()
        self._attached: dict[RevisionKey, _AttachedRevision] = {}

    @property
    def policy_count(self) -> int:
        """The number of policies."""
        return len(self._policies)

    def is_followed(self, key: PolicyKey) -> bool:
        """Whether any revision follows a policy."""
        return any(follower.policy.key == key for follower in self._attached.values())

    @property
    def wants_usage(self) -> bool:
        """Whether the policy of any revision has triggers on cpu or memory."""
        return any(
            follower.policy.spec is not None and _needs_usage(follower.policy.spec)
            for follower in self._attached.values()
        )

    def set_policy(self, policy: ScalingPolicyView, *, is_ours: bool = True) -> None:
        """Add or update a policy. This autoscaler writes the policy's status if ``is_ours``."""
        before = self._policies.get(policy.key)
        if is_ours and before is not None and before.uid == policy.uid:
            # The status of another process is read once; afterwards this process has the newest state.
            policy = msgspec.structs.replace(policy, saved=before.saved)
        touched = self._policies.put(policy)
        if before is None or not _is_same(before, policy):
            for key in touched:
                self._on_change(key)

    def target(self, key: PolicyKey) -> TargetRef | None:
        """The target of a policy; None if the policy does not exist."""
        policy = self._policies.get(key)
        return None if policy is None else policy.target

    def recheck_all(self) -> None:
        """Mark the status of every policy for an update."""
        for key in self._policies.keys():  # noqa: SIM118 - it is no mapping
            self._on_change(key)

    def drop_policy(self, key: PolicyKey) -> None:
        """Drop a deleted policy."""
        for other in self._policies.drop(key):
            self._on_change(other)

    def has_policy(self, key: RevisionKey) -> bool:
        """Whether a revision follows a policy."""
        return key in self._attached

    def process_report(self, key: RevisionKey, pod: str, *, concurrency: float) -> bool:
        """Process a pod's report; return whether it triggers an immediate decision."""
        follower = self._attached.get(key)
        return follower is not None and follower.triggered.process_report(pod, concurrency=concurrency)

    def forget_pod(self, key: RevisionKey, pod: str) -> None:
        """Drop a deleted pod."""
        follower = self._attached.get(key)
        if follower is not None:
            follower.triggered.forget_pod(pod)

    def forget(self, key: RevisionKey) -> None:
        """Drop a revision that was deleted or moved to another autoscaler."""
        follower = self._attached.pop(key, None)
        if follower is not None:
            self._on_change(follower.policy.key)

    def proposals(
        self,
        revision: ScaledRevision,
        observe: Callable[[], ObservedPods],
        *,
        present_scale: int,
        now_s: float,
        wall_offset_s: float,
    ) -> tuple[Proposal, ...]:
        """The proposals of a revision's policy; none without a policy.

        ``wall_offset_s`` is wall clock minus monotonic clock. ``observe`` is called only if there is something to
        evaluate.
        """
        follower = self._attach(revision, now_s=now_s, wall_offset_s=wall_offset_s)
        if follower is None or follower.policy.spec is None:
            return ()
        spec, triggered = follower.policy.spec, follower.triggered
        is_over = bool(follower.problem) or revision.serving_state is ServingState.RETIRED
        follower.is_asleep = is_over or (present_scale == 0 and spec.min_count == 0)
        if is_over:
            return ()
        if follower.calendar.update(now_s + wall_offset_s):
            self._on_change(follower.policy.key)
        scheduled = follower.calendar.proposals()
        if follower.is_asleep:
            return scheduled
        triggered.settle(present_scale)
        if spec.panic_scale:
            triggered.panic(observe(), now_s)
        if triggered.is_due(now_s):
            triggered.evaluate(revision.key[1], observe(), now_s)
            self._on_change(follower.policy.key)
        return (*triggered.proposals(now_s), *scheduled)

    def due_in_s(self, key: RevisionKey, now_s: float) -> float | None:
        """Seconds until the next evaluation of a revision; None if it has no policy."""
        follower = self._attached.get(key)
        return None if follower is None or follower.is_asleep else max(0.0, follower.triggered.due_s - now_s)

    def status(
        self, key: PolicyKey, *, now_s: float, wall_offset_s: float, stamp: Callable[[float], str]
    ) -> dict[str, Any] | None:
        """The status of a policy; None if it is deleted. ``stamp`` formats a wall-clock time.

        A field with the value None is removed from the stored status.
        """
        policy = self._policies.get(key)
        if policy is None:
            return None
        followers = [follower for follower in self._attached.values() if follower.policy.key == key]
        working = sorted(
            (follower for follower in followers if not follower.problem), key=lambda follower: follower.revision.key
        )
        attachment = self._policies.attachment(
            policy,
            revisions=[follower.revision.key for follower in working],
            problems={follower.problem for follower in followers if follower.problem},
        )
        before = next((condition for condition in policy.conditions if condition.get("type") == "Attached"), {})
        condition: dict[str, Any] = {
            "type": "Attached",
            "status": "True" if attachment.is_attached else "False",
            "reason": attachment.reason.value,
            "message": attachment.message,
        }
        condition = with_transition_time(condition, before, now=stamp(now_s + wall_offset_s))
        decided = [decision for follower in working if (decision := follower.triggered.last) is not None]
        latest = max(decided, key=lambda decision: decision.at_s, default=None)
        return {
            "observedGeneration": policy.generation,
            "conditions": [condition],
            "scheduledMin": working[0].calendar.min_count or None if working else None,
            "schedules": working[0].calendar.status() if working else [],
            "lastDecision": None if latest is None else _decision_status(latest, at=stamp(latest.at_s + wall_offset_s)),
            "revisions": [
                msgspec.to_builtins(
                    stored_state(follower.revision, rebased(follower.triggered.state, by_s=wall_offset_s))
                )
                for follower in working
            ],
        }

    def _attach(self, revision: ScaledRevision, *, now_s: float, wall_offset_s: float) -> _AttachedRevision | None:
        """Attach the revision to the policy that targets it now."""
        follower = self._attached.get(revision.key)
        policy = self._policies.holder(revision) if len(self._policies) and revision.spec.reachable else None
        if policy is None or policy.spec is None:
            self.forget(revision.key)
            return None
        if follower is None or follower.policy.uid != policy.uid or follower.revision.uid != revision.uid:
            self.forget(revision.key)
            follower = self._attached[revision.key] = self._begin(
                revision, policy, now_s=now_s, wall_offset_s=wall_offset_s
            )
            self._on_change(policy.key)
        elif follower.policy is not policy or follower.revision is not revision:
            is_other = follower.policy.spec != policy.spec
            follower.policy, follower.revision = policy, revision
            follower.triggered.update(policy.spec, now_s)
            if is_other:
                follower.calendar = PolicyCalendar(policy.key[1], policy.spec.schedules, self._state_at)
                follower.problem = self._problem(revision, policy.spec)
                self._on_change(policy.key)
        return follower

    def _begin(
        self, revision: ScaledRevision, policy: ScalingPolicyView, *, now_s: float, wall_offset_s: float
    ) -> _AttachedRevision:
        """Attach the revision to a policy, and restore the state saved by an earlier process, if any."""
        assert policy.spec is not None, "only a policy that can be used holds for anything"
        saved = next((state for state in policy.saved if state.uid == revision.uid), None)
        state = TriggerState() if saved is None else rebased(state_of(saved), by_s=-wall_offset_s)
        triggered = Triggered(policy.key[1], policy.spec, self._settings, state=state, now_s=now_s)
        calendar = PolicyCalendar(policy.key[1], policy.spec.schedules, self._state_at)
        return _AttachedRevision(
            revision, policy, triggered, calendar=calendar, problem=self._problem(revision, policy.spec)
        )

    def _problem(self, revision: ScaledRevision, spec: ScalingPolicySpec) -> str:
        """Why a revision cannot use its policy; "" if it can."""
        if not _needs_usage(spec):
            return ""
        problems = check_scaling_policy(spec, known_types=REGISTRY, container_requests=self._requests(revision.key))
        return "; ".join(f"revision {revision.key[1]}: {problem}" for problem in problems)


def _is_same(policy: ScalingPolicyView, other: ScalingPolicyView) -> bool:
    return (policy.uid, policy.spec, policy.problem) == (other.uid, other.spec, other.problem)


def _needs_usage(spec: ScalingPolicySpec) -> bool:
    return any(trigger.type in _MEASURED_TYPES for trigger in (*spec.up.triggers, *spec.down.triggers))


def _decision_status(last: LastDecision, *, at: str) -> dict[str, Any]:
    """The last decision, for people and for table columns."""
    decision = last.decision
    desired = decision.desired_count
    return {
        "time": at,
        "revision": last.revision,
        "rule": decision.rule.value,
        "observed": decision.observed_count,
        "desired": None if isinstance(desired, NoData) else desired,
        "message": last.reason,
    }
