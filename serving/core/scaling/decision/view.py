"""The state of a revision in the cluster, as input of a decision."""

import msgspec

from serving.core.model.knative import ServingState, TrafficPath


class ScalerView(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's state of a revision at one time."""

    present_scale: int
    """Pods requested by its scale."""

    ready_count: int
    serving_state: ServingState

    proved_at_s: float | None = None
    """Last time that the activator was proved to be in the path; None if it never was."""

    has_public: bool = False
    """Whether it has a public Service, whose slices may name pods; without one, activators are always in the path."""

    proxy_since_s: float | None = None
    """Start of the time in which its slices name only activators; None while they name pods, or without slices."""

    path: TrafficPath = TrafficPath.PROXY
    """The path written last."""

    is_recorded: bool = True
    """Whether the controller has recorded that its first pods were ready."""

    is_failed: bool = False
    """Whether its condition Ready is False."""

    is_woken: bool = False
    """Whether an activator has taken it out of reserve since the last decision, maybe before its scale was 0."""

    @property
    def is_starting(self) -> bool:
        """Whether the revision is waking, so that a write of scale 0 does not return it to Reserve."""
        return self.serving_state is ServingState.ACTIVE and (self.present_scale == 0 or self.is_woken)

    @property
    def proof_s(self) -> float | None:
        """The time of the last valid proof: a probe with the activators in the path and no pods in it."""
        if not self.has_public or self.proved_at_s is None:
            return self.proved_at_s
        since_s = self.proxy_since_s
        return self.proved_at_s if since_s is not None and self.proved_at_s >= since_s else None
