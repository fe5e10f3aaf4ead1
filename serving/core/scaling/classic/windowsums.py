"""What the classic algorithm reads from its points."""

import msgspec

# Times are compared in whole nanoseconds, as by Knative of June 2018, so that float rounding does not decide at the
# window's edge.
NANOSECONDS_PER_SECOND = 1_000_000_000


class WindowSums(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of concurrency in the stable and the panic window, and the numbers of their points and pods.

    ``stable_sum`` is rounded differently from a sum in order; their relative difference is at most
    ``stable_error_ratio``. ``traffic_at_ns`` is the time of the newest point with traffic that no earlier reading
    contained; None without one.
    """

    stable_sum: float
    stable_error_ratio: float
    stable_point_count: int
    stable_pod_count: int
    panic_sum: float
    panic_point_count: int
    traffic_at_ns: int | None
