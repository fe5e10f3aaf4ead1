"""The mean number of tokens in flight."""

from serving.queueproxy.tokens import TokenMeter


def test_the_mean_in_flight_is_weighted_by_time_and_carried_over() -> None:
    meter = TokenMeter(10.0)
    assert meter.report(10.0) == 0.0
    meter.arrive("a", 1000, 10.5)
    assert meter.report(11.0) == 500.0
    meter.arrive("b", 0, 11.0)
    meter.arrive("c", 200, 11.5)
    meter.exit("a", 11.5)
    meter.exit("b", 11.5)
    meter.exit("unknown", 11.5)
    assert meter.report(12.0) == 600.0
    # No time has passed, and a clock that went back changes nothing.
    assert meter.report(11.0) == 200.0
    meter.exit("c", 12.0)
    assert meter.report(13.0) == 0.0
