"""When a revision should have a pod after its last request."""

import msgspec
import numpy as np
import pytest

from serving.scaling.adaptive.gaps import BIN_STARTS_S
from serving.scaling.adaptive.windows import KeepBounds, keep_windows

BOUNDS = KeepBounds(worth_s=100.0, min_s=6.0, max_s=1800.0, bridge_s=60.0, start_s=2.0, pre_warms=True)
LOW, HIGH = 0.001, 0.05


def windows(*high: tuple[float, float], bounds: KeepBounds = BOUNDS) -> list[tuple[float, float]]:
    """Windows where the hazard is high between these ages; the ends are rounded to bins of 3 %."""
    hazard = np.full(len(BIN_STARTS_S), LOW)
    for from_s, to_s in high:
        hazard[(from_s <= BIN_STARTS_S) & (to_s > BIN_STARTS_S)] = HIGH
    return [(round(one.from_s), round(one.to_s)) for one in keep_windows(hazard, bounds)]


def test_where_no_request_is_expected_a_pod_stays_for_the_shortest_time() -> None:
    assert windows() == [(0, 6)]


def test_a_pod_stays_while_requests_are_expected() -> None:
    assert windows((0, 40)) == [(0, 40)]


def test_a_short_pause_is_bridged() -> None:
    assert windows((0, 20), (40, 49)) == [(0, 49)]


def test_a_pod_is_started_ahead_after_a_long_pause() -> None:
    found = windows((0, 20), (300, 400))

    assert len(found) == 2
    assert sum(found, ()) == pytest.approx((0, 20, 300, 400), abs=13)


def test_without_pre_warming_nothing_comes_after_the_pause() -> None:
    assert windows((0, 20), (300, 400), bounds=msgspec.structs.replace(BOUNDS, pre_warms=False)) == [(0, 20)]


def test_a_window_that_saves_less_than_a_start_costs_is_none() -> None:
    assert windows((300, 309), bounds=msgspec.structs.replace(BOUNDS, start_s=600.0)) == [(0, 6)]


def test_a_pod_never_stays_for_longer_than_the_longest_time() -> None:
    assert windows((0, 20000), bounds=msgspec.structs.replace(BOUNDS, max_s=900.0)) == [(0, 900)]
