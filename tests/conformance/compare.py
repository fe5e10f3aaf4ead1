"""Compares a result with the original's."""

import math
from collections.abc import Mapping, Sequence


def same(expected: object, value: object, *, relative: float = 0.0, absolute: float = 0.0) -> bool:
    """Deep equality; numbers within the tolerances, booleans only equal to booleans, NaN equal to NaN.

    Keys that only ``got`` has are a difference: an adapter answers just what was asked.
    """
    if isinstance(expected, bool | str | None) or isinstance(value, bool | str | None):
        return type(expected) is type(value) and expected == value
    if isinstance(expected, int | float) and isinstance(value, int | float):
        both_nan = math.isnan(expected) and math.isnan(value)
        return both_nan or expected == value or math.isclose(expected, value, rel_tol=relative, abs_tol=absolute)
    if isinstance(expected, Mapping) and isinstance(value, Mapping):
        return expected.keys() == value.keys() and all(
            same(expected[key], value[key], relative=relative, absolute=absolute) for key in expected
        )
    if isinstance(expected, Sequence) and isinstance(value, Sequence):
        return len(expected) == len(value) and all(
            same(first, other, relative=relative, absolute=absolute)
            for first, other in zip(expected, value, strict=True)
        )
    return False
