"""The classic scaler, against a naive transcription of its specification and its invariants."""

import math

from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.classic.classic import ClassicDecision, ClassicMode, ClassicScaler
from serving.core.scaling.classic.points import Points
from serving.core.settings.classic import ORIGINAL, ClassicQuirks, ClassicSettings
from tests.property.naive.classic import NaiveClassic

# Quarters and eighths of a second, and loads with exact sums, so that two implementations with another order of
# addition agree to the bit.
TIMES = st.integers(0, 8 * 400).map(lambda eighths: eighths / 8)
LOADS = st.integers(0, 640).map(lambda tenths: tenths / 16)
STATS = st.builds(
    Stat,
    pod=st.sampled_from(["a", "b", "c", "d"]),
    at_s=TIMES,
    concurrency=LOADS,
    request_count=st.sampled_from([0, 1]),
)
EVENTS = st.lists(st.one_of(STATS, TIMES), max_size=60)


@given(events=EVENTS, target=st.sampled_from([0.5, 1.0, 10.0]), panic_window_s=st.sampled_from([6.0, 60.0, 90.0]))
def test_classic_scaler_equals_the_naive_transcription(
    events: list[Stat | float], target: float, panic_window_s: float
) -> None:
    settings = ClassicSettings(quirks=ORIGINAL, panic_window_s=panic_window_s)
    ours = ClassicScaler(started_s=0.0)
    naive = NaiveClassic(target=target, rate=10.0, stable_s=60.0, panic_s=panic_window_s, zero_s=300.0)
    for event in events:
        if isinstance(event, Stat):
            ours.record(event)
            naive.record(event)
            continue
        decision = ours.decide(settings, target_concurrency=target, now_s=event)
        results = (0, False) if isinstance(decision, NoData) else (decision.desired_count, True)
        assert results == naive.scale(event)
        assert ours.panic_count_max == naive.panic_max
        assert ours.point_count == len(naive.points)


@given(loads=st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_fast_sum_error_is_within_its_bound(loads: list[float]) -> None:
    points = Points()
    for index, load in enumerate(loads):
        points.record(Stat(pod="a", at_s=index / 8, concurrency=load, request_count=1.0))
    sums = points.read(now_s=30.0, stable_window_s=60.0, panic_window_s=6.0, quirks=ClassicQuirks())
    in_order = 0.0
    for load in reversed(loads):
        in_order += load
    assert points.stable_sum_in_order() == in_order
    assert abs(sums.stable_sum - in_order) <= sums.stable_error_ratio * sums.stable_sum


@given(loads=st.lists(st.floats(0, 1000), min_size=1, max_size=30), target=st.floats(0.01, 100))
def test_stable_count_is_the_ceiling_of_the_ordered_sum(loads: list[float], target: float) -> None:
    scaler = ClassicScaler(started_s=0.0)
    in_order = 0.0
    for index, load in enumerate(loads):
        scaler.record(Stat(pod="a", at_s=float(index), concurrency=load, request_count=1))
    for load in reversed(loads):
        in_order += load
    decision = scaler.decide(ClassicSettings(), target_concurrency=target, now_s=50.0)
    assert isinstance(decision, ClassicDecision)
    assert decision.mode is ClassicMode.STABLE
    assert decision.desired_count == max(1, math.ceil(min(in_order / len(loads) / target, 10.0)))


@given(events=EVENTS)
def test_panic_never_lowers_the_count_and_the_rate_bounds_it(events: list[Stat | float]) -> None:
    settings = ClassicSettings()
    scaler = ClassicScaler(started_s=0.0)
    before: ClassicDecision | None = None
    for event in events:
        if isinstance(event, Stat):
            scaler.record(event)
            continue
        decision = scaler.decide(settings, target_concurrency=1.0, now_s=event)
        if isinstance(decision, NoData):
            continue
        assert decision.desired_count >= 0
        if decision.mode is ClassicMode.STABLE:
            assert decision.desired_count <= 10 * decision.observed_pod_count
        if decision.mode is ClassicMode.PANIC and before and before.mode is ClassicMode.PANIC:
            restarted = decision.panic_count_max < before.panic_count_max
            assert decision.desired_count >= before.desired_count or restarted
        before = decision


@given(load=LOADS, more=LOADS)
def test_more_load_never_lowers_the_count(load: float, more: float) -> None:
    def respond(concurrency: float) -> int:
        scaler = ClassicScaler(started_s=0.0)
        scaler.record(Stat(pod="a", at_s=1.0, concurrency=concurrency, request_count=1))
        decision = scaler.decide(ClassicSettings(), target_concurrency=1.0, now_s=2.0)
        assert isinstance(decision, ClassicDecision)
        return decision.desired_count

    assert respond(load + more) >= respond(load)
