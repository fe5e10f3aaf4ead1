"""The part of a decision for a list: its revision, time, repetitions and sentence.

``decision_history`` and ``decision_events`` add the decision itself. This module imports no decider, so that a command that
only prints sentences starts without numpy.
"""

import msgspec

from serving.core.model.versions import DECISIONS, FormatVersion

DECISION_LOG = "decisions.jsonl"
"""Name of the decision log in the state folder; older files of it end in .1, .2 and .3."""

DECISION_LOG_FILES = 4


class DecisionStamp(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a decision, the newest of ``repeated_count`` + 1 equal ones in a row since ``since_s``."""

    since_s: float
    repeated_count: int

    at_wall_s: float = 0.0
    """The time of the newest one, in seconds since the epoch."""

    since_wall_s: float = 0.0
    """The time of the first one."""


class LoggedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of a revision."""

    namespace: str
    revision: str
    entry: DecisionStamp = msgspec.field(name="told")
    """The decision; its JSON key is from before the rename."""

    version: FormatVersion = DECISIONS


class DecisionLine(LoggedDecision, frozen=True, kw_only=True):
    """A decision and its sentence."""

    sentence: str
