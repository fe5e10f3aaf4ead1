"""What an autoscaler counts of itself, for its page of metrics."""

import msgspec


class DecisionCounts(msgspec.Struct, kw_only=True):
    """What happened since the start."""

    decisions: int = 0
    decision_failures: int = 0
    write_failures: int = 0
    unknown_stats: int = 0
    """Stats of revisions that are not scaled here."""
