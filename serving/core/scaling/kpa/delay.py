"""The scale-down delay: the largest count wanted in the last seconds.

Input: the wanted pods of a decision, and its time. Output: the largest number of wanted pods within the delay, in slots
of Knative's decision period. Follows knative/serving 98e5ef90, pkg/autoscaler/aggregation/max.
"""

import math

import msgspec

from serving.core.settings.autoscaler import DECISION_PERIOD_S

_SLOT_S = int(DECISION_PERIOD_S)


def slot_count(delay_s: float, *, slot_s: int = _SLOT_S) -> int:
    """Number of slots in a delay, including the newest: 7 s are 4 slots of 2 s; 0 s are none."""
    return math.ceil(delay_s / slot_s)


class DelayWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Recent counts that may still become the maximum. Time is divided into slots of two seconds.

    ``peaks`` are pairs of slot and count, with ascending slots and descending counts: a count is removed as soon as a
    later one is at least as large. So the first peak is the maximum. A window whose counts only grew has a single pair.
    """

    peaks: tuple[tuple[int, int], ...] = ()

    @property
    def maximum(self) -> int:
        """The largest count of a non-empty window."""
        return self.peaks[0][1]

    def record(self, count: int, *, slot_count: int, now_s: float, slot_s: int = _SLOT_S) -> "DelayWindow":
        """Add ``count`` at ``now_s``. The window spans ``slot_count`` slots, at least one.

        A time before the newest slot counts as the newest. Example: with 3 slots (a delay of 6 s), 5 pods are wanted at
        0 s, and 1 pod from 2 s on. Up to 4 s the slots are 0, 1 and 2, and the maximum is 5. At 6 s the slots are 1, 2
        and 3, and the maximum is 1.
        """
        slot = math.floor(now_s) // slot_s
        peaks = self.peaks
        if peaks:
            slot = max(slot, peaks[-1][0])
            # Counts descend, so usually none exceeds the newest.
            is_above = peaks[0][1] > count
            peaks = (
                tuple([peak for peak in peaks if peak[1] > count and peak[0] > slot - slot_count]) if is_above else ()
            )
        if peaks and peaks[-1][0] == slot:
            return DelayWindow(peaks=peaks)
        return DelayWindow(peaks=(*peaks, (slot, count)))
