import pytest

from serving.core.scaling.learnt.curve import MemoryLine

MB = 1_000_000


def measured(*points: tuple[float, float]) -> MemoryLine:
    line = MemoryLine()
    for in_flight, used_mb in points:
        line.record(in_flight, used_mb * MB)
    return line


def test_in_flight_maximum_is_free_memory_over_memory_per_request() -> None:
    line = measured(*((count, 24 + 12 * count) for count in (1, 2, 4, 6)))
    assert line.in_flight_max(160 * MB) == pytest.approx(10.0)


def test_noise_lowers_in_flight_maximum() -> None:
    line = measured((1, 40), (1, 32), (4, 76), (4, 68), (6, 100), (6, 92))
    fitting = line.in_flight_max(160 * MB)
    assert fitting == pytest.approx((144 - 24 - 4) / 12)


def test_few_measurements_give_no_maximum() -> None:
    assert measured((1, 30), (4, 60), (6, 90)).in_flight_max(100 * MB) is None


def test_measurements_at_one_concurrency_give_no_maximum() -> None:
    assert measured(*[(4, 60)] * 5).in_flight_max(100 * MB) is None


def test_maximum_near_limit_is_present_concurrency() -> None:
    assert measured(*[(4, 95)] * 5).in_flight_max(100 * MB) == pytest.approx(4.0)


def test_maximum_near_limit_can_be_below_present_concurrency() -> None:
    line = measured((2, 92), (4, 94), (6, 96), (8, 98))
    assert line.in_flight_max(100 * MB) == pytest.approx(1.0)


def test_memory_uncorrelated_with_requests_gives_no_maximum() -> None:
    assert measured((1, 50), (2, 30), (3, 52), (4, 33)).in_flight_max(100 * MB) is None
    assert measured((1, 50), (2, 40), (3, 30), (4, 20)).in_flight_max(100 * MB) is None


def test_old_measurements_are_faded() -> None:
    line = measured(*((count, 24 + 12 * count) for count in (1, 2, 4, 6)))
    line.fade(0.5)
    assert line.in_flight_max(160 * MB) is None
    for count in (1, 3, 5, 7):
        line.record(count, (24 + 6 * count) * MB)
    fitting = line.in_flight_max(160 * MB)
    assert fitting is not None
    assert 10 < fitting < 20
