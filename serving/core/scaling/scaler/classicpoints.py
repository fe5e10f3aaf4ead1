"""The June 2018 algorithm for one revision, fed with seconds of load.

Each reporting pod gives one point per second. Requests in activators are distributed evenly over the pods, because they
will reach them. The sum stays the load, and each request counts once. While no pod reports, all activators together
give one point.
"""

from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.classic.classic import ClassicDecision, ClassicMode, ClassicScaler
from serving.core.scaling.decision.records import Decided, InFlight
from serving.core.scaling.kpa.decide import ScaleLimit
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.sources import Second
from serving.core.settings.classic import ClassicSettings

# The name of the source while no pod reports: in June 2018, Knative's activator counts as a pod.
_ACTIVATOR = "activator"
_UNHEARD = NoData(missing="no stat in the stable window")


class ClassicPoints:
    """The classic algorithm's points of one revision. ``target`` is the target load per pod."""

    def __init__(self, settings: ClassicSettings, *, target: float, present_scale: int, now_s: float) -> None:
        self.target = target
        self._settings = settings
        self._scaler = ClassicScaler(started_s=now_s)
        self._hold_count = present_scale
        self._watched_since_s: float | None = None
        self._recorded_s = now_s

    def record(self, second: Second) -> None:
        """Record a completed second."""
        at_s = self._recorded_s = second.number + 1.0
        activators = second.activators or Stat()
        if not second.pods:
            self._record(_ACTIVATOR, activators, at_s)
            return
        share = 1 / len(second.pods)
        for pod in second.pods:
            load = Stat(
                concurrency=pod.concurrency - pod.proxied_concurrency + activators.concurrency * share,
                request_count=pod.request_count - pod.proxied_request_count + activators.request_count * share,
            )
            self._record(pod.pod, load, at_s)

    def decide(self, in_flight: InFlight, *, ready_count: int, now_s: float) -> Decided:
        """Propose a number of pods."""
        detail: ClassicDecision | NoData
        if in_flight.is_waiting:
            self._recorded_s = now_s
            self._record(_ACTIVATOR, in_flight.present, now_s)
        detail = self._scaler.decide(self._settings, target_concurrency=self.target, now_s=now_s)
        is_idle = not isinstance(detail, NoData) and detail.mode is ClassicMode.IDLE
        if is_idle and ready_count and now_s - self._recorded_s > self._settings.stable_window_s:
            # Knative of June 2018 treats silence as idleness; with ready pods, silence means that reports are lost.
            detail = _UNHEARD
        if isinstance(detail, NoData):
            return Decided(proposal=Proposal(decider="classic", desired=detail, reason=detail.missing), detail=detail)
        if self._watched_since_s is None:
            self._watched_since_s = now_s
        desired = detail.desired_count
        reason: str = detail.limited_by or detail.mode
        # Knative of June 2018 would remove all pods after a restart; see KpaState.start_hold_count.
        if now_s - self._watched_since_s < self._settings.stable_window_s and desired < self._hold_count:
            desired, reason = self._hold_count, ScaleLimit.START_HOLD
        return Decided(proposal=Proposal(decider="classic", desired=desired, reason=reason), detail=detail)

    def _record(self, source: str, load: Stat, at_s: float) -> None:
        self._scaler.record(
            Stat(
                pod=source,
                at_s=at_s,
                concurrency=max(0.0, load.concurrency),
                request_count=max(0.0, load.request_count),
            )
        )
