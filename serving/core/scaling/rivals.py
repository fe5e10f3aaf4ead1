"""Notices that another client sets the scale of a ScaledWorkload's target again and again, such as a GitOps tool.

Input: each change of the scale that the autoscaler did not write, with its time. Output: a sentence while there are too many of them,
and so a fight that neither would win. A person who scales once is none.
"""

import msgspec

_PERIOD_S = 600.0
_WRITES_MAX = 3


class RivalWrites(msgspec.Struct, frozen=True, kw_only=True):
    """The times of the last changes by others, the oldest first, and the count that was written last."""

    times: tuple[float, ...] = ()
    count: int = 0

    def add(self, count: int, now_s: float) -> "RivalWrites":
        """The state after another client has set the scale to ``count``."""
        return RivalWrites(times=(*self.times, now_s)[-_WRITES_MAX:], count=count)

    def sentence(self, now_s: float) -> str:
        """What fights; "" while nothing does. Three changes within ten minutes are a fight, for ten minutes more."""
        if len(self.times) < _WRITES_MAX or now_s - self.times[-1] > _PERIOD_S:
            return ""
        if self.times[-1] - self.times[0] > _PERIOD_S:
            return ""
        return f"another client has set replicas {_WRITES_MAX} times within ten minutes, last to {self.count}: let it leave replicas alone"
