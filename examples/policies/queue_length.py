"""Scales by the requests that wait: one pod more for each three of them."""

import math

from serving.core.scaling.decision.policy import NEUTRAL, Advice, PolicyView, SecondOfLoad
from serving.core.scaling.kpa.merge import Proposal

WAITING_PER_POD = 3


class QueueLength:
    """Pods for running requests, and more for waiting ones."""

    # Requests that wait for the first pod count at once.
    counts_waiting = True

    def observe(self, second: SecondOfLoad) -> None:
        """Ignore the past: only the requests in flight count."""

    def propose(self, view: PolicyView) -> Advice | Proposal:
        """Pods by the requests in flight now; Knative's count while no pod reports or nothing is in flight."""
        if not view.in_flight:
            return NEUTRAL
        slots = view.spec.container_concurrency or view.spec.total_value
        running = min(view.in_flight, view.ready_count * slots)
        waiting = view.in_flight - running
        desired = math.ceil(running / slots) + math.ceil(waiting / WAITING_PER_POD)
        return Proposal(decider="queue", desired=desired, reason=f"{waiting:.0f} wait, {running:.0f} run")
