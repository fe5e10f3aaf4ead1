from serving.tools.dashboard.board import STEP_S, STEPS, Sparklines

Rates = list[float | None]
BUSY, IDLE = "default/busy-00001", "default/idle-00001"
NOTHING: Rates = [None, None, None, None]


def filled(*ticks: tuple[float, dict[str, Rates]]) -> Sparklines:
    found = Sparklines()
    for at_s, rates in ticks:
        found.add(at_s, rates)
    return found


def test_ticks_of_a_step_are_summed_and_steps_follow_each_other() -> None:
    rates: dict[str, Rates] = {BUSY: [3.0, 0.0, None, 1.0], IDLE: NOTHING}
    found = filled((1000.0, rates), (1002.0, rates), (1000.0 + STEP_S, {**rates, BUSY: [2.0, 0.0, 0.0, 0.0]})).read()
    assert (found["step_s"], found["step"]) == (STEP_S, 1020 // STEP_S)
    assert found["ticks"] == [0.0] * (STEPS - 2) + [2.0, 1.0]
    # A revision without requests takes no room on the wire.
    assert found["sums"] == {BUSY: [[0.0] * (STEPS - 2) + [8.0, 2.0], [0.0] * (STEPS - 2) + [2.0, 0.0]]}


def test_steps_without_a_tick_are_empty() -> None:
    rates: dict[str, Rates] = {BUSY: [1.0, None, None, None]}
    found = filled((1000.0, rates), (1000.0 + 3 * STEP_S, rates)).read()
    assert found["ticks"][-4:] == [1.0, 0.0, 0.0, 1.0]
    assert found["sums"][BUSY][0][-4:] == [1.0, 0.0, 0.0, 1.0]


def test_what_is_older_than_all_steps_is_dropped() -> None:
    found = filled((1000.0, {BUSY: [1.0, 0.0, 0.0, 0.0]}), (1000.0 + STEPS * STEP_S, {BUSY: NOTHING})).read()
    assert found["sums"] == {}
    assert len(found["ticks"]) == STEPS


def test_a_clock_that_goes_back_loses_nothing() -> None:
    rates: dict[str, Rates] = {BUSY: [1.0, 0.0, 0.0, 0.0]}
    found = filled((1000.0, rates), (500.0, rates)).read()
    assert found["sums"][BUSY][0][-1] == 2.0


def test_a_deleted_revision_is_forgotten() -> None:
    found = filled((1000.0, {BUSY: [1.0, 0.0, 0.0, 0.0]}), (1002.0, {IDLE: NOTHING})).read()
    assert found["sums"] == {}
