"""Conditions in Knative's form: sorted by type, each with the time of its last change.

Ready is True if all its dependencies are True, False if one is False, otherwise Unknown; it repeats the reason and
message of the deciding dependency. A condition that Ready does not depend on has ``severity: Info``. Follows
knative.dev/pkg apis.ConditionSet, which reports the dependency that changed last. Here the first dependency in order
decides, so that the result does not depend on times.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.knative import CONDITION_READY, ConditionStatus
from serving.core.model.objects import Object, condition_of, nested

_INFO = "Info"


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of a resource. ``informative`` conditions do not affect Ready."""

    type: str
    status: ConditionStatus
    reason: str = ""
    message: str = ""
    informative: bool = False

    def written(self) -> Object:
        """The condition as JSON of the API, without its transition time."""
        fields = {
            "type": self.type,
            "status": self.status.value,
            "reason": self.reason,
            "message": self.message,
            "severity": _INFO if self.informative else "",
        }
        return {key: value for key, value in fields.items() if value}


def false_condition(condition_type: str, reason: str, message: str) -> Condition:
    """A condition that is False."""
    return Condition(type=condition_type, status=ConditionStatus.FALSE, reason=reason, message=message)


def ready_of(dependencies: Sequence[Condition]) -> Condition:
    """Derive Ready from its dependencies: the first False, else the first Unknown, else True."""
    for status in (ConditionStatus.FALSE, ConditionStatus.UNKNOWN):
        for dependency in dependencies:
            if dependency.status is status:
                return Condition(
                    type=CONDITION_READY, status=status, reason=dependency.reason, message=dependency.message
                )
    return Condition(type=CONDITION_READY, status=ConditionStatus.TRUE)


def is_unsettled(before: Object, status: Object) -> bool:
    """Whether an object is neither ready nor failed, before and after a change of its status."""
    ready = [condition_of(resource, CONDITION_READY).get("status") for resource in (before, {"status": status})]
    return ready[0] in (None, ConditionStatus.UNKNOWN) and ready[1] == ConditionStatus.UNKNOWN


def mirrored(source: Object, condition_type: str) -> Condition:
    """A copy of another resource's condition; Unknown if that resource does not exist."""
    return Condition(
        type=condition_type,
        status=ConditionStatus(source.get("status", ConditionStatus.UNKNOWN)),
        # Knative gives no reason for a True condition.
        reason="" if source.get("status") == ConditionStatus.TRUE else source.get("reason", ""),
        message="" if source.get("status") == ConditionStatus.TRUE else source.get("message", ""),
    )


def status_with(resource: Object, conditions: Iterable[Condition], changing: Mapping[str, Any], *, now: str) -> Object:
    """The status of a resource with these conditions and fields; None removes a field."""
    before = nested(resource, "status") or {}
    return {
        **{key: value for key, value in before.items() if key not in changing},
        **{key: value for key, value in changing.items() if value is not None},
        "observedGeneration": nested(resource, "metadata", "generation"),
        "conditions": updated_conditions(conditions, before=before.get("conditions") or (), now=now),
    }


def updated_conditions(new: Iterable[Condition], *, before: Iterable[Object], now: str) -> list[Object]:
    """The conditions to write, sorted by type. Changed conditions get ``now`` as their transition time."""
    known = {condition.get("type"): condition for condition in before}
    return [
        _stamped(condition, known.get(condition.type, {}), now)
        for condition in sorted(new, key=lambda condition: condition.type)
    ]


def _stamped(condition: Condition, before: Object, now: str) -> Object:
    written = condition.written()
    same = {key: value for key, value in before.items() if key != "lastTransitionTime"} == written
    return {**written, "lastTransitionTime": before.get("lastTransitionTime", now) if same else now}
