import pytest

from serving.core.scaling.kpa.delay import DelayWindow, slot_count


def maxima(wants: list[tuple[float, int]], *, slots: int) -> list[int]:
    window, responses = DelayWindow(), []
    for at_s, count in wants:
        window = window.record(count, slot_count=slots, now_s=at_s)
        responses.append(window.maximum)
    return responses


@pytest.mark.parametrize(("delay_s", "slots"), [(0, 0), (1, 1), (2, 1), (3, 2), (7, 4), (30, 15)])
def test_delay_spans_two_second_slots_rounded_up(delay_s: float, slots: int) -> None:
    assert slot_count(delay_s) == slots


def test_silence_longer_than_delay_clears_maximum() -> None:
    assert maxima([(0, 9), (100, 1)], slots=3) == [9, 1]


def test_backward_clock_step_counts_as_latest_time() -> None:
    assert maxima([(20, 2), (10, 5), (22, 1), (26, 1)], slots=3) == [2, 5, 5, 1]


def test_slot_retains_only_its_maximum() -> None:
    window = DelayWindow()
    for count in (9, 5, 4, 3):
        window = window.record(count, slot_count=3, now_s=0.0)
    assert window.peaks == ((0, 9),)
