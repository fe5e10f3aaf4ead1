"""The arrays shared by all node scores: two rows, cpu above memory, with one column per node.

A pod is scored on all nodes in one operation, with one formula for both resources. Amounts are int64 (millicores in the
first row, bytes in the second); shares and risks are float64. A pod is an array with one column.
"""

import enum

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# Largest amount in an array, so that a node's content plus a pod's request fits into int64.
AMOUNT_MAX = 2**62 - 1


class Resource(enum.StrEnum):
    """The scored resources, in the order of the rows."""

    CPU = "cpu"
    MEMORY = "memory"


def share(part: IntArray, whole: IntArray, *, of_nothing: float) -> FloatArray:
    """``part / whole`` as float64, and ``of_nothing`` where the whole is 0: 1000 of 4000 is 0.25.

    As in the scheduler plugins, both are converted to float64 before the division. Python's division of exact integers
    differs in the last bit above 2**53.
    """
    shares = np.full(np.broadcast_shapes(part.shape, whole.shape), of_nothing)
    np.divide(part.astype(np.float64), whole.astype(np.float64), out=shares, where=whole > 0)
    return shares


def rounded(values: FloatArray) -> IntArray:
    """The nearest whole numbers, halves rounded up: 42.5 is 43. Values must not be negative.

    ``floor(value + 0.5)`` would round up values just below a half, and numpy's own function rounds 42.5 to 42.
    """
    whole = np.floor(values)
    return (whole + (values - whole >= 0.5)).astype(np.int64)
