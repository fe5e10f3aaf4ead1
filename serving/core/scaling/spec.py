"""The resolved scaling numbers of one revision, for every daemon that scales, wakes or creates it.

``resolve.py`` merges settings, annotations and containerConcurrency into a ``ScalingSpec``; decisions read only the
spec. A spec has no unparsed text, no percentage and no unset value. Follows knative/serving 98e5ef90,
pkg/autoscaler/scaling and pkg/reconciler/autoscaling/kpa/resources.
"""

import enum
import math

import msgspec

from serving.core.model.knative import TargetMode
from serving.core.model.loadmetric import LoadMetric, load_metric
from serving.core.model.slo import Slo
from serving.core.settings.autoscaler import DECISION_PERIOD_S, KNATIVE_POLICY, KPA_CLASS

# Decimals kept in a time: Go's durations are in nanoseconds, and ratios such as 0.29 are inexact.
_NANOSECOND_DIGITS = 9


class WindowKind(enum.StrEnum):
    """How a window averages its buckets. The values are those of the key ``metric-aggregation-algorithm``."""

    LINEAR = "linear"
    WEIGHTED_EXPONENTIAL = "weightedExponential"

    @classmethod
    def _missing_(cls, value: object) -> "WindowKind | None":
        """Accept Knative's other spelling."""
        return cls.WEIGHTED_EXPONENTIAL if value == "weighted-exponential" else None


class MeasuredMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One load metric of a revision.

    ``total_value`` is the configured target load per pod. ``target_value`` is the load that one pod should have: the
    target times the utilisation.
    """

    metric: str
    target_value: float
    total_value: float


class ScalingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The scaling numbers of one revision. Times are in seconds, shares are ratios; every field is valid."""

    metric: str
    """Name of the load metric that the target applies to. Source: annotation ``metric``."""

    target_value: float
    """Load that one pod should have: the target times the utilisation. At least 0.01."""

    total_value: float
    """Most load of one pod: the target before the utilisation. At least 0.01."""

    target_burst_capacity: float
    """Free request capacity for a burst, over all pods. 0: the activator leaves the path as soon as a pod is ready. -1:
    it never does."""

    panic_threshold_ratio: float
    """Ratio of desired to ready pods from which the panic window decides too. Above 1 (1.1 to 10 by annotation)."""

    max_scale_up_rate: float
    """Largest ratio of desired to ready pods in one decision. Above 1, or nothing could grow."""

    max_scale_down_rate: float
    """Largest ratio of ready to desired pods in one decision. Above 1, or nothing could shrink."""

    stable_window_s: float
    """Width of the window that decides outside panic, and how long panic lasts after the last reason for it. 6 to
    3600, whole."""

    panic_window_s: float
    """Width of the window that detects a burst. At least 1, whole: see the function ``panic_window_s``."""

    window_kind: WindowKind
    """How both windows are averaged."""

    scale_down_delay_s: float
    """Time for which a lower count must be wanted before it takes effect. 0: immediately."""

    initial_scale: int
    """Pods that must be ready once before the revision counts as initialised. 0: none."""

    activation_scale: int
    """Pods started by any load. 1: no more than the load needs."""

    min_scale: int
    """Fewest pods while the revision is reachable. 0: none."""

    max_scale: int
    """Most pods. 0: no limit."""

    reachable: bool
    """Whether a route may send requests to the revision. False: no scale-down delay and no ``min_scale``."""

    progress_deadline_s: float
    """Deadline for the first pods to become ready. Above 0."""

    enable_scale_to_zero: bool
    """Whether the last pod may be removed. False: 1 pod stays."""

    scale_to_zero_grace_s: float
    """Longest wait before the last pod is removed, after the activators became the endpoints. Above 0."""

    scale_to_zero_pod_retention_s: float
    """Shortest time that the last pod stays after the revision became inactive. 0: only the grace period applies."""

    # Fields below are absent in decision records of earlier versions.
    class_name: str = KPA_CLASS
    """The scaling class. Source: annotation ``class``."""

    target_concurrency: float = 70.0
    """Target requests in flight per pod, for any metric; equals ``target_value`` for concurrency."""

    container_concurrency: int = 0
    """Hard limit of concurrent requests per pod; 0: no limit."""

    policy: str = KNATIVE_POLICY
    """The policy for the last pod and for spare capacity. Source: annotation ``policy``."""

    target_mode: TargetMode = TargetMode.SHADOW
    """How the learnt target is used.

    Source: annotation ``autoscaling.serving.dev/target``, else ``adaptive.learnt-target``.
    """

    cold_start_worth_s: float = 60.0
    """Worth of a cold start under ``policy: adaptive``, in pod-seconds. At least 1."""

    decision_period_s: float = DECISION_PERIOD_S
    """Time between two decisions."""

    further_metrics: tuple[MeasuredMetric, ...] = ()
    """Further metrics that may want pods; the largest count wins. Source: annotation
    ``autoscaling.serving.dev/metric``."""

    slo: Slo | None = None
    """A latency goal that determines the target. Source: annotation ``autoscaling.serving.dev/slo``."""

    dormant_after_s: float | None = None
    """Idle time before a pod's app is frozen. None: never."""

    dormant_call: str = ""
    """The app's HTTP calls for sleeping and waking (``settings.dormancy.read_calls``). "" freezes the app instead."""

    dormant_cost: float = 1.0
    """Price of a dormant pod per second; a running pod costs 1."""

    @property
    def load_metric(self) -> LoadMetric:
        """The load metric named by ``metric``."""
        return load_metric(self.metric)


def dormant_variables(spec: ScalingSpec) -> dict[str, str]:
    """The dormancy of a revision, as environment variables of its queue-proxies."""
    if spec.dormant_after_s is None:
        return {}
    calls = {"SERVING_POD_DORMANT_CALL": spec.dormant_call} if spec.dormant_call else {}
    return {"SERVING_POD_DORMANT_AFTER_S": f"{spec.dormant_after_s:g}", **calls}


def panic_window_s(stable_window_s: float, ratio: float) -> float:
    """Width of the panic window: a share of the stable window, rounded half up to whole seconds, at least 1 s.

    Examples: 0.1 of 60 s is 6 s. 0.1 of 15 s is 1.5 s, rounded to 2 s. 0.05 of 6 s is 0.3 s, raised to 1 s.
    """
    exact_s = round(stable_window_s * ratio, _NANOSECOND_DIGITS)
    return float(max(1, math.floor(exact_s + 0.5)))
