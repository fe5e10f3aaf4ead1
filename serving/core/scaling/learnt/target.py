"""The learnt target of a revision: its record, whether it is in force, and the scaling numbers that include it.

Input: the learner's ``LearntState``, which the autoscaler saves, and the revision's numbers. Output: a ``LearntTarget``
in the unit of the revision's metric. The autoscaler and the activator's pokes use it.

The learner counts requests in flight. A target in requests a second follows from it by Little's law with the response
time of an idle pod: a pod limited to 8 concurrent requests of 0.1 s processes 80 per second.
"""

import enum
from typing import Annotated

import msgspec

from serving.core.model.errors import UNREADABLE, InvalidValue
from serving.core.model.knative import TargetMode
from serving.core.model.loadmetric import CONCURRENCY, RPS
from serving.core.scaling.spec import ScalingSpec

Known = Annotated[float, msgspec.Meta(gt=0)]

TARGET_MIN = 1.0
"""The smallest target, in requests in flight."""

_METRICS = (CONCURRENCY.name, RPS.name)
# Smallest target in requests a second, as in Knative.
_RATE_MIN = 0.01


class TargetBound(enum.StrEnum):
    """What bounds a pod's concurrency: the response time of requests, the cpu limit, or the memory limit."""

    LATENCY = "latency"
    CPU = "cpu"
    MEMORY = "memory"


class LearntTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A learnt target per pod, before utilisation is applied (as ``ScalingSpec.total_value``).

    ``bound`` is the resource that limits a pod at more than ``above`` requests in flight; both are None if nothing
    does. ``is_used``: the target is in force, rather than only displayed.
    """

    total: float
    bound: TargetBound | None
    above: float | None
    is_used: bool


class LearntState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The learner's saved state: the target, and the measurements behind it. None means unknown.

    ``total``, ``bound`` and ``above`` are those of ``LearntTarget``. ``response_s`` is the response time of an idle
    pod, ``knee`` the concurrency beyond which requests only wait longer. ``cpu_s`` is the cpu time of a request,
    ``memory`` the requests in flight that fit below the memory limit. ``killed`` is half of the fewest requests in
    flight at an OOM kill of a container.
    """

    total: Known | None = None
    bound: TargetBound | None = None
    above: Known | None = None
    response_s: Known | None = None
    knee: Known | None = None
    cpu_s: Known | None = None
    memory: Known | None = None
    killed: Known | None = None


def in_flight(spec: ScalingSpec) -> ScalingSpec:
    """The scaling numbers with the target converted to requests in flight."""
    if spec.metric == CONCURRENCY.name:
        return spec
    total = spec.target_concurrency * spec.total_value / spec.target_value
    return msgspec.structs.replace(
        spec, metric=CONCURRENCY.name, target_value=spec.target_concurrency, total_value=total
    )


def bounded(total: float, spec: ScalingSpec, total_max: float) -> float:
    """Limit a target to at least 1, and at most the hard limit and the overall maximum."""
    high = min(total_max, spec.container_concurrency or total_max)
    return min(max(total, TARGET_MIN), high)


def learnt_target(state: LearntState, spec: ScalingSpec, *, total_max: float) -> LearntTarget | None:
    """The learnt target for a revision's metric; None before anything is known."""
    if state.total is None or spec.metric not in _METRICS or spec.target_mode is TargetMode.OFF:
        return None
    total, above = bounded(state.total, spec, total_max), state.above
    if spec.metric == RPS.name:
        if state.response_s is None:
            return None
        # A memory bound already leaves room; the other bounds are where throughput ends.
        at_most = above if above is not None and state.bound is not TargetBound.MEMORY else total
        total = max(_RATE_MIN, at_most / state.response_s)
        above = None if above is None else above / state.response_s
    is_used = spec.target_mode is TargetMode.USE or (
        spec.target_mode is TargetMode.PROTECT
        and state.bound in (TargetBound.CPU, TargetBound.MEMORY)
        and total < spec.total_value
    )
    return LearntTarget(total=total, bound=state.bound, above=above, is_used=is_used)


def with_target(spec: ScalingSpec, learnt: LearntTarget | None, state: LearntState) -> ScalingSpec:
    """The scaling numbers with the learnt target, if it is in force."""
    if learnt is None or not learnt.is_used:
        return spec
    ratio = spec.target_value / spec.total_value
    concurrency = (state.total or learnt.total) * ratio if spec.metric == RPS.name else learnt.total * ratio
    return msgspec.structs.replace(
        spec, total_value=learnt.total, target_value=learnt.total * ratio, target_concurrency=concurrency
    )


def read_state(text: str) -> LearntState:
    """Parse the saved state. Raises ``InvalidValue``."""
    try:
        return msgspec.json.decode(text, type=LearntState)
    except UNREADABLE as error:
        raise InvalidValue(text=text, expected="a learnt target, as JSON") from error


def with_saved_target(spec: ScalingSpec, text: str, *, total_max: float) -> ScalingSpec:
    """The scaling numbers with the last saved target, if it is in force; an invalid one is ignored."""
    try:
        state = read_state(text) if text else LearntState()
    except InvalidValue:
        return spec
    return with_target(spec, learnt_target(state, spec, total_max=total_max), state)
