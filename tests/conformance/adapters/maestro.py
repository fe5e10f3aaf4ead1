"""Cases of the trigger autoscaler of topfreegames/maestro v9 (dbbfd74), format in its spec, section 13.

Kinds: ``delta`` (usage and amount of one policy), ``scale_up_amount`` and ``scale_down_amount`` (min and max on one
amount), ``points`` (do enough count), ``capacity`` (points in a time), ``tick`` (a whole evaluation), ``panic_scale``.

Not a number is written "NaN", infinity "+Inf"; an amount that the original leaves undefined is null. What a tick
creates and deletes is after min, max and the cap of 300, without regard to idle and pending pods.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from serving.core.model.nodata import NoData
from serving.core.model.quantity import Resources
from serving.core.scaling.policies.apply import bounded_down_amount, bounded_up_amount, exceeds_panic_limit
from serving.core.scaling.policies.points import (
    ScaleWay,
    UsagePoint,
    counted_points,
    examined_points,
    point_capacity,
    point_window,
)
from serving.core.scaling.policies.scalingpolicy import Direction, ScalingPolicySpec, Trigger, type_of_today
from serving.core.scaling.policies.tick import TriggerPhase, TriggerState, decide
from serving.core.scaling.policies.triggertypes import REGISTRY, ContainerUse, ObservedPods, bound_ratio, single
from serving.core.settings.triggers import ORIGINAL, TriggerSettings
from tests.conformance.compare import same

Json = dict[str, Any]
USAGE_ABSOLUTE = 1e-9
WAYS = {"up": ScaleWay.UP, "down": ScaleWay.DOWN}

# What the original calls the types whose names differ here.
ORIGINAL_TYPES = {"occupancy": "room", "fixed-step": "legacy"}


def expected(case: Json) -> Json:
    """The compared part: "expect" without the remark."""
    return {key: value for key, value in case["expect"].items() if key != "note"}


def agrees(wanted: Json, fields: Json) -> bool:
    """All exact; usages, printed as 64-bit numbers, within 1e-9. Only requested fields are compared."""
    return all(key in fields and same(value, fields[key], absolute=USAGE_ABSOLUTE) for key, value in wanted.items())


def result_of(case: Json) -> Json:
    """Run a case of any kind."""
    return RESULTS[case["kind"]](case["in"])


def _delta(entry: Json) -> Json:
    policy = REGISTRY[type_of_today(entry["type"])]
    trigger = Trigger(
        type=entry["type"], usage_percent=entry.get("target_usage", 0), delta=entry.get("trigger_delta", 0)
    )
    observed = _observed(entry)
    usage = policy.usage_ratio(observed, ORIGINAL)
    delta = policy.delta(trigger, observed, ORIGINAL)
    return {"delta": None if isinstance(delta, NoData) else delta, "utilization": _written(usage)}


def _scale_up_amount(entry: Json) -> Json:
    amount = bounded_up_amount(
        entry["amount"], current_count=entry["current"], min_count=entry["min"], max_count=entry["max"]
    )
    return {"amount": amount}


def _scale_down_amount(entry: Json) -> Json:
    amount = bounded_down_amount(
        entry["amount"], current_count=entry["current"], min_count=entry["min"], max_count=entry["max"]
    )
    return {"amount": amount}


def _points(entry: Json) -> Json:
    # A period of 1 s makes the capacity the time.
    settings = TriggerSettings(period_s=1.0, quirks=ORIGINAL)
    trigger = Trigger(usage_percent=entry["usage"], threshold_percent=entry["threshold"], time_s=entry["capacity"])
    window = point_window(trigger, settings)
    points = examined_points(_read_points(entry["points_newest_first"]), window, 0.0)
    target_ratio = bound_ratio(entry["usage"], ORIGINAL)
    return {"triggered": counted_points(points, WAYS[entry["direction"]], target_ratio) >= window.needed_count}


def _capacity(entry: Json) -> Json:
    return {"points": point_capacity(entry["time"], entry["watcher_period_s"])}


def _tick(entry: Json) -> Json:
    settings = TriggerSettings(period_s=float(entry["watcher_period_s"]), quirks=ORIGINAL)
    spec = ScalingPolicySpec(
        min_count=entry["min"],
        max_count=entry["max"],
        up=_direction(entry.get("up") or {}, ScaleWay.UP),
        down=_direction(entry.get("down") or {}, ScaleWay.DOWN),
    )
    observed = _observed(entry)
    before = TriggerState(
        phase=TriggerPhase(entry["state"]),
        last_change_at_s=-float(entry["seconds_since_last_scale"]),
        points={
            type_of_today(kind): _read_points(points) for kind, points in (entry.get("points_before") or {}).items()
        },
    )
    after, decision = decide(before, observed, spec, settings=settings, now_s=0.0)
    delta = decision.change.wanted_delta
    bounds = {"current_count": observed.available_count, "min_count": spec.min_count, "max_count": spec.max_count}
    return {
        "changed_state": decision.phase_changed,
        "delta": delta,
        "in_sync": decision.in_sync,
        "points_stored_after": {ORIGINAL_TYPES.get(kind, kind): len(points) for kind, points in after.points.items()},
        "rooms_to_create": min(bounded_up_amount(delta, **bounds), settings.max_scale_up_amount) if delta > 0 else 0,
        "rooms_to_delete": bounded_down_amount(-delta, **bounds) if delta < 0 else 0,
        "state_after": str(after.phase),
        "state_changed_now": decision.phase_changed,
    }


def _panic_scale(container_status: Json) -> Json:
    observed = ObservedPods(
        creating_count=container_status["creating"],
        idle_count=container_status["ready"],
        occupied_count=container_status["occupied"],
    )
    return {"panic": exceeds_panic_limit(observed, container_status["limit"])}


RESULTS: Mapping[str, Callable[[Json], Json]] = {
    "delta": _delta,
    "scale_up_amount": _scale_up_amount,
    "scale_down_amount": _scale_down_amount,
    "points": _points,
    "capacity": _capacity,
    "tick": _tick,
    "panic_scale": _panic_scale,
}


def _observed(entry: Json) -> ObservedPods:
    creating, ready, occupied, _terminating = entry["rooms_creating_ready_occupied_terminating"]
    return ObservedPods(
        creating_count=creating,
        idle_count=ready,
        occupied_count=occupied,
        pods=tuple(tuple(_container(container) for container in pod) for pod in entry.get("pods") or ()),
    )


def _container(container: Json) -> ContainerUse:
    used = Resources()
    if not container.get("no_metric"):
        used = Resources(cpu_m=container.get("usage_cpu_m", 0), memory_bytes=container.get("usage_mem_bytes", 0))
    return ContainerUse(
        requested=Resources(
            cpu_m=_requested(container, "request_cpu_m"), memory_bytes=_requested(container, "request_mem_bytes")
        ),
        used=used,
    )


def _requested(container: Json, key: str) -> int | None:
    amount: int = container.get(key, -1)
    return None if amount < 0 else amount


def _direction(entry: Json, way: ScaleWay) -> Direction:
    """A direction; without any trigger the original has an old-style one of zeros."""
    sign = 1 if way is ScaleWay.UP else -1
    delta = entry.get("delta", 0)
    triggers = tuple(_trigger(trigger, way, sign * delta) for trigger in entry.get("metrics_trigger") or ())
    old = _trigger({**(entry.get("trigger") or {}), "type": "room"}, way, 0)
    return Direction(triggers=triggers, cooldown_s=entry.get("cooldown", 0), delta=delta, trigger=old)


def _trigger(entry: Json, way: ScaleWay, delta: int) -> Trigger:
    limit = entry.get("limit", 0)
    return Trigger(
        type=entry["type"],
        usage_percent=entry.get("usage", 0),
        threshold_percent=entry.get("threshold", 0),
        time_s=entry.get("time", 0),
        limit_percent=limit if way is ScaleWay.UP and limit > 0 else None,
        delta=entry.get("delta", delta),
    )


def _read_points(written: list[Any]) -> tuple[UsagePoint, ...]:
    """Points as the original reads them back: decimal text to 32 bits. Their times are not looked at."""
    return tuple(UsagePoint(at_s=0.0, usage_ratio=single(float(value))) for value in written)


def _written(usage: float | NoData) -> float | str:
    if isinstance(usage, NoData):
        return msgspec.json.encode(usage).decode()
    if math.isnan(usage):
        return "NaN"
    return ("+Inf" if usage > 0 else "-Inf") if math.isinf(usage) else usage
