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
    """Points do not expire: an autoscaler continues with its old points after an absence, and every evaluation adds a
    point, even a second after the last one. Off: points older than the trigger's time and repeated points do not count.
    """

    examines_one_point_more: bool = False
    """Triggers examine time / period + 1 points, so that 8 of 11 points may suffice instead of 8 of 10. Off: time /
    period."""

    threshold_is_exclusive: bool = False
    """The counting points must exceed the threshold: 8 of 10 points do not suffice at 80 percent, and 100 percent needs
    ``examines_one_point_more``. Off: as many points as the threshold suffice."""

    stored_length_follows_last_trigger: bool = False
    """Points of a type are stored for the time of its last trigger in the order up, down. An earlier trigger with a
    longer time never has enough points. Off: points are stored for the longest time."""

    limit_takes_any_delta: bool = False
    """A reached limit ends the evaluation even if the trigger's amount is 0 or negative, so that a limit below the
    target scales down. Off: a limit acts only if it adds pods."""

    divides_by_zero: bool = False
    """Without pods, or without requests of cpu and memory, the usage is NaN or infinite, and is stored and compared as
    a point. Off: there is no usage, no point and no decision."""

    single_precision: bool = False
    """Usages, sums and bounds are rounded to 32 bits, and amounts are computed in binary fractions, so that a
    rounded-up amount may be one pod too high (1.1 x 100 gives 111). Off: amounts are exact."""

    counts_unmeasured_containers: bool = False
    """A container without a measurement counts with usage 0, and a container without a request with request 0. Off:
    only containers with both count.
    """

    old_trigger_becomes_room: bool = False
    """The old-style trigger uses the formula of type occupancy and ignores ``delta``. Off: it scales by ``delta``."""

    down_may_reach_zero: bool = False
    """With min 0 triggers remove the last pod. Without pods there is no usage, so triggers never add a pod again. Off:
    triggers keep one pod, and only request metrics scale to zero."""

    any_pending_pod_refuses_up: bool = False
    """A pod that waits for a node prevents all additions. Off: pods being created count as existing, and more may be
    added.
    """

    panic_ignores_cap: bool = False
    """Panic scale is not limited by ``max_scale_up_amount``. Off: it is."""

    panic_starts_no_cooldown: bool = False
    """Panic scale starts no cooldown, so that the next evaluation may remove or add pods. Off: it starts the cooldown,
    as every change does."""


ORIGINAL = TriggerQuirks(**dict.fromkeys(TriggerQuirks.__struct_fields__, True))


class TriggerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of triggers."""

    period_s: Annotated[float, Knob(key="period", unit=DURATION, low=1, high=300, whole=True)] = 10.0
    """Time between the starts of two evaluations of a ScalingPolicy, in seconds; each evaluation adds one point to each
    trigger's window.

    Range: 1s to 5m, whole seconds. Default: maestro's autoScalingPeriod, 10s.
    """

    max_scale_up_amount: Annotated[int, Knob(key="max-scale-up-amount", unit=COUNT, low=1)] = 300
    """Maximum number of pods that one decision of a ScalingPolicy adds. Range: from 1. Default: maestro, 300."""

    max_scale_down_amount: int = 30
    """Most pods removed by one change.

    Source: ours, a tenth of the maximum for adding, because cold starts cost more than idle pods. Maestro has no bound.
    """

    failing_pod_refuses_up: Annotated[bool, Knob(key="failing-pod-refuses-up", unit=FLAG)] = False
    """Whether triggers add no pods while a pod cannot start because of an error. Default: maestro's
    preventRoomsCreationWithError, false.
    """

    panic_lock_s: Annotated[float, Knob(key="panic-lock", unit=DURATION, above=0, high=3600)] = 60.0
    """Longest time for which a panic prevents the next panic, in seconds from the start of the first panic. Range:
    above 0 to 1h. Default: maestro's api.limitManager.keyTimeout, 1m.
    """

    occupied_concurrency: float = 0.5
    """Mean requests in flight in its last second from which a pod counts as occupied.

    Source: ours, 0.5, busy for half of the time.
    """

    usage_period_s: Annotated[float, Knob(key="usage-period", unit=DURATION, low=0.5, high=300)] = 5.0
    """Time between two reads of pods' cpu and memory usage, in seconds, while a ScalingPolicy needs the usage. Range:
    500ms to 5m. Default: ours, 5s, two for each point; metrics-server has something new each 15s."""

    quirks: TriggerQuirks = TriggerQuirks()
    """Behaviours of maestro that are off by default, one flag each."""
