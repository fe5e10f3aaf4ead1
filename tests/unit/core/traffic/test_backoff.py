"""The pause after failures in a row."""

import sys

import pytest

from serving.core.traffic.backoff import backoff_s


def test_the_pause_doubles_up_to_its_bound() -> None:
    assert [backoff_s(count, first_s=0.05, max_s=1.0) for count in range(1, 8)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@pytest.mark.parametrize("count", [61, 62, 1_025, 10**6, sys.maxsize, 2**4_000])
def test_any_number_of_failures_has_a_pause(count: int) -> None:
    assert backoff_s(count, first_s=1e-9, max_s=60.0) == 60.0


@pytest.mark.parametrize("count", [-1, 0, 1])
def test_no_failure_counts_as_one(count: int) -> None:
    assert backoff_s(count, first_s=0.05, max_s=1.0) == 0.05


def test_the_bound_holds_for_the_first_pause_too() -> None:
    assert backoff_s(1, first_s=5.0, max_s=2.0) == 2.0


def test_a_pause_of_nothing_stays_so() -> None:
    assert backoff_s(2_000, first_s=0.0, max_s=1.0) == 0.0
