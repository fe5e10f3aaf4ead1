from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.scaling.kpa.decide import ScaleDecision, ScalerMode
from serving.settings.activator import ActivatorSettings
from serving.settings.annotations import ScalingAnnotations
from serving.simulator.report import plot, reason_of, summary, timeline
from serving.simulator.world import Engine, Plan, World


def simulated(times_s: list[float], plan: Plan | None = None, *, until_s: float = 200.0) -> World:
    engine = Engine()
    world = World(plan or Plan(), engine)
    for at_s in times_s:
        engine.at(at_s, world.arrive)
    engine.run(until_s)
    return world


def test_an_idle_service_stays_at_zero() -> None:
    world = simulated([], until_s=60)
    assert {moment.scale for moment in world.moments} == {0}
    assert summary(world, 60) == "no request in 60 s"


def test_the_first_request_wakes_one_pod_at_once_and_waits_for_it() -> None:
    world = simulated([10.5], Plan(start_s=1.0, service_s=0.25), until_s=20)
    woken = next(moment for moment in world.moments if moment.scale)
    assert (woken.at_s, woken.scale) == (10.5, 1)
    assert world.latencies_s == [1.25]


def test_silence_for_a_stable_window_brings_it_back_to_zero() -> None:
    world = simulated([10.5])
    last = next(moment.at_s for moment in reversed(world.moments) if moment.scale)
    assert world.scale == 0
    assert 70 <= last <= 80


def test_a_burst_is_panic_and_stays_within_the_maximum() -> None:
    burst = [20 + index / 100 for index in range(2000)]
    world = simulated([1.0, *burst], Plan(scaling=ScalingAnnotations(overrides=(("max_scale", 5),))))
    assert any(
        isinstance(moment.decision, ScaleDecision) and moment.decision.mode is ScalerMode.PANIC
        for moment in world.moments
    )
    assert max(moment.scale for moment in world.moments) == 5


def test_a_queue_that_is_full_refuses() -> None:
    world = simulated([10.0] * 8, Plan(activator=ActivatorSettings(queue_depth_max=5)), until_s=60)
    assert (world.refused_count, len(world.latencies_s)) == (3, 5)


def test_each_change_has_a_line_with_its_reason() -> None:
    world = simulated([10.5])
    lines = list(timeline(world.moments))
    assert sum("0 -> 1" in line and "in flight" in line for line in lines) == 1
    assert sum("1 -> 0" in line and "no load" in line for line in lines) == 1
    assert reason_of(world.moments[0]) == "no load; already at zero"
    assert [line.split()[0] for line in plot(world.moments, 200.0)] == ["requests", "pods"]
    assert summary(world, 200).startswith("1 requests answered, 0 refused; latency median 1.50 s")


@settings(max_examples=25, deadline=None)
@given(
    times_s=st.lists(st.floats(0, 60), max_size=80),
    concurrency=st.integers(0, 4),
    start_s=st.floats(0.01, 5),
    service_s=st.floats(0.01, 5),
)
def test_no_request_is_lost_whatever_comes(
    times_s: list[float], concurrency: int, start_s: float, service_s: float
) -> None:
    plan = Plan(container_concurrency=concurrency, start_s=start_s, service_s=service_s)
    world = simulated(times_s, plan, until_s=1000.0)
    assert len(world.latencies_s) == len(times_s)
    assert world.scale == 0


def test_actions_happen_in_the_order_of_their_times_and_then_of_their_plans() -> None:
    engine = Engine()
    seen: list[tuple[float, str]] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: seen.append((engine.now_s, name))

    for name, at_s in (("c", 3.0), ("a", 1.0), ("b1", 2.0), ("b2", 2.0)):
        engine.at(at_s, note(name))
    engine.run(10.0)
    assert seen == [(1.0, "a"), (2.0, "b1"), (2.0, "b2"), (3.0, "c")]
    assert engine.now_s == 10.0


def test_what_is_planned_for_the_past_happens_next() -> None:
    engine = Engine()
    seen: list[float] = []
    engine.run(5.0)
    engine.at(1.0, lambda: seen.append(engine.now_s))
    engine.run(6.0)
    assert seen == [5.0]


def test_a_beat_comes_at_once_and_then_each_period() -> None:
    engine = Engine()
    seen: list[float] = []
    engine.every(2.0, lambda: seen.append(engine.now_s))
    engine.run(5.0)
    assert seen == [0.0, 2.0, 4.0]


def test_what_lies_beyond_the_end_waits_for_the_next_run() -> None:
    engine = Engine()
    seen: list[float] = []
    engine.at(7.0, lambda: seen.append(engine.now_s))
    engine.run(6.0)
    assert seen == []
    engine.run(8.0)
    assert seen == [7.0]
