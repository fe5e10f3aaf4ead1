"""Invariants of the learnt target for any reports, measurements and clocks."""

import math

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.model.knative import TargetMode
from serving.core.model.quantity import Resources
from serving.core.model.stat import Stat
from serving.core.scaling.decision.records import DecisionCause
from serving.core.scaling.learnt.learner import TargetLearner
from serving.core.scaling.revision import ServingContainer
from serving.core.scaling.scaler.scaler import Scaler, StatSource
from serving.core.settings.autoscaler import AdaptiveSettings, AutoscalerSettings
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.unit.core.scaling.scaler_builders import facts_of, revision_with

EXAMPLES = 60
AMOUNT = st.floats(0, 1e12, allow_nan=False)
SMALL = st.floats(0, 2000, allow_nan=False)
RESOURCES = st.builds(
    Resources,
    cpu_m=st.none() | st.integers(0, 10**6),
    memory_bytes=st.none() | st.integers(0, 2**45),
)
EVENT = st.one_of(
    st.tuples(st.just("take"), SMALL | AMOUNT, SMALL | AMOUNT, st.floats(0, 1e4) | AMOUNT),
    st.tuples(st.just("measure"), SMALL | AMOUNT, SMALL | AMOUNT, RESOURCES),
    st.tuples(st.just("update"), st.floats(-1e9, 1e9)),
    st.tuples(st.just("killed")),
    st.tuples(st.just("restart")),
)
LIMITS = st.builds(Resources, cpu_m=st.none() | st.integers(1, 64_000), memory_bytes=st.none() | st.integers(1, 2**40))
ONE_SECOND = AutoscalerSettings(adaptive=AdaptiveSettings(learnt_target_period_s=1.0))


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    events=st.lists(EVENT, max_size=60),
    limits=LIMITS,
    hard=st.integers(0, 200),
    most=st.floats(1, 5000),
    ratio=st.floats(0.01, 1.0),
)
def test_learnt_target_is_within_its_bounds_also_after_restarts(
    events: list[tuple[object, ...]], limits: Resources, hard: int, most: float, ratio: float
) -> None:
    total = float(hard or 100)
    spec = spec_with(container_concurrency=hard, total_value=total, target_value=total * ratio)
    learner = TargetLearner()
    for name, *values in events:
        if name == "take":
            learner.record(*values)  # type: ignore[arg-type]  # as drawn
        elif name == "measure":
            concurrency, ended_count, used = values
            assert isinstance(used, Resources)
            learner.measure(concurrency, ended_count, used=used, limits=limits)  # type: ignore[arg-type]  # as drawn
        elif name == "killed":
            learner.killed()
        elif name == "restart":
            saved = learner.due_save(spec, math.inf)
            learner = TargetLearner()
            if saved is not None:
                learner.load(saved)
        else:
            (now_s,) = values
            assert isinstance(now_s, float)
            learnt = learner.update(spec, limits, period_s=1.0, total_max=most, now_s=now_s)
            if learnt is not None:
                assert 1.0 <= learnt.total <= min(most, hard or math.inf)


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(
    load=st.floats(0.1, 500), answered=st.floats(0, 5000), response_s=st.floats(0.001, 20), max_scale=st.integers(1, 40)
)
def test_scale_by_the_learnt_target_covers_the_load_up_to_max_scale(
    load: float, answered: float, response_s: float, max_scale: int
) -> None:
    revision = msgspec.structs.replace(
        revision_with(spec_with(target_mode=TargetMode.USE, max_scale=max_scale)),
        container=ServingContainer(limits=Resources(cpu_m=1000, memory_bytes=2**27)),
    )
    scaler, scale = Scaler(revision, facts_of(1), ONE_SECOND, is_restart=False, now_s=0.0), 1
    for second in range(30):
        for number in range(scale):
            stat = Stat(
                pod=f"pod-{number}",
                at_s=second + 0.5,
                concurrency=load / scale,
                request_count=answered / scale,
                ended_count=answered / scale,
                response_time_s=response_s,
            )
            scaler.record(stat, StatSource.POD)
            scaler.target.measure(stat, Resources(cpu_m=500, memory_bytes=int(2**20 * (20 + 4 * load / scale))))
        outcome = scaler.tick(facts_of(scale), DecisionCause.PERIOD, second + 1.0)
        scale = outcome.apply_count or scale
        assert 1 <= scale <= max_scale
        # Enough pods for the load at the target in force, except for rounding.
        needed = math.ceil(load / outcome.inputs.spec.target_value - 1e-6)
        assert scale >= min(max_scale, needed)
        # The target never exceeds 1.5 times the load observed on one pod.
        assert outcome.inputs.spec.total_value <= max(100.0, 1.5 * load / 0.7 * (1 + 1e-6))


@settings(max_examples=EXAMPLES, deadline=None)
@given(loads=st.lists(st.floats(0, 300), min_size=1, max_size=40), mode=st.sampled_from(TargetMode))
def test_revision_without_response_times_is_scaled_by_its_own_target(loads: list[float], mode: TargetMode) -> None:
    scalers = [
        Scaler(revision_with(spec_with(target_mode=target_mode)), facts_of(1), ONE_SECOND, is_restart=False, now_s=0.0)
        for target_mode in (mode, TargetMode.OFF)
    ]
    for second, load in enumerate(loads):
        stat = Stat(pod="pod-0", at_s=second + 0.5, concurrency=load, request_count=load, ended_count=load)
        decided = []
        for scaler in scalers:
            scaler.record(stat, StatSource.POD)
            outcome = scaler.tick(facts_of(1), DecisionCause.PERIOD, second + 1.0)
            decided.append((outcome.apply_count, outcome.decided))
        assert decided[0] == decided[1]
