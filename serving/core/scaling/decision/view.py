"""The cluster's state of a revision, as input of a decision."""

import msgspec

from serving.core.model.knative import ServingState, TrafficPath


class ScalerView(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's state of a revision at one time. Times are in seconds.

    ``proved_at_s`` is the last proof that an activator is in the path. ``proxy_since_s`` is since when only activators
    are endpoints of the public Service. ``is_recorded``: the status records that the first pods were ready.
    """

    present_scale: int
    """Pods requested by the revision's scale."""

    ready_count: int
    serving_state: ServingState

    proved_at_s: float | None = None
    """Last time that the activator was proved to be in the path; None if never."""

    has_public: bool = False
    """Whether the revision has a public Service, whose slices may contain pods.

    Otherwise activators stay in the path.
    """

    proxy_since_s: float | None = None
    """Time since which the slices name only activators; None while they name pods, or without slices."""

    path: TrafficPath = TrafficPath.PROXY
    """The traffic path written last."""

    is_recorded: bool = True
    """Whether the controller recorded that the first pods were ready."""

    is_failed: bool = False
    """Whether the condition Ready is False."""

    is_woken: bool = False
    """Whether an activator set the revision from Reserve to Active since the last decision, also at a scale above 0."""

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
