"""The pause after consecutive failures."""

import sys

import pytest

from serving.core.traffic.backoff import backoff_s


def test_backoff_doubles_up_to_maximum() -> None:
    assert [backoff_s(count, first_s=0.05, max_s=1.0) for count in range(1, 8)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@pytest.mark.parametrize("count", [61, 62, 1_025, 10**6, sys.maxsize, 2**4_000])
def test_backoff_of_many_failures_is_maximum(count: int) -> None:
    assert backoff_s(count, first_s=1e-9, max_s=60.0) == 60.0


@pytest.mark.parametrize("count", [-1, 0, 1])
def test_count_below_1_counts_as_1(count: int) -> None:
    assert backoff_s(count, first_s=0.05, max_s=1.0) == 0.05


def test_first_backoff_is_at_most_maximum() -> None:
    assert backoff_s(1, first_s=5.0, max_s=2.0) == 2.0


def test_zero_backoff_remains_zero() -> None:
    assert backoff_s(2_000, first_s=0.0, max_s=1.0) == 0.0
