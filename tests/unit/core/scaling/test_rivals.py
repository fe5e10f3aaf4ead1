"""Other clients that scale the target of a ScaledWorkload."""

from serving.core.scaling.rivals import RivalWrites


def writes(*times: float) -> RivalWrites:
    state = RivalWrites()
    for at_s in times:
        state = state.add(5, at_s)
    return state


def test_a_user_who_scales_once_or_twice_is_no_rival() -> None:
    assert writes(0.0, 1.0).sentence(1.0) == ""
    assert writes(0.0, 500.0, 1000.0).sentence(1000.0) == ""


def test_three_times_within_ten_minutes_are_a_fight_for_ten_minutes_more() -> None:
    state = writes(0.0, 500.0, 600.0)
    assert "set replicas 3 times within ten minutes, last to 5" in state.sentence(600.0)
    assert state.sentence(1200.0)
    assert state.sentence(1201.0) == ""
    assert writes(-5000.0, 0.0, 500.0, 600.0).sentence(600.0)
