"""Summarises a decision, also a repeated one, as a few numbers for charts.

Input: a decision and the latest reports of pods. Output: a flat record with its sentence, so that numbers and reason
are of the same decision. ``running`` is the load in flight in pods. ``waiting``, ``held`` in JSON, is the load waiting
in activators: all reported load minus ``running``.
"""

from collections.abc import Mapping

import msgspec

from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.classic.classic import ClassicDecision, ClassicMode
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.kpa.decide import ScaleDecision, ScalerMode

# Most pods in a sample; a page cannot display more.
_PODS_MAX = 200


class DecisionSample(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers at ``at_wall_s``, in seconds since the epoch. Concurrencies are requests in flight, counts are pods."""

    namespace: str
    revision: str
    at_wall_s: float
    running: float
    waiting: float = msgspec.field(name="held")
    observed_stable: float | None
    observed_panic: float | None
    target: float
    """Target load of all ready pods together, in the metric's unit."""

    learnt_target: float | None
    """Learnt target of requests in flight per pod, before utilisation; None without data."""

    learnt_target_bound: str | None
    """What bounds the learnt target: latency, cpu or memory; None if nothing does."""

    is_learnt_target_used: bool
    """Whether the learnt target is in force."""

    desired_count: int | None
    """Pods wanted by the deciders, before the gate to zero; None without data."""

    wanted_count: int
    """Pods wanted after the gate, as in the sentence; the present pods without data."""

    sentence: str
    """The decision explained."""

    present_scale: int
    ready_count: int
    is_panic: bool
    phase: str
    requests: float
    """Requests in the last second."""

    pods: dict[str, float]
    """Requests in flight by pod, for the first 200 pods by name."""

    valid_s: float = 0.0
    """How long the sample is valid unless something changes, in seconds; 0 means one period."""


def sample_of(
    outcome: ScalerOutcome,
    pods: Mapping[str, Stat],
    sentence: str,
    *,
    key: tuple[str, str],
    at_wall_s: float,
    valid_s: float,
) -> DecisionSample:
    """The sample of a decision. ``sentence`` explains the decision.

    ``valid_s`` is how long the sample is valid unless something changes, in seconds; 0 means one period.
    """
    detail = outcome.decided.detail
    stable = panic = None
    target, is_panic = outcome.inputs.spec.target_value, False
    if isinstance(detail, ScaleDecision):
        stable, panic = detail.observed_stable, detail.observed_panic
        is_panic = detail.mode is ScalerMode.PANIC
    elif isinstance(detail, ClassicDecision):
        stable, panic = detail.observed_stable_concurrency, detail.observed_panic_concurrency
        target, is_panic = detail.target_concurrency, detail.mode is ClassicMode.PANIC
    running = sum(stat.concurrency for stat in pods.values())
    merged, learnt, wanted = outcome.merged, outcome.inputs.learnt, outcome.gate.wanted
    return DecisionSample(
        namespace=key[0],
        revision=key[1],
        at_wall_s=at_wall_s,
        running=running,
        waiting=max(0.0, outcome.present.concurrency - running),
        observed_stable=stable,
        observed_panic=panic,
        target=target * outcome.view.ready_count,
        learnt_target=None if learnt is None else learnt.total,
        learnt_target_bound=None if learnt is None else learnt.bound,
        is_learnt_target_used=learnt is not None and learnt.is_used,
        desired_count=None if isinstance(merged, NoData) else merged.desired_count,
        wanted_count=outcome.view.present_scale if isinstance(wanted, NoData) else wanted,
        sentence=sentence,
        present_scale=outcome.view.present_scale,
        ready_count=outcome.view.ready_count,
        is_panic=is_panic,
        phase=outcome.phase,
        requests=outcome.present.request_count,
        pods={name: pods[name].concurrency for name in sorted(pods)[:_PODS_MAX]},
        valid_s=valid_s,
    )
