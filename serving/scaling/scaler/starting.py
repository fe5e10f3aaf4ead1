"""What a scaler begins with: the algorithm that its revision asks for, and the gate to zero as the revision was left.

Input: a revision and the pods that it has. Output: a ``Decider``, a ``GateState``. A revision with pods has to be idle for a whole
window again.
"""

from serving.model.knative import ServingState
from serving.scaling.kpa.zero import GatePhase, GateState, InactiveReason
from serving.scaling.resolve import classic_target
from serving.scaling.revision import ScaledRevision
from serving.scaling.scaler.deciders import ClassicDecider, Decider, KpaDecider
from serving.settings.autoscaler import CLASSIC_CLASS, AutoscalerSettings


def decider_of(
    revision: ScaledRevision, settings: AutoscalerSettings, *, present_scale: int, ready_count: int, now_s: float
) -> Decider:
    """The algorithm. ``present_scale`` and ``ready_count`` are held until there is a window of data; 0 holds nothing."""
    if revision.class_name == CLASSIC_CLASS:
        target = classic_target(settings, container_concurrency=revision.container_concurrency)
        return ClassicDecider(settings.classic, target_concurrency=target, present_scale=present_scale, now_s=now_s)
    return KpaDecider(
        revision.spec,
        quirks=settings.quirks,
        ready_count=ready_count,
        present_scale=present_scale,
        now_s=now_s,
    )


def starting_gate(revision: ScaledRevision, *, ready_count: int, now_s: float) -> GateState:
    """The gate as the revision says that it was left."""
    if revision.serving_state is not ServingState.ACTIVE:
        phase, reason = GatePhase.INACTIVE, InactiveReason.NO_TRAFFIC
    elif ready_count and revision.was_ready:
        phase, reason = GatePhase.ACTIVE, None
    else:
        phase, reason = GatePhase.ACTIVATING, InactiveReason.QUEUED
    return GateState(since_s=now_s, phase=phase, reason=reason, is_initialized=revision.was_ready)
