"""Compares a result with the original's."""

import math
from collections.abc import Mapping, Sequence


def same(expected: object, got: object, *, relative: float = 0.0, absolute: float = 0.0) -> bool:
    """Deep equality; numbers within the tolerances, booleans only equal to booleans, NaN equal to NaN.

    Keys that only ``got`` has are a difference: an adapter answers just what was asked.
    """
    if isinstance(expected, bool | str | None) or isinstance(got, bool | str | None):
        return type(expected) is type(got) and expected == got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        both_nan = math.isnan(expected) and math.isnan(got)
        return both_nan or expected == got or math.isclose(expected, got, rel_tol=relative, abs_tol=absolute)
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        return expected.keys() == got.keys() and all(
            same(expected[key], got[key], relative=relative, absolute=absolute) for key in expected
        )
    if isinstance(expected, Sequence) and isinstance(got, Sequence):
        return len(expected) == len(got) and all(
            same(one, other, relative=relative, absolute=absolute) for one, other in zip(expected, got, strict=True)
        )
    return False
