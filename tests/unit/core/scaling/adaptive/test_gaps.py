"""Gaps between requests, and the hazard rate computed from them."""

import bisect
import math

import msgspec
import pytest

from serving.core.model.errors import InvalidValue
from serving.core.scaling.adaptive.gaps import (
    BIN_STARTS_S,
    GROUP_COUNT,
    SHIPPED_PRIOR,
    GapHistory,
    GapPrior,
    KeepBounds,
    KeepWindow,
    arrivals_until,
    keep_windows,
)

BOUNDS = KeepBounds(worth_s=100.0, min_s=6.0, max_s=1800.0, bridge_s=60.0, start_s=2.0, pre_warms=True)
DORMANT = msgspec.structs.replace(BOUNDS, dormant_after_s=10.0, dormant_cost=0.2)
LOW, HIGH = 0.001, 0.05


def history_of(*gaps_s: float) -> GapHistory:
    history = GapHistory()
    for gap_s in gaps_s:
        history.record(gap_s)
    return history


def bin_of(age_s: float) -> int:
    return bisect.bisect_right(BIN_STARTS_S, age_s) - 1


def test_hazard_without_gaps_is_prior() -> None:
    hazard = GapHistory().hazard(GapPrior(SHIPPED_PRIOR))

    assert hazard[bin_of(30)] == pytest.approx(SHIPPED_PRIOR[5])


def test_periodic_gaps_raise_hazard_only_at_their_length() -> None:
    hazard = history_of(*[300.0] * 40).hazard(GapPrior(SHIPPED_PRIOR))

    assert hazard[bin_of(300)] > 0.05
    assert hazard[bin_of(100)] < 0.002
    assert hazard[bin_of(200)] < 0.002


def test_recent_gaps_outweigh_old_gaps() -> None:
    prior = GapPrior(SHIPPED_PRIOR)
    changed = history_of(*[300.0] * 100, *[20.0] * 300).hazard(prior)

    assert changed[bin_of(20)] > 0.3
    assert changed[bin_of(300)] < 0.02


def test_weight_of_many_gaps_is_bounded() -> None:
    lasted, ended = history_of(*[20.0] * 5000).ended_between(10.0, 30.0)

    assert lasted == ended == pytest.approx(1 / (1 - 2 ** (-1 / 50)), rel=0.01)


def test_longest_gaps_share_last_bin() -> None:
    lasted, ended = history_of(1e5, 1e6).ended_between(6 * 3600.0, 1e9)

    assert lasted == pytest.approx(2, rel=0.02)
    assert ended == 0


def test_ended_between_counts_gaps_within_time_range() -> None:
    lasted, ended = history_of(5.0, 40.0, 70.0, 500.0).ended_between(30.0, 90.0)

    assert (round(lasted), round(ended)) == (3, 2)


def test_history_round_trips_through_dump() -> None:
    first = history_of(*[60.0, 61.0, 300.0] * 9)
    second = GapHistory()
    second.load(first.dump())

    prior = GapPrior(SHIPPED_PRIOR)
    assert first.hazard(prior) == pytest.approx(second.hazard(prior), rel=0.01)
    assert second.gap_count == round(first.ended_between(0.0, 1e9)[0])


@pytest.mark.parametrize("dumped", [{"x": 1.0}, {"9999": 1.0}, {"3": -1.0}, {"3": float("nan")}, {"3": 1e9}])
def test_invalid_dump_is_rejected(dumped: dict[str, float]) -> None:
    with pytest.raises(InvalidValue, match="a bin of gaps"):
        GapHistory().load(dumped)


def test_dump_with_more_than_100_gaps_is_rejected() -> None:
    with pytest.raises(InvalidValue, match="at most 100 gaps"):
        GapHistory().load({str(index): 90.0 for index in range(200)})


def test_empty_dump_resets_history() -> None:
    history = history_of(3.0)
    history.load({})

    assert history.gap_count == 0


def test_prior_learns_from_recorded_gaps() -> None:
    prior = GapPrior(SHIPPED_PRIOR)
    before = prior.rates
    for _ in range(400):
        prior.record(300.0, weight=1.0)

    group = int(math.log2(300)) + 1
    assert prior.rates[group] > 2 * before[group]
    assert prior.rates[3] < before[3]
    assert len(prior.rates) == GROUP_COUNT


def test_arrivals_are_hazard_accumulated_over_idle_time() -> None:
    hazard = [0.0] * len(BIN_STARTS_S)
    hazard[2], hazard[-2] = 0.5, 0.01
    assert [arrivals_until(hazard, age_s) for age_s in (2.0, 2.5, 3.0, 100.0)] == [0.0, 0.25, 0.5, 0.5]
    assert arrivals_until(hazard, 1e9) == pytest.approx(0.5 + 0.01 * (BIN_STARTS_S[-1] - BIN_STARTS_S[-2]))


def windows(*high: tuple[float, float], bounds: KeepBounds = BOUNDS) -> list[tuple[float, float]]:
    """Windows with a high hazard between these ages; the ends are rounded to bins of 3 %."""
    hazard = [HIGH if any(from_s <= at_s < to_s for from_s, to_s in high) else LOW for at_s in BIN_STARTS_S]
    return [(round(window.from_s), round(window.to_s)) for window in keep_windows([(0, hazard)], bounds)]


def test_keep_window_is_minimum_if_no_request_is_expected() -> None:
    assert windows() == [(0, 6)]


def test_keep_window_lasts_while_requests_are_expected() -> None:
    assert windows((0, 40)) == [(0, 40)]


def test_keep_window_bridges_short_pause() -> None:
    assert windows((0, 20), (40, 49)) == [(0, 49)]


def test_second_window_starts_pod_ahead_after_long_pause() -> None:
    results = windows((0, 20), (300, 400))

    assert len(results) == 2
    assert sum(results, ()) == pytest.approx((0, 20, 300, 400), abs=13)


def test_window_after_pause_requires_pre_warming() -> None:
    assert windows((0, 20), (300, 400), bounds=msgspec.structs.replace(BOUNDS, pre_warms=False)) == [(0, 20)]


def test_window_worth_less_than_a_pod_start_is_dropped() -> None:
    assert windows((300, 309), bounds=msgspec.structs.replace(BOUNDS, start_s=600.0)) == [(0, 6)]


def test_keep_window_ends_at_maximum() -> None:
    assert windows((0, 20000), bounds=msgspec.structs.replace(BOUNDS, max_s=900.0)) == [(0, 900)]


def test_dormant_pod_is_retained_at_lower_request_rate() -> None:
    hazard = [0.3 / BOUNDS.worth_s] * len(BIN_STARTS_S)
    assert tuple(keep_windows([(0, hazard)], BOUNDS)) == (KeepWindow(0.0, 6.0),)
    assert tuple(keep_windows([(0, hazard)], DORMANT)) == (KeepWindow(0.0, DORMANT.kept_max_s),)


def test_dormant_pod_is_not_retained_below_its_cost() -> None:
    hazard = [0.1 / BOUNDS.worth_s] * len(BIN_STARTS_S)
    assert tuple(keep_windows([(0, hazard)], DORMANT)) == (KeepWindow(0.0, 6.0),)


def test_maximum_keep_time_is_bounded_by_cost_of_gap() -> None:
    # 10 s at full cost, and 1,790 s at a fifth of the cost.
    assert DORMANT.kept_max_s == pytest.approx(10.0 + 1790.0 / 0.2)
    assert BOUNDS.kept_max_s == 1800.0
    assert msgspec.structs.replace(DORMANT, dormant_after_s=3600.0).kept_max_s == 1800.0
    assert msgspec.structs.replace(DORMANT, dormant_cost=0.0).kept_max_s == 6 * 3600.0


def test_warming_time_includes_time_until_pod_is_dormant() -> None:
    assert (BOUNDS.warming_s, DORMANT.warming_s) == (2.0, 10.0)
