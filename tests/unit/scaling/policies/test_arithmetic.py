"""Shares and percents, exact and in 32 bits."""

import math
from fractions import Fraction

import pytest

from serving.model.nodata import NoData
from serving.scaling.policies.arithmetic import bound_ratio, fraction_of_percent, round_half_away, share_of, single
from serving.settings.triggers import ORIGINAL, TriggerQuirks

EXACT = TriggerQuirks()
BY_ZERO = TriggerQuirks(divides_by_zero=True)


@pytest.mark.parametrize(
    ("number", "rounded"),
    [(0.7, 0.699999988079071), (0.5, 0.5), (16_777_217.0, 16_777_216.0), (math.inf, math.inf)],
)
def test_single_is_the_nearest_32_bit_float(number: float, rounded: float) -> None:
    assert single(number) == rounded


def test_a_share_is_exact() -> None:
    assert share_of([1, 2], [4, 2], EXACT) == Fraction(1, 2)


def test_a_share_of_the_original_is_rounded_to_32_bits() -> None:
    assert share_of([7], [10], ORIGINAL) == 0.699999988079071


def test_sums_of_the_original_lose_what_32_bits_cannot_hold() -> None:
    assert share_of([16_777_216, 1], [16_777_216], ORIGINAL) == 1.0


def test_a_share_of_nothing_is_no_data() -> None:
    assert share_of([1], [0], EXACT) == NoData(missing="something that usage could be a share of")


@pytest.mark.parametrize("quirks", [ORIGINAL, BY_ZERO])
def test_one_of_nothing_is_infinite_in_the_original(quirks: TriggerQuirks) -> None:
    assert share_of([1], [0], quirks) == math.inf


@pytest.mark.parametrize("quirks", [ORIGINAL, BY_ZERO])
def test_nothing_of_nothing_is_not_a_number_in_the_original(quirks: TriggerQuirks) -> None:
    share = share_of([], [], quirks)
    assert isinstance(share, float)
    assert math.isnan(share)


def test_a_percentage_to_compute_with_is_exact() -> None:
    assert (fraction_of_percent(70, EXACT), fraction_of_percent(70, ORIGINAL)) == (Fraction(7, 10), 0.7)


def test_a_percentage_to_compare_with_has_the_precision_of_usages() -> None:
    assert (bound_ratio(70, EXACT), bound_ratio(70, ORIGINAL)) == (0.7, 0.699999988079071)


def test_7_of_10_is_on_a_bound_of_70_percent_in_both_precisions() -> None:
    shares = [share_of([7], [10], quirks) for quirks in (EXACT, ORIGINAL)]
    assert [float(share) for share in shares if not isinstance(share, NoData)] == [
        bound_ratio(70, EXACT),
        bound_ratio(70, ORIGINAL),
    ]


@pytest.mark.parametrize(
    ("number", "whole"),
    [
        (2.5, 3),
        (-2.5, -3),
        (2.4, 2),
        (-2.4, -2),
        (0, 0),
        (0.49999999999999994, 0),
        (Fraction(5, 2), 3),
        (Fraction(-5, 2), -3),
        (Fraction(-1, 3), 0),
    ],
)
def test_halves_are_rounded_away_from_zero(number: float | Fraction, whole: int) -> None:
    assert round_half_away(number) == whole
