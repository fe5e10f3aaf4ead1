"""A decision's entry in a list: revision, time, repetitions and sentence.

``decision_history`` and ``decision_events`` add the decision itself. This module imports no decider, so that a command
that only prints sentences starts quickly.
"""

import msgspec

from serving.core.model.versions import DECISIONS, FormatVersion

DECISION_LOG = "decisions.jsonl"
"""Name of the decision log in the state folder; rotated files end in .1, .2 and .3."""

DECISION_LOG_FILES = 4


class DecisionStamp(msgspec.Struct, frozen=True, kw_only=True):
    """The times of ``repeated_count`` + 1 equal consecutive decisions.

    ``since_s`` is the time of the first on the clock of decisions. ``since_wall_s`` is the same time, and ``at_wall_s``
    that of the last, in seconds since the epoch.
    """

    since_s: float
    repeated_count: int

    at_wall_s: float = 0.0
    since_wall_s: float = 0.0


class LoggedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the decision log: a decision of one revision."""

    namespace: str
    revision: str
    entry: DecisionStamp = msgspec.field(name="told")
    """The decision; the JSON key is an older name."""

    version: FormatVersion = DECISIONS


class DecisionLine(LoggedDecision, frozen=True, kw_only=True):
    """A decision, and the sentence that explains it."""

    sentence: str
