import pytest

from serving.core.scaling.kpa.delay import DelayWindow, slot_count


def maxima(wants: list[tuple[float, int]], *, slots: int) -> list[int]:
    window, responses = DelayWindow(), []
    for at_s, count in wants:
        window = window.record(count, slot_count=slots, now_s=at_s)
        responses.append(window.maximum)
    return responses


@pytest.mark.parametrize(("delay_s", "slots"), [(0, 0), (1, 1), (2, 1), (3, 2), (7, 4), (30, 15)])
def test_a_delay_reaches_over_slots_of_two_seconds_rounded_up(delay_s: float, slots: int) -> None:
    assert slot_count(delay_s) == slots


def test_the_largest_count_holds_for_the_delay() -> None:
    # docs/calculations.md: 6 s are 3 slots; 5 at 0 s holds at 2 s and 4 s.
    assert maxima([(0, 5), (2, 1), (4, 1), (6, 1)], slots=3) == [5, 5, 5, 1]


def test_a_larger_count_is_given_at_once() -> None:
    assert maxima([(0, 1), (2, 7)], slots=3) == [1, 7]


def test_within_a_slot_the_largest_count_counts() -> None:
    assert maxima([(10.0, 5), (11.9, 3), (12.0, 1), (14.0, 0)], slots=2) == [5, 5, 5, 1]


def test_a_silence_longer_than_the_delay_forgets_all() -> None:
    assert maxima([(0, 9), (100, 1)], slots=3) == [9, 1]


def test_a_time_that_goes_back_counts_as_the_newest() -> None:
    assert maxima([(20, 2), (10, 5), (22, 1), (26, 1)], slots=3) == [2, 5, 5, 1]


def test_what_can_no_longer_be_the_maximum_is_not_kept() -> None:
    window = DelayWindow()
    for second in range(0, 2000, 2):
        window = window.record(second, slot_count=1800, now_s=second)
    assert window.peaks == ((999, 1998),)


def test_a_slot_keeps_one_count() -> None:
    window = DelayWindow()
    for count in (9, 5, 4, 3):
        window = window.record(count, slot_count=3, now_s=0.0)
    assert window.peaks == ((0, 9),)
