"""Detects that another client, such as a GitOps tool, repeatedly sets the scale of a ScaledWorkload's target.

Input: each change of the scale by another client, with its time. Output: a sentence while such changes are frequent,
because both clients would undo each other's changes. A single manual change is no conflict.
"""

import msgspec

_PERIOD_S = 600.0
_WRITES_MAX = 3


class RivalWrites(msgspec.Struct, frozen=True, kw_only=True):
    """Times of recent scale changes by other clients, oldest first, and the scale that they wrote last."""

    times: tuple[float, ...] = ()
    count: int = 0

    def add(self, count: int, now_s: float) -> "RivalWrites":
        """The state after another client sets the scale to ``count``."""
        return RivalWrites(times=(*self.times, now_s)[-_WRITES_MAX:], count=count)

    def sentence(self, now_s: float) -> str:
        """The message about a conflict; "" if there is no conflict.

        Three changes in ten minutes are a conflict. It ends ten minutes after the last change.
        """
        if len(self.times) < _WRITES_MAX or now_s - self.times[-1] > _PERIOD_S:
            return ""
        if self.times[-1] - self.times[0] > _PERIOD_S:
            return ""
        return f"another client has set replicas {_WRITES_MAX} times within ten minutes, last to {self.count}: let it leave replicas alone"
