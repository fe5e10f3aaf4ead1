"""What the loop knows of one revision: what the watches brought, its scaler once all is there, its last decisions."""

from typing import Protocol

from serving.autoscaler.revision import DeploymentFacts, PodFacts, RevisionFacts, Trouble
from serving.autoscaler.scaler import Outcome, Scaler, ScalerFacts
from serving.autoscaler.story import Story

__all__ = ["Entry", "Timer"]


class Timer(Protocol):
    """Something that will happen and may be called off; a handle of a loop."""

    def cancel(self) -> None:
        """Call it off."""
        ...


class Entry:
    """One revision. ``timer`` is for its next decision, at ``due_s``."""

    __slots__ = (
        "deployment",
        "due_s",
        "latest",
        "proved_at_s",
        "ready_names",
        "revision",
        "scaler",
        "story",
        "timer",
        "troubles",
    )

    def __init__(self, decisions_max: int) -> None:
        self.revision: RevisionFacts | None = None
        self.deployment: DeploymentFacts | None = None
        self.ready_names: set[str] = set()
        self.troubles: dict[str, Trouble] = {}
        self.scaler: Scaler | None = None
        self.proved_at_s: float | None = None
        # The time of the timer: uvloop's handle of what is due now does not know it.
        self.due_s = 0.0
        self.timer: Timer | None = None
        self.latest: Outcome | None = None
        self.story = Story(decisions_max)

    def __repr__(self) -> str:
        """One line."""
        return f"Entry({len(self.ready_names)} ready pods, {self.scaler!r})"

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left that would have to be remembered."""
        return self.revision is None and self.deployment is None and not self.ready_names

    def take_trouble(self, pod: PodFacts, *, is_gone: bool) -> None:
        """What keeps a pod from starting, if anything does."""
        if pod.trouble is None or is_gone:
            self.troubles.pop(pod.name, None)
        else:
            self.troubles[pod.name] = pod.trouble

    def facts(self) -> ScalerFacts | None:
        """What a decision has to know; None until all of it is there."""
        revision, deployment = self.revision, self.deployment
        if revision is None or deployment is None or deployment.revision_uid != revision.uid:
            return None
        return ScalerFacts(
            present_scale=deployment.replica_count,
            ready_count=len(self.ready_names),
            serving_state=revision.serving_state,
            proved_at_s=self.proved_at_s,
        )

    def cancel(self) -> None:
        """Call off the next decision."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
