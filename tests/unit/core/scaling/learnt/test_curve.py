import pytest

from serving.core.scaling.learnt.curve import LatencyCurve


def seen(*points: tuple[float, float], seconds: int = 5) -> LatencyCurve:
    """Seconds at each concurrency with its response time; throughput by Little's law."""
    curve = LatencyCurve()
    for in_flight, response_s in points:
        for _ in range(seconds):
            curve.record(in_flight, in_flight / response_s, response_s)
    return curve


def test_curve_without_requests_has_no_knee() -> None:
    assert LatencyCurve().knee() is None


def test_bin_with_few_seconds_is_ignored() -> None:
    assert seen((4.0, 0.01), seconds=2).knee() is None


def test_bin_with_few_requests_is_ignored() -> None:
    curve = LatencyCurve()
    for _ in range(9):
        curve.record(1.0, 1.0, 1.0)
    assert curve.knee() is None


def test_knee_is_idle_response_time_times_maximum_throughput() -> None:
    knee = seen((1.0, 0.02), (4.0, 0.02), (8.0, 0.04), (16.0, 0.08)).knee()

    assert knee is not None
    assert knee.response_s == pytest.approx(0.02, rel=1e-5)
    assert knee.throughput_max == pytest.approx(200.0, rel=1e-5)
    assert knee.top == pytest.approx(16.0, rel=1e-5)
    assert knee.slowdown == pytest.approx(4.0, rel=1e-5)


def test_falling_response_times_are_averaged() -> None:
    # 33 requests a second of 30 ms and 400 of 10 ms: 11.5 ms, at up to 4 in flight.
    knee = seen((1.0, 0.03), (4.0, 0.01), (8.0, 0.02)).knee()

    assert knee is not None
    assert knee.response_s == pytest.approx((33.3 * 0.03 + 400 * 0.01) / 433.3, rel=1e-3)
    assert (knee.bottom, knee.top) == (1.0, 8.0)
    assert knee.top_response_s == pytest.approx(0.02)


def test_faded_seconds_are_ignored() -> None:
    curve = seen((1.0, 0.02), seconds=60)
    curve.fade(0.5)
    curve.fade(0.05)
    assert curve.knee() is None
