"""Has three pods ready from 8 to 18 o'clock UTC on weekdays, also without requests."""

import datetime as dt

from serving.core.scaling.decision.policy import NEUTRAL, Advice, PolicyView, SecondOfLoad
from serving.core.scaling.kpa.merge import Proposal

FROM_HOUR, TO_HOUR, PODS = 8, 18, 3
SATURDAY = 5


class OfficeHours:
    """Knative's count, and at least ``PODS`` in office hours."""

    def observe(self, second: SecondOfLoad) -> None:
        """Ignore the load: only the time counts."""

    def propose(self, view: PolicyView) -> Advice | Proposal:
        """At least ``PODS`` by the hour of the wall clock."""
        now = dt.datetime.fromtimestamp(view.wall_s, dt.UTC)
        if now.weekday() >= SATURDAY or not FROM_HOUR <= now.hour < TO_HOUR or view.algorithm_count >= PODS:
            return NEUTRAL
        return Proposal(decider="office hours", desired=PODS, reason=f"until {TO_HOUR}:00")
