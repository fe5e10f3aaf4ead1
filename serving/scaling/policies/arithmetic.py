"""Shares and percents: exact by default, in the original's 32-bit floats on request.

Exact means ``fractions.Fraction`` wherever a pod count follows from a number, so that no rounding error of a binary
fraction ever becomes a pod. Where shares are only compared, they are correctly rounded floats: of two shares with
parts below a hundred million, equal ones are the same float, and different ones keep their order.

Single precision is ``struct``'s format "f": it rounds to the nearest 32-bit float as hardware does, and one operation
on such numbers, done in 64 bits and then rounded, is what 32-bit hardware gives. So numpy is not needed for it.
"""

import math
import struct
from collections.abc import Sequence
from fractions import Fraction

from serving.model.nodata import NoData
from serving.settings.triggers import TriggerQuirks

Share = Fraction | float

_SINGLE = struct.Struct("f")


def single(number: float) -> float:
    """The nearest 32-bit float: 0.7 is 0.699999988079071."""
    rounded: float = _SINGLE.unpack(_SINGLE.pack(number))[0]
    return rounded


def share_of(parts: Sequence[int], wholes: Sequence[int], quirks: TriggerQuirks) -> Share | NoData:
    """Sum of the parts over the sum of the wholes: ([1, 2], [4, 2]) is 1/2.

    NoData if the wholes add up to 0. Original: terms and running sums in 32 bits, and 0/0 is not a number, 1/0 infinite.
    """
    part, whole = _sum(parts, quirks), _sum(wholes, quirks)
    if whole:
        return single(part / whole) if quirks.single_precision else Fraction(part) / Fraction(whole)
    if quirks.divides_by_zero:
        return math.inf if part else math.nan
    return NoData(missing="something that usage could be a share of")


def _sum(terms: Sequence[int], quirks: TriggerQuirks) -> float:
    if not quirks.single_precision:
        return sum(terms)
    total = 0.0
    for term in terms:
        total = single(total + single(term))
    return total


def fraction_of_percent(percent: int, quirks: TriggerQuirks) -> Share:
    """A percentage to compute with: 70 is 7/10; original: the float 0.7."""
    return percent / 100 if quirks.single_precision else Fraction(percent, 100)


def bound_ratio(percent: int, quirks: TriggerQuirks) -> float:
    """A percentage to compare usages with: 70 is 0.7; original: in 32 bits, 0.699999988079071."""
    return single(percent / 100) if quirks.single_precision else percent / 100


def round_half_away(number: Share) -> int:
    """The nearest whole number, halves away from zero: 2.5 is 3, -2.5 is -3. ``number`` is finite."""
    whole = math.trunc(number)
    rest = number - whole
    if -0.5 < rest < 0.5:
        return whole
    return whole + 1 if rest > 0 else whole - 1
