"""How long pods stay that a load no longer needs: the most that was wanted of late, given up in large steps.

Input: the pods wanted by each decision, and a patience. Output: the most of them within the patience. A fall by less than 30 %
waits for twice the patience more: each small step down is soon followed by one up.
"""

from serving.scaling.kpa.delay import DelayWindow, slot_count

# A count goes down to at most this part of itself at once.
_STEP_RATIO = 0.7
# How many times the patience a smaller step waits for.
_SMALL_STEP_PATIENCES = 2.0


class HeldCount:
    """The pods of one revision that were wanted, and ``count`` of them that stay."""

    __slots__ = ("_asked_at_s", "_delay", "_low_since_s", "count")

    def __init__(self) -> None:
        self._delay = DelayWindow()
        self.count = 0
        self._low_since_s: float | None = None
        self._asked_at_s = 0.0

    def __repr__(self) -> str:
        return f"HeldCount({self.count} pods)"

    def hold(self, count: int, *, patience_s: float, now_s: float) -> int:
        """The pods that stay, ``count`` at least. 10 wanted at 0 s and 8 from 2 s on, with patience for 10 s: 10 up to 30 s."""
        self._delay = self._delay.record(count, slot_count=max(1, slot_count(patience_s)), now_s=now_s)
        latest = self._delay.maximum
        is_first = not 0 <= now_s - self._asked_at_s <= patience_s
        self._asked_at_s = now_s
        if is_first or latest >= self.count or latest <= self.count * _STEP_RATIO:
            self.count, self._low_since_s = latest, None
        elif self._low_since_s is None:
            self._low_since_s = now_s
        elif now_s - self._low_since_s >= _SMALL_STEP_PATIENCES * patience_s:
            self.count, self._low_since_s = latest, None
        return self.count
