"""Keeps the last pod for ten minutes after the last request, as several clouds do."""

import math

from serving.core.scaling.decision.policy import NEUTRAL, Advice, PolicyView, SecondOfLoad
from serving.core.scaling.kpa.merge import Proposal

KEEP_S = 600.0


class KeepAlive:
    """Knative's count under load, and one pod for ``KEEP_S`` seconds after it."""

    def __init__(self) -> None:
        self._busy_until_s = -math.inf

    def observe(self, second: SecondOfLoad) -> None:
        """Remember the last second with a request."""
        if second.concurrency or second.request_count:
            self._busy_until_s = second.number + 1.0

    def propose(self, view: PolicyView) -> Advice | Proposal:
        """One pod while the last request is recent."""
        remaining_s = self._busy_until_s + KEEP_S - view.now_s
        if view.in_flight or remaining_s <= 0 or view.algorithm_count > 0:
            return NEUTRAL
        return Proposal(decider="keep-alive", desired=1, reason=f"kept {remaining_s:.0f} s more")
