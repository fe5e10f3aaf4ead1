"""Computes the pause after consecutive failures: doubled with each, up to a maximum.

Input: how many failures there were. Output: seconds. The caller adds jitter, because it has the random numbers.
"""

# A float overflows at 2^1024. 2^60 pauses of a nanosecond are 36 years, longer than any maximum.
_DOUBLINGS_MAX = 60


def backoff_s(failure_count: int, *, first_s: float, max_s: float) -> float:
    """The pause in seconds after ``failure_count`` consecutive failures.

    Example: ``first_s`` 0.05 and ``max_s`` 1 give 0.05, 0.1, 0.2, 0.4, 0.8, 1, 1 and so on. A count of 0 gives the same
    pause as 1.
    """
    return min(first_s * 2.0 ** min(max(failure_count - 1, 0), _DOUBLINGS_MAX), max_s)
