"""Settings of triggers for all revisions, and quirks of maestro, which are off by default.

Source: topfreegames/maestro v9 (dbbfd74), package watcher; the settings of a ScalingPolicy are in
``serving/core/scaling/policies/scalingpolicy.py``.
"""

from typing import Annotated

import msgspec

from serving.core.settings.knob import COUNT, DURATION, FLAG, Knob


class TriggerQuirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Harmful behaviours of the game-room scaler maestro, off by default. All flags on restore maestro's exactly."""

    points_without_times: bool = False
    """Points have no age: an autoscaler continues with its old points after an absence, and every evaluation adds a
    point, be it a restart after a second. Off: a point older than the trigger's time does not count, nor does a
    repetition.
    """

    examines_one_point_more: bool = False
    """time / period + 1 points are kept and looked at, so 8 of 11 can do what 8 of 10 should. Off: time / period."""

    threshold_is_exclusive: bool = False
    """More than the threshold must count: 8 of 10 at 80 percent do not suffice, and 100 percent can only be met with
    the one point more. Off: as many as the threshold says are enough."""

    stored_length_follows_last_trigger: bool = False
    """Points of a type are kept for the time of its last trigger in the list of up, then of down; a longer trigger
    before it never sees enough of them and never acts. Off: for the longest time."""

    limit_takes_any_delta: bool = False
    """A limit that is met ends the evaluation even if the trigger's amount is 0 or negative: a limit below the target
    scales down. Off: it acts only if it adds pods."""

    divides_by_zero: bool = False
    """Without pods, or without requests of cpu and memory, the usage is not a number or infinite; it is kept as a point
    and compared. Off: there is no usage, no point and no decision."""

    single_precision: bool = False
    """Usages, sums and bounds are rounded to 32 bits, and amounts computed in binary fractions: a ceiling can be one
    pod too many (1.1 x 100 gives 111). Off: amounts are exact."""

    counts_unmeasured_containers: bool = False
    """A container without a measurement counts as unused, one without a request as usage of nothing. Off: containers
    count that have both.
    """

    old_trigger_becomes_room: bool = False
    """The old-style trigger scales by the formula of type occupancy, its ``delta`` is ignored. Off: by ``delta``, as
    written."""

    down_may_reach_zero: bool = False
    """With min 0 triggers remove the last pod. Without pods there is no usage, so no trigger ever adds one again. Off:
    one pod stays; going to zero is left to the request metrics, which know the way back."""

    any_pending_pod_refuses_up: bool = False
    """One pod waiting for a node stops every addition, for as long as it waits. Off: pods being created count as
    there, and more may be added.
    """

    panic_ignores_cap: bool = False
    """Panic scale is not limited by ``max_scale_up_amount``. Off: it is."""

    panic_starts_no_cooldown: bool = False
    """Pods added by panic scale may be removed, or added to, at the next evaluation. Off: it starts the cooldown as
    every change does."""


ORIGINAL = TriggerQuirks(**dict.fromkeys(TriggerQuirks.__struct_fields__, True))


class TriggerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of triggers."""

    period_s: Annotated[float, Knob(key="period", unit=DURATION, low=1, high=300, whole=True)] = 10.0
    """Time between the starts of two evaluations of a policy, in seconds; each adds one point.

    Range: 1s to 5m, whole seconds. Default: maestro's autoScalingPeriod, 10s.
    """

    max_scale_up_amount: Annotated[int, Knob(key="max-scale-up-amount", unit=COUNT, low=1)] = 300
    """Most pods that one change adds. Range: from 1. Default: maestro, 300."""

    max_scale_down_amount: int = 30
    """Most pods removed by one change.

    Source: ours, a tenth of the maximum for adding, because cold starts cost more than idle pods. Maestro has no bound.
    """

    failing_pod_refuses_up: Annotated[bool, Knob(key="failing-pod-refuses-up", unit=FLAG)] = False
    """Whether a pod that cannot start because of an error stops additions. Default: maestro's
    preventRoomsCreationWithError, false."""

    panic_lock_s: Annotated[float, Knob(key="panic-lock", unit=DURATION, above=0, high=3600)] = 60.0
    """Longest time for which one panic prevents another, in seconds, from its start. Range: above 0 to 1h.
    Default: maestro's api.limitManager.keyTimeout, 1m."""

    occupied_concurrency: float = 0.5
    """Mean requests in flight in its last second from which a pod counts as occupied.

    Source: ours, 0.5, busy for half of the time.
    """

    usage_period_s: Annotated[float, Knob(key="usage-period", unit=DURATION, low=0.5, high=300)] = 5.0
    """Time between two reads of pods' cpu and memory usage, in seconds, while a policy needs it. Range: 500ms
    to 5m. Default: ours, 5s, two for each point; metrics-server has something new each 15s."""

    quirks: TriggerQuirks = TriggerQuirks()
    """Behaviours of maestro that are off by default, one flag each."""
