"""The points of the classic algorithm: sorted by time, one per pod and instant, summed in a fixed order.

Recording only appends. Sorting, replacing and dropping happen at the next decision, which reads all points anyway. Each
column is an array with free room at its end. Moving an index drops the oldest points. A late point requires sorting
only the points behind it. A decision costs one pass over the points in C.

The order of additions affects the last bit of a sum, and so a ceiling or the test for panic: 1.8 added 8 times is
14.400000000000002, which gives 9 pods and not 8. The defined order is newest point first, then by pod number, with one
float64 addition each (``numpy.cumsum``). This takes 170 µs for 60,000 points. ``numpy.sum`` adds in pairs in 10 µs,
with other last bits. So the stable sum is first computed in pairs, with a bound on its distance from the sum in order.
The caller needs ``stable_sum_in_order`` only if the result could differ within this bound. The panic window is short,
so its sum is always in order.
"""

from array import array

import numpy as np
from numpy.typing import NDArray

from serving.core.model.stat import Stat
from serving.core.scaling.classic.windowsums import NANOSECONDS_PER_SECOND, WindowSums
from serving.core.settings.classic import ClassicQuirks

# Space for a dozen pods at one point a second; most revisions never need more.
_ROOM_START = 1024
_GROWTH = 2
# Multiples of 1/1024 up to 2**16 add up exactly in float64 (53 bits) for up to 2**27 points, in any order.
_COARSE_GRAINS = 1024.0
_COARSE_MAX = 2.0**16
# Half a unit in the last place: the largest relative error of one float64 addition.
_ROUNDING = 2.0**-53

_Times = NDArray[np.int64]
_Floats = NDArray[np.float64]


class Points:
    """The points of one revision in the stable window; a point is one pod's load at one time. Not thread-safe."""

    __slots__ = (
        "_at_ns",
        "_begin",
        "_concurrency",
        "_end",
        "_free_ids",
        "_has_negative",
        "_is_coarse",
        "_new_at_s",
        "_new_concurrency",
        "_new_pod",
        "_new_request_count",
        "_pod",
        "_pod_ids",
        "_pod_names",
        "_point_counts",
        "_scratch",
    )

    def __init__(self) -> None:
        self._new_at_s = array("d")
        self._new_pod = array("q")
        self._new_concurrency = array("d")
        self._new_request_count = array("d")
        self._at_ns: _Times = np.empty(_ROOM_START, dtype=np.int64)
        self._pod: _Times = np.empty(_ROOM_START, dtype=np.int64)
        self._concurrency: _Floats = np.empty(_ROOM_START)
        self._scratch: _Floats = np.empty(_ROOM_START)
        self._begin = 0
        self._end = 0
        self._has_negative = False
        self._is_coarse = True
        self._pod_ids: dict[str, int] = {}
        self._pod_names: list[str] = []
        self._free_ids: list[int] = []
        self._point_counts: _Times = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return self._end - self._begin + len(self._new_at_s)

    def record(self, stat: Stat) -> None:
        """Store a point, also a late one. A second point of the same pod and instant replaces the first."""
        pod_id = self._pod_ids.get(stat.pod)
        if pod_id is None:
            pod_id = self._claim_id(stat.pod)
        self._new_at_s.append(stat.at_s)
        self._new_pod.append(pod_id)
        self._new_concurrency.append(stat.concurrency)
        self._new_request_count.append(stat.request_count)

    def read(self, *, now_s: float, stable_window_s: float, panic_window_s: float, quirks: ClassicQuirks) -> WindowSums:
        """The sums of both windows at ``now_s``. Drops points as old as the stable window.

        If the panic window is longer than the stable window, its sum still includes the points that this call drops.
        Knative's algorithm of June 2018 does the same, because it deletes points while it sums.
        """
        now_ns = round(now_s * NANOSECONDS_PER_SECOND)
        stable_after_ns = now_ns - round(stable_window_s * NANOSECONDS_PER_SECOND)
        panic_after_ns = now_ns - round(panic_window_s * NANOSECONDS_PER_SECOND)
        traffic_at_ns = self._merge_new(now_ns, stable_after_ns, quirks) if self._new_at_s else None
        at_ns = self._at_ns[self._begin : self._end]
        stable_begin = self._begin + int(at_ns.searchsorted(stable_after_ns, side="right"))
        panic_begin = self._begin + int(at_ns.searchsorted(panic_after_ns, side="right"))
        stable_point_count, panic_point_count = self._end - stable_begin, self._end - panic_begin
        panic_sum = _sum_in_order(self._concurrency[panic_begin : self._end], self._scratch)
        self._drop_before(stable_begin)
        stable_sum, stable_error_ratio = self._stable_sum_in_pairs()
        return WindowSums(
            stable_sum=stable_sum,
            stable_error_ratio=stable_error_ratio,
            stable_point_count=stable_point_count,
            stable_pod_count=int(np.count_nonzero(self._point_counts)),
            panic_sum=panic_sum,
            panic_point_count=panic_point_count,
            traffic_at_ns=traffic_at_ns,
        )

    def stable_sum_in_order(self) -> float:
        """The stable window's sum of the last reading, added in order."""
        return _sum_in_order(self._concurrency[self._begin : self._end], self._scratch)

    def _stable_sum_in_pairs(self) -> tuple[float, float]:
        """The stable window's sum by numpy, and how far it may be from the sum in order, relative to the sum.

        The order of additions matters only for rounding: whole numbers and coarse fractions are exact, so the second
        result is 0. Otherwise the sum of n numbers of one sign is at most n roundings from the true sum, and two orders
        differ by at most 2 n. The bound is 3 n, because it is relative to a sum that is itself rounded. Source: N.
        Higham, Accuracy and Stability of Numerical Algorithms, section 4.2. With negative numbers there is no such
        bound, so the sum in order is returned.
        """
        if self._has_negative:
            return self.stable_sum_in_order(), 0.0
        error_ratio = 0.0 if self._is_coarse else 3 * (self._end - self._begin) * _ROUNDING
        return float(self._concurrency[self._begin : self._end].sum()), error_ratio

    def _claim_id(self, pod: str) -> int:
        if self._free_ids:
            pod_id = self._free_ids.pop()
            self._pod_names[pod_id] = pod
        else:
            pod_id = len(self._pod_names)
            self._pod_names.append(pod)
        self._pod_ids[pod] = pod_id
        return pod_id

    def _merge_new(self, now_ns: int, stable_after_ns: int, quirks: ClassicQuirks) -> int | None:
        """Merge new points into old ones; return the time of the newest point with traffic in the stable window."""
        at_ns = np.rint(np.array(self._new_at_s) * NANOSECONDS_PER_SECOND).astype(np.int64)
        pod = np.array(self._new_pod)
        concurrency = np.array(self._new_concurrency)
        traffic = np.array(self._new_request_count) > 0
        for column in (self._new_at_s, self._new_pod, self._new_concurrency, self._new_request_count):
            del column[:]
        self._has_negative = self._has_negative or bool(concurrency.min() < 0)
        self._is_coarse = self._is_coarse and _are_coarse(concurrency)
        if not quirks.idle_while_requests_run:
            traffic |= concurrency > 0
        if not quirks.points_from_the_future:
            np.minimum(at_ns, now_ns, out=at_ns)
        self._count_pods(pod, 1)
        # Only stored points newer than the oldest new point can be out of order or replaced.
        tail = self._begin + int(self._at_ns[self._begin : self._end].searchsorted(at_ns.min()))
        if tail < self._end:
            at_ns = np.concatenate((self._at_ns[tail : self._end], at_ns))
            pod = np.concatenate((self._pod[tail : self._end], pod))
            concurrency = np.concatenate((self._concurrency[tail : self._end], concurrency))
            traffic = np.concatenate((np.zeros(self._end - tail, dtype=bool), traffic))
        if not _is_sorted(at_ns, pod):
            order = np.lexsort((pod, at_ns))
            at_ns, pod, concurrency, traffic = at_ns[order], pod[order], concurrency[order], traffic[order]
            # The sort is stable, so the last of equal points was recorded last.
            is_last = np.append((at_ns[1:] != at_ns[:-1]) | (pod[1:] != pod[:-1]), True)
            if not is_last.all():
                self._count_pods(pod[~is_last], -1)
                at_ns, pod, concurrency = at_ns[is_last], pod[is_last], concurrency[is_last]
                traffic = traffic[is_last]
        self._write_tail(tail, at_ns=at_ns, pod=pod, concurrency=concurrency)
        traffic &= at_ns > stable_after_ns
        return int(at_ns[traffic][-1]) if traffic.any() else None

    def _write_tail(self, tail: int, *, at_ns: _Times, pod: _Times, concurrency: _Floats) -> None:
        kept_count = tail - self._begin
        if tail + len(at_ns) > len(self._at_ns):
            self._make_room(kept_count, kept_count + len(at_ns))
            tail = kept_count
        self._end = tail + len(at_ns)
        self._at_ns[tail : self._end] = at_ns
        self._pod[tail : self._end] = pod
        self._concurrency[tail : self._end] = concurrency

    def _make_room(self, kept_count: int, needed_count: int) -> None:
        """Move the kept points to the front, and enlarge the columns if at least half of the space is needed."""
        room = len(self._at_ns)
        while room < needed_count * _GROWTH:
            room *= _GROWTH
        retained = slice(self._begin, self._begin + kept_count)
        for name in ("_at_ns", "_pod", "_concurrency"):
            column = getattr(self, name)
            moved = np.empty(room, dtype=column.dtype)
            moved[:kept_count] = column[retained]
            setattr(self, name, moved)
        self._scratch = np.empty(room)
        self._begin = 0

    def _drop_before(self, begin: int) -> None:
        dropped = self._pod[self._begin : begin]
        self._begin = begin
        if not dropped.size:
            return
        self._count_pods(dropped, -1)
        for pod_id in np.unique(dropped[self._point_counts[dropped] == 0]).tolist():
            del self._pod_ids[self._pod_names[pod_id]]
            self._free_ids.append(pod_id)

    def _count_pods(self, pod: _Times, sign: int) -> None:
        counts = np.bincount(pod, minlength=len(self._pod_names))
        if len(counts) > len(self._point_counts):
            grown = np.zeros(len(counts), dtype=np.int64)
            grown[: len(self._point_counts)] = self._point_counts
            self._point_counts = grown
        self._point_counts += sign * counts


def _are_coarse(concurrency: _Floats) -> bool:
    grains = concurrency * _COARSE_GRAINS
    return bool(concurrency.max() <= _COARSE_MAX and (grains == np.rint(grains)).all())


def _sum_in_order(ascending: _Floats, scratch: _Floats) -> float:
    """Sum in order, newest first. ``scratch`` has room for partial sums: a new array would take as long as the sum."""
    return float(np.cumsum(ascending[::-1], out=scratch[: ascending.size])[-1]) if ascending.size else 0.0


def _is_sorted(at_ns: _Times, pod: _Times) -> bool:
    """Whether points are ordered by time and pod, without duplicates."""
    step_ns = at_ns[1:] - at_ns[:-1]
    if bool((step_ns > 0).all()):
        return True
    return bool(((step_ns > 0) | ((step_ns == 0) & (pod[1:] > pod[:-1]))).all())
