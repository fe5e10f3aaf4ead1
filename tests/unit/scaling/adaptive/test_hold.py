"""Pods that stay for a while."""

from serving.scaling.adaptive.hold import HeldCount


def held(*wanted: int, patience_s: float = 10.0, period_s: float = 2.0) -> list[int]:
    """What stays after each decision, one each period."""
    count = HeldCount()
    return [count.hold(one, patience_s=patience_s, now_s=index * period_s) for index, one in enumerate(wanted)]


def test_more_pods_come_at_once() -> None:
    assert held(1, 3, 10) == [1, 3, 10]


def test_a_large_step_down_waits_for_the_patience() -> None:
    assert held(10, 2, 2, 2, 2, 2, 2) == [10, 10, 10, 10, 10, 2, 2]


def test_a_small_step_down_waits_for_twice_as_long_more() -> None:
    found = held(10, *[8] * 20)

    assert found.index(8) * 2.0 == 30.0
    assert found[-1] == 8


def test_a_load_that_comes_back_holds_all_of_them_again() -> None:
    assert held(10, *[8] * 8, 10, *[8] * 8) == [10] * 18


def test_nothing_is_held_through_a_time_without_decisions() -> None:
    count = HeldCount()
    count.hold(4, patience_s=10.0, now_s=0.0)

    assert count.hold(3, patience_s=10.0, now_s=3600.0) == 3
    assert count.hold(2, patience_s=10.0, now_s=10.0) == 3


def test_a_line_says_how_many_are_held() -> None:
    count = HeldCount()
    count.hold(4, patience_s=10.0, now_s=0.0)

    assert repr(count) == "HeldCount(4 pods)"
