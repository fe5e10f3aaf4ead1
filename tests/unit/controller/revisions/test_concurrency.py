"""The limit of parallel reconciles."""

import pytest

from serving.controller.revisions.concurrency import ConcurrencyLimit


def a_limit() -> ConcurrencyLimit:
    return ConcurrencyLimit(low=8, high=64)


def feed(limit: ConcurrencyLimit, duration_s: float, *, count: int, from_s: float = 0.0) -> None:
    for number in range(count):
        limit.record_call(duration_s, active_count=limit.limit, now_s=from_s + number * 0.01)


def test_limit_doubles_per_round_trip_up_to_its_maximum() -> None:
    limit = a_limit()
    feed(limit, 0.2, count=8)
    assert limit.limit == 16
    feed(limit, 0.2, count=100)
    assert limit.limit == 64


def test_unused_limit_does_not_grow() -> None:
    limit = a_limit()
    for _ in range(100):
        limit.record_call(0.2, active_count=5, now_s=0.0)
    assert limit.limit == 8


def test_slower_calls_lower_the_limit() -> None:
    limit = a_limit()
    feed(limit, 0.05, count=100)
    feed(limit, 0.5, count=10, from_s=10.0)
    assert limit.limit == 48
    feed(limit, 0.5, count=150, from_s=20.0)
    assert limit.limit == 27


def test_limit_grows_by_one_per_round_trip_after_decrease() -> None:
    limit = a_limit()
    feed(limit, 0.05, count=100)
    limit.record_refusal(now_s=10.0)
    assert limit.limit == 48
    feed(limit, 0.05, count=50, from_s=20.0)
    assert limit.limit == 49


def test_refusals_within_a_second_count_once() -> None:
    limit = a_limit()
    feed(limit, 0.05, count=100)
    for number in range(50):
        limit.record_refusal(now_s=10.0 + number * 0.01)
    assert limit.limit == 48
    limit.record_refusal(now_s=12.0)
    assert limit.limit == 36


def test_limit_never_falls_below_its_minimum() -> None:
    limit = a_limit()
    for number in range(100):
        limit.record_refusal(now_s=number * 2.0)
    assert limit.limit == 8


def test_latency_noise_of_fast_server_does_not_lower_limit() -> None:
    limit = a_limit()
    for number in range(200):
        limit.record_call(0.001 if number % 2 else 0.004, active_count=limit.limit, now_s=number * 0.01)
    assert limit.limit == 64


@pytest.mark.parametrize("slower_s", [0.2, 0.3])
def test_slightly_slower_server_does_not_lower_limit(slower_s: float) -> None:
    limit = a_limit()
    feed(limit, 0.15, count=100)
    feed(limit, slower_s, count=1000, from_s=100.0)
    assert limit.limit == 64
