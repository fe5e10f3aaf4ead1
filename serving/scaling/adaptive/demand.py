"""Requests in flight that a load needs slots for, where some of them only wait for a slot.

Input: the requests in flight and the arrivals of each second, and the slots of ready pods. Output: the load as it would be if
no request waited, and the mean time that a request takes. While no request waits, both follow from the figures. While some
wait, the number in flight says little: one pod of 10 slots answers a queue of 60 requests of 0.25 s within 2 s. The load is
then that of arrivals that are served at once. It approaches the rate of arrivals times the time of a request. What has waited
in each of the last seconds is load too.
"""

import math

# Time constant of the mean time of a request, in seconds with load.
_MEAN_S = 120.0
_KEPT = math.exp(-1.0 / _MEAN_S)
# Requests that have to be answered before their mean time is believed.
_ANSWERED_MIN = 5.0
_SHORTEST_S = 1e-3
# Seconds after which a queue is load: clients that send their next request after the last one is answered keep it up.
_LASTING_S = 6


class ServedLoad:
    """The load of one revision, second by second."""

    __slots__ = ("_answered", "_area_s", "_inside", "_load", "_second", "_waiting")

    def __init__(self) -> None:
        self._area_s = self._answered = 0.0
        self._inside = self._load = 0.0
        self._second = 0
        self._waiting: list[float] = []

    def __repr__(self) -> str:
        return f"ServedLoad({self._load:.2f} in flight)"

    @property
    def request_s(self) -> float | None:
        """Mean time that a request takes in a pod, in seconds; None while too few were answered."""
        return max(_SHORTEST_S, self._area_s / self._answered) if self._answered >= _ANSWERED_MIN else None

    def take(self, second: int, concurrency: float, request_count: float, *, slot_count: float) -> float:
        """The load of a second that is over, in requests in flight; seconds that are left out had none."""
        if second > self._second + 1:
            self._answered += self._inside
            self._inside = self._load = 0.0
            self._waiting.clear()
        waiting, over = self._waiting, concurrency - slot_count
        waiting.append(over if over > 0 else 0.0)
        if len(waiting) > _LASTING_S:
            del waiting[0]
        # At the end of the second half of its arrivals may be inside beyond the mean.
        inside = concurrency + request_count / 2.0
        if slot_count > 0:
            self._area_s = self._area_s * _KEPT + min(concurrency, slot_count)
            self._answered = self._answered * _KEPT + max(0.0, request_count + self._inside - inside)
        # Of those inside while no pod was ready, the time in a pod is not known.
        self._inside, self._second = inside if slot_count > 0 else 0.0, second
        if concurrency <= slot_count:
            self._load = concurrency
            return concurrency
        request_s = self.request_s
        if request_s is None:
            self._load = concurrency
        else:
            kept = math.exp(-1.0 / request_s)
            self._load = min(concurrency, self._load * kept + request_count * request_s * (1.0 - kept))
        lasting = min(waiting) if len(waiting) == _LASTING_S else 0.0
        return min(concurrency, self._load + lasting)
