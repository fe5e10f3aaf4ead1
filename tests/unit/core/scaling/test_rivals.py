"""Other clients that scale the target of a ScaledWorkload."""

from serving.core.scaling.rivals import RivalWrites


def writes(*times: float) -> RivalWrites:
    state = RivalWrites()
    for at_s in times:
        state = state.add(5, at_s)
    return state


def test_two_writes_within_ten_minutes_are_not_reported() -> None:
    assert writes(0.0, 1.0).sentence(1.0) == ""
    assert writes(0.0, 500.0, 1000.0).sentence(1000.0) == ""


def test_three_writes_within_ten_minutes_are_reported_for_ten_minutes() -> None:
    state = writes(0.0, 500.0, 600.0)
    assert "set replicas 3 times within ten minutes, last to 5" in state.sentence(600.0)
    assert state.sentence(1200.0)
    assert state.sentence(1201.0) == ""
    assert writes(-5000.0, 0.0, 500.0, 600.0).sentence(600.0)
