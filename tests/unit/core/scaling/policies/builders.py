"""Small builders for tests of triggers."""

from serving.core.model.quantity import Resources
from serving.core.scaling.policies.points import Points, UsagePoint
from serving.core.scaling.policies.scalingpolicy import Direction, ScalingPolicySpec, Trigger
from serving.core.scaling.policies.tick import TickDecision, TriggerState, decide
from serving.core.scaling.policies.triggertypes import ContainerUse, ObservedPods
from serving.core.settings.triggers import TriggerSettings

SETTINGS = TriggerSettings()


def pods(idle: int = 0, occupied: int = 0, creating: int = 0) -> ObservedPods:
    return ObservedPods(idle_count=idle, occupied_count=occupied, creating_count=creating)


def using(cpu_m: int | None, requested_m: int | None, *, idle: int = 2, occupied: int = 8) -> ObservedPods:
    """Pods with one measured pod of one container."""
    container = ContainerUse(requested=Resources(cpu_m=requested_m), used=Resources(cpu_m=cpu_m))
    return ObservedPods(idle_count=idle, occupied_count=occupied, pods=((container,),))


def trigger(usage: int = 70, *, kind: str = "occupancy", time_s: int = 100, limit: int | None = None) -> Trigger:
    return Trigger(type=kind, usage_percent=usage, time_s=time_s, limit_percent=limit)


def policy(
    up: tuple[Trigger, ...] = (), down: tuple[Trigger, ...] = (), *, min_count: int = 0, max_count: int = 0
) -> ScalingPolicySpec:
    return ScalingPolicySpec(
        min_count=min_count,
        max_count=max_count,
        up=Direction(triggers=up, cooldown_s=300),
        down=Direction(triggers=down, cooldown_s=300),
    )


def points(*usages: float, newest_s: float = 0.0, every_s: float = 10.0) -> Points:
    """Points, newest first, one every 10 s."""
    return tuple(UsagePoint(at_s=newest_s - every_s * index, usage_ratio=usage) for index, usage in enumerate(usages))


def run(
    spec: ScalingPolicySpec,
    observed: ObservedPods,
    state: TriggerState | None = None,
    *,
    now_s: float = 0.0,
    settings: TriggerSettings = SETTINGS,
) -> TickDecision:
    """The decision of one evaluation."""
    return decide(state or TriggerState(), observed, spec, settings=settings, now_s=now_s)[1]


def ran(
    spec: ScalingPolicySpec,
    observed: ObservedPods,
    state: TriggerState | None = None,
    *,
    now_s: float = 0.0,
    settings: TriggerSettings = SETTINGS,
) -> TriggerState:
    """The state after one evaluation."""
    return decide(state or TriggerState(), observed, spec, settings=settings, now_s=now_s)[0]
