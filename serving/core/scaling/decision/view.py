"""The cluster's state of a revision, as input of a decision."""

import msgspec

from serving.core.model.knative import ServingState, TrafficPath


class ScalerView(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's state of a revision at one time. Times are in seconds.

    ``present_scale`` is the number of pods requested by the scale. ``proved_at_s`` is the last proof that an activator
    is in the path; None if never. ``has_public``: a public Service exists, whose slices may contain pods; otherwise
    activators stay in the path. ``proxy_since_s`` is since when its slices contain only activators; None while they
    contain pods, or without slices. ``path`` is the traffic path written last. ``is_recorded``: the status records that
    the first pods were ready. ``is_failed``: the condition Ready is False. ``is_woken``: an activator has set the
    revision from Reserve to Active since the last decision, also at a scale above 0.
    """

    present_scale: int
    ready_count: int
    serving_state: ServingState

    proved_at_s: float | None = None
    has_public: bool = False
    proxy_since_s: float | None = None
    path: TrafficPath = TrafficPath.PROXY
    is_recorded: bool = True
    is_failed: bool = False
    is_woken: bool = False

    @property
    def is_starting(self) -> bool:
        """Whether the revision is waking: it is Active, and its scale is 0 or an activator has just woken it."""
        return self.serving_state is ServingState.ACTIVE and (self.present_scale == 0 or self.is_woken)

    @property
    def proof_s(self) -> float | None:
        """Time of the last valid proof: a successful probe while only activators were the endpoints."""
        if not self.has_public or self.proved_at_s is None:
            return self.proved_at_s
        since_s = self.proxy_since_s
        return self.proved_at_s if since_s is not None and self.proved_at_s >= since_s else None
