"""Keeps the last decisions about a revision, and selects decisions for the decision log.

A decision equal to the previous one replaces it and increases its count, so that an idle hour is one line and earlier
decisions are kept. The log gets each decision with news, and occasional samples of the others, with all inputs needed
to decide again (``serving.core.scaling.scaler.replay``).
"""

from collections import deque

import msgspec

from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.kpa.window import WindowContents
from serving.core.scaling.scaler.decision_lines import DecisionStamp, LoggedDecision

# How often an unchanged decision is logged, in seconds.
_SAMPLE_PERIOD_S = 60.0


class HistoryEntry(DecisionStamp, frozen=True, kw_only=True):
    """A decision in the history."""

    outcome: ScalerOutcome


class DecisionRecord(LoggedDecision, frozen=True, kw_only=True):
    """One line of the decision log: a decision of a revision, and the contents of its windows."""

    entry: HistoryEntry = msgspec.field(name="told")

    windows: WindowContents | None
    """The windows of the algorithm; None for the classic one, whose result cannot be recomputed."""


class DecisionHistory:
    """The last decisions of a revision, oldest first, at most ``count_max``."""

    __slots__ = ("_entries", "_sampled_s")

    def __init__(self, count_max: int) -> None:
        self._entries: deque[HistoryEntry] = deque(maxlen=count_max)
        self._sampled_s = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, outcome: ScalerOutcome, *, at_wall_s: float = 0.0) -> HistoryEntry | None:
        """Add a decision; return the entry to log, or None if it repeats the last one.

        Each changed decision is logged (``repeated_count`` is 0), and one unchanged decision a minute.
        """
        last = self._entries[-1] if self._entries else None
        if last is not None and outcome.is_like(last.outcome):
            entry = HistoryEntry(
                since_s=last.since_s,
                repeated_count=last.repeated_count + 1,
                outcome=outcome,
                at_wall_s=at_wall_s,
                since_wall_s=last.since_wall_s,
            )
            self._entries[-1] = entry
            if outcome.at_s - self._sampled_s < _SAMPLE_PERIOD_S:
                return None
        else:
            entry = HistoryEntry(
                since_s=outcome.at_s, repeated_count=0, outcome=outcome, at_wall_s=at_wall_s, since_wall_s=at_wall_s
            )
            self._entries.append(entry)
        self._sampled_s = outcome.at_s
        return entry

    def entries(self) -> list[HistoryEntry]:
        """All stored decisions."""
        return list(self._entries)
