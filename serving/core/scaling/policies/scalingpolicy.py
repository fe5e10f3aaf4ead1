"""ScalingPolicy: triggers that scale a revision up and down, in the form of a manifest.

The records have the manifest's whole percents and seconds, so that comparisons are exact in integers (8 of 10 points at
80 percent), and a record is written back unchanged. Deciding code converts percents to ratios where it compares a
usage.

``check_scaling_policy`` lists all problems of one; the known policy types are an argument. Follows topfreegames/maestro
v9 (dbbfd74), ``autoscaling`` of a scheduler, which checks no range and no contradiction.
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from serving.core.model.errors import Problem
from serving.core.model.knative import SERVING_API_VERSION
from serving.core.model.quantity import INT32_MAX, Resources
from serving.core.model.scaledworkload import Schedule

TARGET_KINDS = ("Revision", "Configuration", "Service")
"""Kinds that a policy may target, the closest to the pods first."""

# The default limit of up triggers. Source: maestro, also for its old-style trigger.
LIMIT_PERCENT_DEFAULT = 90
# Usage may exceed requests, so a limit above 100 is valid; one above ten times the request is a typing error.
_LIMIT_PERCENT_MAX = 1000
# Bounds the stored state of a revision: a day of points, and a reviewable number of triggers.
_SECONDS_MAX = 86_400
_TRIGGERS_MAX = 16
# Types that measure the same: an up trigger of one and a down trigger of the other may contradict each other.
_WATCHES = {"fixed-step": "occupancy"}
# Names of the old-style trigger, which measures occupancy.
_OLD_TYPES = ("fixed-step", "occupancy")
# Former names of the types, which policies may still use.
_OLD_SPELLINGS = {"room": "occupancy", "legacy": "fixed-step"}
_NEEDED_REQUEST = {"cpu": "cpu_m", "mem": "memory_bytes"}


class Trigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A condition for adding or removing pods, and its target usage.

    After the cooldown, the trigger acts if ``threshold_percent`` of the usages in the last ``time_s`` seconds are
    beyond ``usage_percent``. An up trigger also acts as soon as the usage reaches ``limit_percent``.
    """

    type: str = "occupancy"
    """The measured usage and the formula for amounts: ``occupancy`` (pods with a request), ``cpu``, ``mem`` (use
    relative to the requests of the pods), ``fixed-step`` (occupancy with a fixed amount), or a custom type.
    ``room`` and ``legacy`` are old spellings of ``occupancy`` and ``fixed-step``.
    """

    usage_percent: int
    """The target usage. A point counts above it for up, below it for down. Range: 1 to 100."""

    threshold_percent: int = 80
    """Share of the points of ``time_s`` that must count. Range: 1 to 100. Default: maestro, 80."""

    time_s: int = msgspec.field(default=600, name="timeSeconds")
    """Age of the oldest point that counts, in seconds before the decision. Range: 1 to 86400. A value below the time
    between two points selects only the newest point. Default: maestro, 600."""

    limit_percent: int | None = None
    """Usage from which an up trigger acts at once, without points and during the cooldown. Range: from usage_percent to
    1000; above 100 an occupancy trigger never meets it. None: 90. A down trigger has none."""

    delta: int = 0
    """Pods that a fixed-step trigger adds (above 0, for up) or removes (below 0, for down).

    Other types do not read it.
    """

    def __post_init__(self) -> None:
        """Replace an old spelling of the type by the current one."""
        if self.type in _OLD_SPELLINGS:
            msgspec.structs.force_setattr(self, "type", _OLD_SPELLINGS[self.type])


class Direction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The triggers for adding pods, or those for removing pods; the first that acts decides.

    ``trigger`` is the old-style trigger, used if the list is empty; it adds or removes ``delta`` pods.
    """

    triggers: tuple[Trigger, ...] = ()
    """Triggers in order of evaluation, at most 16."""

    cooldown_s: int = msgspec.field(default=600, name="cooldownSeconds")
    """Time after a change in either direction during which triggers wait, in seconds. Range: 0 to 86400. Limits, min
    and max do not wait. Default: maestro, 600.
    """

    delta: int = 1
    """Amount of the old-style ``trigger``, without sign, and of panic scale. Range: from 1. Default: maestro, 1."""

    trigger: Trigger | None = None
    """Old style, used if ``triggers`` is empty: one occupancy trigger with the direction's amount ``delta``. The
    trigger of ``up`` also has the limit of panic scale.
    """


class TargetRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The target of a policy, in the policy's namespace. A Service or Configuration selects all of its revisions."""

    kind: str
    """Service, Configuration or Revision."""

    name: str
    api_version: str = SERVING_API_VERSION


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a schedule is active, and until when: in seconds since the epoch, and in local time of its zone."""

    is_active: bool
    until_s: float
    until: str


class ScalingPolicySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The spec of a ScalingPolicy."""

    target_ref: TargetRef | None = None
    """The target of the policy. A manifest needs it; decisions without a cluster have None."""

    min_count: int = msgspec.field(default=0, name="min")
    """Fewest pods; missing pods are added immediately. 0: no minimum."""

    max_count: int = msgspec.field(default=0, name="max")
    """Most pods; excess pods are removed immediately. 0: no maximum."""

    up: Direction = Direction()
    """When and how pods are added."""

    down: Direction = Direction()
    """When and how pods are removed."""

    schedules: tuple[Schedule, ...] = ()
    """Times with a minimum number of pods, at most 16. The highest active minimum applies."""

    panic_scale: bool = False
    """Whether ``up.delta`` pods are added immediately when a pod gets its first request and the occupied pods exceed
    the limit of ``up.trigger``. Default: maestro, false; deprecated there.
    """


def type_of_today(spelling: str) -> str:
    """The current name of a trigger type, given any of its spellings."""
    return _OLD_SPELLINGS.get(spelling, spelling)


def limit_percent_of(trigger: Trigger) -> int:
    """The usage in percent from which an up trigger acts immediately: the configured one, or 90."""
    return LIMIT_PERCENT_DEFAULT if trigger.limit_percent is None else trigger.limit_percent


def check_scaling_policy(
    spec: ScalingPolicySpec,
    *,
    known_types: Collection[str],
    container_requests: Mapping[str, Resources] | None = None,
) -> tuple[Problem, ...]:
    """All problems of a policy; empty if it is valid.

    ``container_requests`` are the requests of each container of the revision by name. If None, they are unknown and are
    not checked.
    """
    return (
        *(() if spec.target_ref is None else _target_problems(spec.target_ref)),
        *_count_problems(spec),
        *_direction_problems(spec.up, "spec.up", known_types),
        *_direction_problems(spec.down, "spec.down", known_types),
        *_sign_problems(spec),
        *_up_problems(spec),
        *_down_problems(spec),
        *_overlap_problems(spec),
        *_request_problems(spec, container_requests or {}),
    )


def _target_problems(target: TargetRef) -> Iterator[Problem]:
    """Problems in a target reference, by field."""
    if target.kind not in TARGET_KINDS:
        what = f"a policy cannot be attached to a {target.kind or 'thing without a kind'}"
        yield Problem(where="spec.targetRef.kind", what=what, expected=" or ".join(sorted(TARGET_KINDS)))
    elif target.api_version != SERVING_API_VERSION:
        what = f"there is no {target.kind} to scale in {target.api_version or 'an empty group'}"
        yield Problem(where="spec.targetRef.apiVersion", what=what, expected=SERVING_API_VERSION)
    if not target.name:
        yield Problem(
            where="spec.targetRef.name", what="it is empty", expected=f"the name of a {target.kind or 'Service'}"
        )


_Located = tuple[str, Trigger]


def _listed(direction: Direction, where: str) -> tuple[_Located, ...]:
    """The triggers in a direction's list, each with its path."""
    return tuple((f"{where}.triggers[{index}]", trigger) for index, trigger in enumerate(direction.triggers))


def _old(direction: Direction, where: str) -> tuple[_Located, ...]:
    """The old-style trigger with its path, if the direction has one."""
    return () if direction.trigger is None else ((f"{where}.trigger", direction.trigger),)


def _all(direction: Direction, where: str) -> tuple[_Located, ...]:
    return _listed(direction, where) + _old(direction, where)


def _in_force(direction: Direction, where: str) -> tuple[_Located, ...]:
    """The triggers to evaluate: the list, or the old-style trigger if the list is empty."""
    return _listed(direction, where) or _old(direction, where)


def _outside(where: str, value: int, *, low: int, high: int) -> Iterator[Problem]:
    if not low <= value <= high:
        expected = f"{low} to {high}" if high < INT32_MAX else f"{low} or more"
        yield Problem(where=where, what=f"{value} is out of range", expected=expected)


def _count_problems(spec: ScalingPolicySpec) -> Iterator[Problem]:
    yield from _outside("spec.min", spec.min_count, low=0, high=INT32_MAX)
    yield from _outside("spec.max", spec.max_count, low=0, high=INT32_MAX)
    if 0 < spec.max_count < spec.min_count:
        yield Problem(
            where="spec.min",
            what=f"{spec.min_count} is above spec.max, {spec.max_count}",
            expected=f"at most {spec.max_count}, or spec.max 0",
        )


def _direction_problems(direction: Direction, where: str, known_types: Collection[str]) -> Iterator[Problem]:
    yield from _outside(f"{where}.cooldownSeconds", direction.cooldown_s, low=0, high=_SECONDS_MAX)
    yield from _outside(f"{where}.delta", direction.delta, low=1, high=INT32_MAX)
    if len(direction.triggers) > _TRIGGERS_MAX:
        yield Problem(
            where=f"{where}.triggers", what=f"{len(direction.triggers)} triggers", expected=f"at most {_TRIGGERS_MAX}"
        )
    for path, trigger in _listed(direction, where):
        yield from _type_problems(path, trigger, known_types)
    for path, trigger in _old(direction, where):
        yield from _type_problems(path, trigger, _OLD_TYPES)
    for path, trigger in _all(direction, where):
        yield from _outside(f"{path}.usagePercent", trigger.usage_percent, low=1, high=100)
        yield from _outside(f"{path}.thresholdPercent", trigger.threshold_percent, low=1, high=100)
        yield from _outside(f"{path}.timeSeconds", trigger.time_s, low=1, high=_SECONDS_MAX)


def _type_problems(path: str, trigger: Trigger, known_types: Collection[str]) -> Iterator[Problem]:
    if trigger.type not in known_types:
        yield Problem(
            where=f"{path}.type",
            what=f"{trigger.type!r} is not a type of trigger here",
            expected=" or ".join(sorted(known_types)),
        )


def _sign_problems(spec: ScalingPolicySpec) -> Iterator[Problem]:
    for where, direction, sign, expected in (
        ("spec.up", spec.up, 1, "above 0: pods that are added"),
        ("spec.down", spec.down, -1, "below 0: pods that are removed"),
    ):
        for path, trigger in _listed(direction, where):
            if trigger.type == "fixed-step" and trigger.delta * sign <= 0:
                yield Problem(
                    where=f"{path}.delta",
                    what=f"{trigger.delta} has no effect here",
                    expected=expected,
                )


def _up_problems(spec: ScalingPolicySpec) -> Iterator[Problem]:
    for path, trigger in _all(spec.up, "spec.up"):
        limit_percent = limit_percent_of(trigger)
        yield from _outside(f"{path}.limitPercent", limit_percent, low=1, high=_LIMIT_PERCENT_MAX)
        if 0 < limit_percent < trigger.usage_percent:
            yield Problem(
                where=f"{path}.limitPercent",
                what=f"{limit_percent} is below usagePercent, {trigger.usage_percent}: it would act below the target",
                expected=f"at least {trigger.usage_percent}",
            )
    if spec.up.triggers and spec.up.trigger is not None and not spec.panic_scale:
        yield _unread_trigger("spec.up", "an old-style trigger only where triggers is empty or panicScale is true")


def _down_problems(spec: ScalingPolicySpec) -> Iterator[Problem]:
    for path, trigger in _all(spec.down, "spec.down"):
        if trigger.limit_percent is not None:
            yield Problem(
                where=f"{path}.limitPercent",
                what=f"{trigger.limit_percent} has no effect",
                expected="no limit: only up triggers have one",
            )
    if spec.down.triggers and spec.down.trigger is not None:
        yield _unread_trigger("spec.down", "an old-style trigger only where triggers is empty")


def _unread_trigger(where: str, expected: str) -> Problem:
    return Problem(where=f"{where}.trigger", what="it has no effect beside triggers", expected=expected)


def _overlap_problems(spec: ScalingPolicySpec) -> Iterator[Problem]:
    """Report down triggers that would undo an up trigger of the same type."""
    lowest: dict[str, tuple[int, str]] = {}
    for path, trigger in _in_force(spec.up, "spec.up"):
        watched = _WATCHES.get(trigger.type, trigger.type)
        lowest[watched] = min(lowest.get(watched, (trigger.usage_percent, path)), (trigger.usage_percent, path))
    for path, trigger in _in_force(spec.down, "spec.down"):
        watched = _WATCHES.get(trigger.type, trigger.type)
        up_percent, up_path = lowest.get(watched, (trigger.usage_percent + 1, ""))
        if trigger.usage_percent >= up_percent:
            yield Problem(
                where=f"{path}.usagePercent",
                what=f"{trigger.usage_percent} is not below the {up_percent} of {up_path}",
                expected=f"below {up_percent}, with room between the two",
            )


def _request_problems(spec: ScalingPolicySpec, container_requests: Mapping[str, Resources]) -> Iterator[Problem]:
    for path, trigger in _in_force(spec.up, "spec.up") + _in_force(spec.down, "spec.down"):
        needed = _NEEDED_REQUEST.get(trigger.type)
        for name, requests in container_requests.items():
            if needed is not None and not getattr(requests, needed):
                resource = "cpu" if trigger.type == "cpu" else "memory"
                yield Problem(
                    where=f"{path}.type",
                    what=f"{trigger.type} needs requests.{resource}, which container {name} lacks",
                    expected=f"requests.{resource} on every container",
                )
