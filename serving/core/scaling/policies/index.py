"""Indexes ScalingPolicies: the effective policy of each revision, and the status of each policy.

Input: policy objects, and revisions. Output: the policy of a revision, and an ``Attachment`` for each policy. Of
several policies for one target, the oldest is effective; the status of the others reports that they wait. A revision
with policies on several levels uses the closest: the revision's, then the Configuration's, then the Service's. State
that an earlier autoscaler stored in a policy's status is restored (``StoredState``). The module makes no decisions.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.errors import Problem
from serving.core.model.knative import RevisionKey
from serving.core.model.objects import key_of
from serving.core.model.scaledworkload import Schedule
from serving.core.scaling.policies.points import UsagePoint
from serving.core.scaling.policies.scalingpolicy import (
    ScalingPolicySpec,
    TargetRef,
    check_scaling_policy,
    type_of_today,
)
from serving.core.scaling.policies.tick import TriggerPhase, TriggerState
from serving.core.scaling.policies.triggertypes import REGISTRY
from serving.core.scaling.revision import ScaledRevision

PolicyKey = tuple[str, str]
"""The namespace and name of a policy."""

PolicyCheck = Callable[[ScalingPolicySpec], Iterable[Problem]]
"""Returns the problems of a policy."""

_OF_WORKLOAD = " (workload)"

_Target = tuple[str, str, str]


class Reason(enum.StrEnum):
    """The reason of a policy's condition Attached.

    Conflict: an older policy has the same target. NotUsable: the policy is invalid. NoRequests: the pods have no
    requests of a resource that a trigger needs.
    """

    ATTACHED = "Attached"
    TARGET_NOT_FOUND = "TargetNotFound"
    CONFLICT = "Conflict"
    NOT_USABLE = "NotUsable"
    NO_REQUESTS = "NoRequests"


class StoredState(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The evaluation state of one revision, as stored in a policy's status.

    Times are whole milliseconds since the epoch. ``points`` are pairs of time and usage, newest first, by type.
    """

    name: str
    uid: str = ""
    phase: TriggerPhase = TriggerPhase.IN_SYNC
    phase_changed_at_ms: int | None = None
    last_change_at_ms: int | None = None
    points: dict[str, tuple[tuple[int, float], ...]] = msgspec.field(default_factory=dict)


class ScalingPolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """A ScalingPolicy. If it is invalid, ``spec`` is None and ``problem`` is the reason.

    A policy may be invalid because another API server accepted it.
    """

    key: PolicyKey
    uid: str
    created: str
    generation: int
    target: TargetRef
    spec: ScalingPolicySpec | None
    problem: str
    conditions: tuple[Mapping[str, Any], ...]
    saved: tuple[StoredState, ...]


def policy_name_of(workload: str) -> str:
    """The name of the internal policy made from a ScaledWorkload's schedules; no API object has this name."""
    return f"{workload}{_OF_WORKLOAD}"


def is_of_workload(policy: str) -> bool:
    """Whether a policy was made from a ScaledWorkload's schedules. No API object then stores the policy's status."""
    return policy.endswith(_OF_WORKLOAD)


def schedules_as_policy(workload: Mapping[str, Any], schedules: Sequence[Schedule]) -> dict[str, Any]:
    """A ScaledWorkload's schedules as a ScalingPolicy."""
    metadata = workload["metadata"]
    return {
        "metadata": {**metadata, "name": policy_name_of(metadata["name"])},
        "spec": {
            "targetRef": {"kind": "Revision", "name": metadata["name"]},
            "schedules": msgspec.to_builtins(schedules),
        },
    }


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """The condition Attached of a policy: whether the policy has targets, and the reason."""

    is_attached: bool
    reason: Reason
    message: str


def policy_of(resource: Mapping[str, Any], check: PolicyCheck) -> ScalingPolicyView | None:
    """Read a ScalingPolicy; None if it is being deleted. ``check`` validates schedules and their time zones."""
    metadata, status = resource["metadata"], resource.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return None
    spec, problem = _spec_of(resource.get("spec") or {}, check)
    return ScalingPolicyView(
        key=key_of(resource),
        uid=metadata.get("uid", ""),
        created=metadata.get("creationTimestamp") or "",
        generation=int(metadata.get("generation") or 0),
        target=spec.target_ref if spec is not None and spec.target_ref is not None else TargetRef(kind="", name=""),
        spec=None if problem else spec,
        problem=problem,
        conditions=tuple(status.get("conditions") or ()),
        saved=_stored_states(status.get("revisions")),
    )


def _spec_of(written: Mapping[str, Any], check: PolicyCheck) -> tuple[ScalingPolicySpec | None, str]:
    try:
        spec = msgspec.convert(written, type=ScalingPolicySpec)
    except msgspec.ValidationError as error:
        return None, str(error)
    problems = [str(problem) for problem in (*check_scaling_policy(spec, known_types=REGISTRY), *check(spec))]
    if spec.target_ref is None:
        problems.append("spec.targetRef: it names no target")
    return spec, "; ".join(problems)


def _stored_states(written: object) -> tuple[StoredState, ...]:
    """Read the stored states; of an invalid one, only the points are lost."""
    try:
        return msgspec.convert(written or (), type=tuple[StoredState, ...])
    except msgspec.ValidationError:
        return ()


def stored_state(revision: ScaledRevision, state: TriggerState) -> StoredState:
    """Convert a state with wall-clock times to the form stored in a policy's status."""
    return StoredState(
        name=revision.key[1],
        uid=revision.uid,
        phase=state.phase,
        phase_changed_at_ms=_milliseconds(state.phase_changed_at_s),
        last_change_at_ms=_milliseconds(state.last_change_at_s),
        points={
            # Milliseconds and hundredths of a percent keep sixty points within 1.5 KB.
            kind: tuple((round(point.at_s * 1000), round(point.usage_ratio, 4)) for point in points)
            for kind, points in state.points.items()
        },
    )


def state_of(saved: StoredState) -> TriggerState:
    """The stored state, on the wall clock."""
    return TriggerState(
        phase=saved.phase,
        phase_changed_at_s=_seconds(saved.phase_changed_at_ms),
        last_change_at_s=_seconds(saved.last_change_at_ms),
        points={
            type_of_today(kind): tuple(
                UsagePoint(at_s=at_ms / 1000, usage_ratio=usage_ratio) for at_ms, usage_ratio in points
            )
            for kind, points in saved.points.items()
        },
    )


def _milliseconds(at_s: float | None) -> int | None:
    return None if at_s is None else round(at_s * 1000)


def _seconds(at_ms: int | None) -> float | None:
    return None if at_ms is None else at_ms / 1000


def targets_of(revision: ScaledRevision) -> tuple[_Target, ...]:
    """The targets by which a policy may select this revision, most specific first."""
    namespace, name = revision.key
    named = (("Revision", name), ("Configuration", revision.configuration), ("Service", revision.service))
    return tuple((namespace, kind, name) for kind, name in named if name)


class Policies:
    """All policies, indexed by target."""

    __slots__ = ("_by_key", "_by_target")

    def __init__(self) -> None:
        self._by_key: dict[PolicyKey, ScalingPolicyView] = {}
        self._by_target: dict[_Target, list[ScalingPolicyView]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def keys(self) -> tuple[PolicyKey, ...]:
        """The keys of all policies."""
        return tuple(self._by_key)

    def get(self, key: PolicyKey) -> ScalingPolicyView | None:
        """The policy as last observed."""
        return self._by_key.get(key)

    def put(self, policy: ScalingPolicyView) -> set[PolicyKey]:
        """Add or update a policy. Return the policies whose status may have changed."""
        touched = self.drop(policy.key)
        self._by_key[policy.key] = policy
        if policy.spec is not None:
            rivals = self._by_target.setdefault(_target_of(policy), [])
            rivals.append(policy)
            rivals.sort(key=lambda rival: (rival.created, rival.key))
            touched |= {rival.key for rival in rivals}
        return touched | {policy.key}

    def drop(self, key: PolicyKey) -> set[PolicyKey]:
        """Remove a policy. Return the policies whose status may have changed."""
        policy = self._by_key.pop(key, None)
        if policy is None or policy.spec is None:
            return set()
        rivals = self._by_target[_target_of(policy)]
        rivals[:] = [rival for rival in rivals if rival.key != key]
        if not rivals:
            del self._by_target[_target_of(policy)]
        return {rival.key for rival in rivals}

    def holder(self, revision: ScaledRevision) -> ScalingPolicyView | None:
        """The effective policy of a revision; None if it has none."""
        for target in targets_of(revision):
            rivals = self._by_target.get(target)
            if rivals:
                return rivals[0]
        return None

    def attachment(
        self, policy: ScalingPolicyView, *, revisions: Collection[RevisionKey], problems: Collection[str]
    ) -> Attachment:
        """The condition Attached of a policy.

        ``revisions`` use the policy. ``problems`` are why other targeted revisions cannot use it.
        """
        if policy.spec is None:
            return Attachment(is_attached=False, reason=Reason.NOT_USABLE, message=policy.problem)
        kind, name = policy.target.kind, policy.target.name
        oldest = self._by_target[_target_of(policy)][0]
        if oldest.key != policy.key:
            message = f"{kind} {name} has the older policy {oldest.key[1]} already; delete one of the two"
            return Attachment(is_attached=False, reason=Reason.CONFLICT, message=message)
        if revisions:
            names = ", ".join(sorted(revision[1] for revision in revisions))
            return Attachment(is_attached=True, reason=Reason.ATTACHED, message=f"holds for {names}")
        if problems:
            return Attachment(is_attached=False, reason=Reason.NO_REQUESTS, message="; ".join(sorted(problems)))
        there = "there is none" if kind == "Revision" else "there is none, or each has a policy of its own"
        message = f"no {kind} {name} with a revision that is scaled here and that a route names: {there}"
        return Attachment(is_attached=False, reason=Reason.TARGET_NOT_FOUND, message=message)


def _target_of(policy: ScalingPolicyView) -> _Target:
    return (policy.key[0], policy.target.kind, policy.target.name)
