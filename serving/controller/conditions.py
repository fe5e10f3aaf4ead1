"""Conditions as Knative keeps them: sorted, each with the time at which it last became what it is.

A resource's Ready is true when all it depends on is true, false when one is false, else unknown; it repeats the reason
and message of the one that decides. A condition that Ready does not depend on says so by ``severity: Info``.
Follows knative.dev/pkg apis.ConditionSet; where that tells of the dependency that changed last, ours tells of the first
in the order given, so that the answer does not hang on times.
"""

from collections.abc import Iterable, Sequence

import msgspec

from serving.model.knative import CONDITION_READY, ConditionStatus
from serving.model.objects import Object

__all__ = ["Condition", "mirrored", "ready_of", "updated_conditions"]

_INFO = "Info"


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One statement about a resource. ``informative`` says that Ready does not depend on it."""

    type: str
    status: ConditionStatus
    reason: str = ""
    message: str = ""
    informative: bool = False

    def written(self) -> Object:
        """As the API has it, without its time."""
        fields = {
            "type": self.type,
            "status": self.status.value,
            "reason": self.reason,
            "message": self.message,
            "severity": _INFO if self.informative else "",
        }
        return {key: value for key, value in fields.items() if value}


def ready_of(dependencies: Sequence[Condition]) -> Condition:
    """Ready from what it depends on: false before unknown before true, and in their order among equals."""
    for status in (ConditionStatus.FALSE, ConditionStatus.UNKNOWN):
        for one in dependencies:
            if one.status is status:
                return Condition(type=CONDITION_READY, status=status, reason=one.reason, message=one.message)
    return Condition(type=CONDITION_READY, status=ConditionStatus.TRUE)


def mirrored(source: Object, condition_type: str) -> Condition:
    """A condition that repeats one of another resource; unknown while that one is not there."""
    return Condition(
        type=condition_type,
        status=ConditionStatus(source.get("status", ConditionStatus.UNKNOWN)),
        # Knative repeats no reason of what is well.
        reason="" if source.get("status") == ConditionStatus.TRUE else source.get("reason", ""),
        message="" if source.get("status") == ConditionStatus.TRUE else source.get("message", ""),
    )


def updated_conditions(new: Iterable[Condition], *, before: Iterable[Object], now: str) -> list[Object]:
    """Conditions as they are written, by type; ``now`` is the stamp of those that changed in anything."""
    known = {one.get("type"): one for one in before}
    return [_stamped(one, known.get(one.type, {}), now) for one in sorted(new, key=lambda one: one.type)]


def _stamped(condition: Condition, before: Object, now: str) -> Object:
    written = condition.written()
    same = {key: value for key, value in before.items() if key != "lastTransitionTime"} == written
    return {**written, "lastTransitionTime": before.get("lastTransitionTime", now) if same else now}
