"""Shares and rounding."""

import numpy as np

from serving.nodes.placement.scores.arrays import rounded, share


def test_share_divides_as_floats() -> None:
    assert share(np.array([1000]), np.array([4000]), of_nothing=1.0).tolist() == [0.25]


def test_share_of_zero_is_the_given_value() -> None:
    assert share(np.array([5, 0]), np.array([0, 0]), of_nothing=1.0).tolist() == [1.0, 1.0]


def test_share_converts_operands_to_float_before_division() -> None:
    part, whole = 3, 9223372036854775
    shares = share(np.array([part]), np.array([whole]), of_nothing=1.0)
    assert shares.tolist() == [float(part) / float(whole)]


def test_share_broadcasts_one_column_over_many() -> None:
    assert share(np.array([[1], [2]]), np.array([[2, 4], [2, 4]]), of_nothing=0.0).tolist() == [[0.5, 0.25], [1, 0.5]]


def test_rounded_rounds_halves_up() -> None:
    assert rounded(np.array([42.5, 43.5, 0.4])).tolist() == [43, 44, 0]


def test_rounded_rounds_below_one_half_down() -> None:
    assert rounded(np.array([0.49999999999999994])).tolist() == [0]
