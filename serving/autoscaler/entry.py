"""What the loop knows of one revision: what the watches brought, its scaler once all is there, its last decisions."""

from typing import Protocol

from serving.autoscaler.path import PublicSlices
from serving.autoscaler.podstates import PodStates
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
        "pod_states",
        "proved_at_s",
        "public",
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
        self.pod_states = PodStates()
        self.scaler: Scaler | None = None
        self.proved_at_s: float | None = None
        self.public = PublicSlices()
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
        is_known = self.revision is not None or self.deployment is not None or self.public.is_there
        return not is_known and not self.ready_names

    def take_pod(self, pod: PodFacts, *, is_gone: bool) -> None:
        """A pod's state, and what keeps it from starting, if anything does."""
        self.pod_states.take(pod, is_gone=is_gone)
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
            has_public=self.public.is_there,
            proxy_since_s=self.public.proxy_since_s,
            path=revision.path,
        )

    def cancel(self) -> None:
        """Call off the next decision."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def stop(self) -> None:
        """Decide no more."""
        self.cancel()
        self.scaler, self.latest = None, None
