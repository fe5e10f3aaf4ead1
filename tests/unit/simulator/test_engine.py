from collections.abc import Callable

from serving.simulator.engine import Engine


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
