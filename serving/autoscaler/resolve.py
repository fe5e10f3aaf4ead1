"""From what is written about a revision to the numbers its decisions need.

In: the autoscaler's settings, the revision's annotations (read and checked), its containerConcurrency, and whether a
route names it. Out: a ``ScalerSpec``. An annotation goes before a setting; what neither says has a default in the
settings. Source: knative/serving 98e5ef90, pkg/reconciler/autoscaling/resources/target.go and kpa/resources/decider.go.
"""

from typing import TypeVar

from serving.autoscaler.spec import Metric, ScalerSpec, WindowKind, panic_window_s
from serving.settings.annotations import ScalingAnnotations
from serving.settings.autoscaler import TARGET_MIN, AutoscalerSettings

__all__ = ["classic_target", "resolve"]

# Knative holds requests a second to this share of their target, whatever the share for concurrency is set to.
RPS_TARGET_RATIO = 0.7

T = TypeVar("T")


def resolve(
    settings: AutoscalerSettings, scaling: ScalingAnnotations, *, container_concurrency: int, reachable: bool
) -> ScalerSpec:
    """The numbers of one revision. ``container_concurrency`` is requests at once per pod; 0 means no limit."""
    metric = Metric(scaling.metric or Metric.CONCURRENCY)
    total_value = _total_value(settings, scaling, metric, container_concurrency=container_concurrency)
    usual_ratio = RPS_TARGET_RATIO if metric is Metric.RPS else settings.container_concurrency_target_ratio
    stable_window_s = _or(scaling.stable_window_s, settings.stable_window_s)
    panic_ratio = _or(scaling.panic_window_ratio, settings.panic_window_ratio)
    return ScalerSpec(
        metric=metric,
        # 100 requests at once per pod, held to 70 %: 70 is aimed at, 100 is what a burst may fill.
        target_value=max(TARGET_MIN, total_value * _or(scaling.target_utilization_ratio, usual_ratio)),
        total_value=total_value,
        target_burst_capacity=_or(scaling.target_burst_capacity, settings.target_burst_capacity),
        activator_capacity=settings.activator_capacity,
        panic_threshold_ratio=_or(scaling.panic_threshold_ratio, settings.panic_threshold_ratio),
        max_scale_up_rate=settings.max_scale_up_rate,
        max_scale_down_rate=settings.max_scale_down_rate,
        stable_window_s=stable_window_s,
        panic_window_s=panic_window_s(stable_window_s, panic_ratio),
        window_kind=WindowKind(scaling.metric_aggregation_algorithm or WindowKind.LINEAR),
        scale_down_delay_s=_or(scaling.scale_down_delay_s, settings.scale_down_delay_s),
        initial_scale=_or(scaling.initial_scale, settings.initial_scale),
        activation_scale=_or(scaling.activation_scale, 1),
        min_scale=_or(scaling.min_scale, settings.min_scale),
        # The limit bounds revisions that name no maximum, so that a wrong stat cannot start pods without end.
        max_scale=_or(scaling.max_scale, settings.max_scale) or settings.max_scale_limit,
        reachable=reachable,
        progress_deadline_s=_or(scaling.progress_deadline_s, settings.progress_deadline_s),
        enable_scale_to_zero=settings.enable_scale_to_zero,
        scale_to_zero_grace_s=settings.scale_to_zero_grace_period_s,
        scale_to_zero_pod_retention_s=_or(
            scaling.scale_to_zero_pod_retention_period_s, settings.scale_to_zero_pod_retention_period_s
        ),
    )


def classic_target(settings: AutoscalerSettings, *, container_concurrency: int) -> float:
    """Requests in flight that a pod should have under the classic algorithm.

    Model Single of 2018 is containerConcurrency 1 today; everything else is model Multi.
    """
    classic = settings.classic
    return classic.single_concurrency_target if container_concurrency == 1 else classic.multi_concurrency_target


def _total_value(
    settings: AutoscalerSettings, scaling: ScalingAnnotations, metric: Metric, *, container_concurrency: int
) -> float:
    if metric is Metric.RPS:
        return _or(scaling.target, settings.requests_per_second_target_default)
    if not container_concurrency:
        return _or(scaling.target, settings.container_concurrency_target_default)
    # More than the hard limit never runs in a pod, so a higher target would never be met.
    return min(_or(scaling.target, float(container_concurrency)), float(container_concurrency))


def _or(asked: T | None, default: T) -> T:
    return default if asked is None else asked
