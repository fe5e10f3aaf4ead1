"""The last decisions about one revision, bounded, for those who ask why.

A decision that says the same as the one before it takes its place and adds to its count, so that an idle hour is one line
and what led to it is still there.
"""

from collections import deque

import msgspec

from serving.autoscaler.scaler import Outcome

__all__ = ["Remembered", "Story"]


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, the newest of ``repeated_count`` + 1 in a row since ``since_s`` that all said the same."""

    since_s: float
    repeated_count: int
    outcome: Outcome


class Story:
    """Decisions, oldest first, ``count_max`` at most."""

    __slots__ = ("_told",)

    def __init__(self, count_max: int) -> None:
        self._told: deque[Remembered] = deque(maxlen=count_max)

    def __len__(self) -> int:
        """Decisions that are remembered."""
        return len(self._told)

    def __repr__(self) -> str:
        """One line."""
        return f"Story({len(self._told)} of {self._told.maxlen})"

    def add(self, outcome: Outcome) -> bool:
        """Remember a decision; whether it says anything new."""
        last = self._told[-1] if self._told else None
        if last is not None and outcome.is_like(last.outcome):
            self._told[-1] = Remembered(since_s=last.since_s, repeated_count=last.repeated_count + 1, outcome=outcome)
            return False
        self._told.append(Remembered(since_s=outcome.at_s, repeated_count=0, outcome=outcome))
        return True

    def told(self) -> list[Remembered]:
        """All of them."""
        return list(self._told)
