"""Resolves settings and annotations of a revision into its scaling numbers, for every daemon.

Inputs: the autoscaler's settings, the revision's scaling annotations, its containerConcurrency, and whether a route
names it. Output: a ``ScalingSpec``. An annotation overrides a setting. The autoscaler uses the result for decisions,
the activator for pokes, and the controller for the initial scale and the bounds. No other module reads these settings.
Source: knative/serving 98e5ef90, pkg/reconciler/autoscaling/resources/target.go and kpa/resources/decider.go.
"""

import functools
from collections.abc import Mapping
from typing import TypeVar

from serving.core.model.knative import TargetMode
from serving.core.model.loadmetric import CONCURRENCY, LoadMetric, LoadWish, load_metric
from serving.core.model.slo import read_slo
from serving.core.scaling.spec import MeasuredMetric, ScalingSpec, WindowKind, panic_window_s
from serving.core.settings.annotations import ScalingAnnotations, read_annotations
from serving.core.settings.autoscaler import KNATIVE_POLICY, KPA_CLASS, TARGET_MIN, AutoscalerSettings
from serving.core.settings.dormancy import NEVER, read_dormant

# Knative's fixed target share for requests a second, independent of the share for concurrency. We use it for every
# other load metric too.
OTHER_TARGET_RATIO = 0.7

# Settings of Knative's windows and delays, which the adaptive policy replaces.
_KNATIVE_PACE = frozenset(
    {
        "panic_threshold_ratio",
        "panic_window_ratio",
        "scale_down_delay_s",
        "scale_to_zero_pod_retention_period_s",
        "stable_window_s",
    }
)

# Cached, because decisions resolve the same specs again and again.
_SPECS_KEPT = 4096
_UNSET, _IN_FLIGHT = ScalingAnnotations(), LoadWish(metric=CONCURRENCY.name)

T = TypeVar("T")


def resolve_annotations(
    annotations: Mapping[str, str], settings: AutoscalerSettings, *, container_concurrency: int, reachable: bool
) -> ScalingSpec:
    """The scaling numbers of a revision from its annotations as text; invalid annotations are ignored."""
    scaling = read_annotations(annotations, settings).scaling
    return resolve(settings, scaling, container_concurrency=container_concurrency, reachable=reachable)


@functools.lru_cache(_SPECS_KEPT)
def resolve(
    settings: AutoscalerSettings, scaling: ScalingAnnotations, *, container_concurrency: int, reachable: bool
) -> ScalingSpec:
    """The scaling numbers of a revision.

    ``container_concurrency`` is the limit of requests in flight per pod; 0 means no limit.
    """
    first, *further = (
        _measured(settings, scaling, wish, container_concurrency=container_concurrency) for wish in scaling.wishes
    )
    metric = load_metric(first.metric)
    in_flight = next((measured for measured in (first, *further) if measured.metric == CONCURRENCY.name), None)
    class_name = scaling.class_name or settings.pod_autoscaler_class
    own = scaling.applied_to(settings)
    policy = KNATIVE_POLICY if _has_own_pace(scaling) else own.policy
    # Under Knative's policy pods become dormant only if the revision sets it.
    is_asked = policy != KNATIVE_POLICY or scaling.override("dormant") is not None
    dormant = read_dormant(own.dormant if is_asked else NEVER)
    return ScalingSpec(
        class_name=class_name,
        metric=metric.name,
        # 100 requests per pod at 70 %: the target is 70, and a burst may use 100.
        target_value=first.target_value,
        total_value=first.total_value,
        # A target in another unit does not limit requests in flight.
        target_concurrency=(
            in_flight or _measured(settings, _UNSET, _IN_FLIGHT, container_concurrency=container_concurrency)
        ).target_value,
        target_burst_capacity=own.target_burst_capacity,
        panic_threshold_ratio=own.panic_threshold_ratio,
        max_scale_up_rate=own.max_scale_up_rate,
        max_scale_down_rate=own.max_scale_down_rate,
        stable_window_s=own.stable_window_s,
        panic_window_s=panic_window_s(own.stable_window_s, own.panic_window_ratio),
        window_kind=WindowKind(scaling.metric_aggregation_algorithm or WindowKind.LINEAR),
        scale_down_delay_s=own.scale_down_delay_s,
        initial_scale=own.initial_scale,
        activation_scale=_or(scaling.activation_scale, 1),
        min_scale=own.min_scale,
        # The limit applies to revisions without a maximum, so that a wrong stat cannot start unlimited pods.
        max_scale=own.max_scale or own.max_scale_limit,
        reachable=reachable,
        progress_deadline_s=own.progress_deadline_s,
        enable_scale_to_zero=own.enable_scale_to_zero and not (dormant.is_only and reachable),
        scale_to_zero_grace_s=own.scale_to_zero_grace_period_s,
        scale_to_zero_pod_retention_s=own.scale_to_zero_pod_retention_period_s,
        container_concurrency=container_concurrency,
        policy=policy,
        target_mode=_target_mode(settings, scaling, class_name),
        cold_start_worth_s=own.cold_start_worth_s,
        decision_period_s=own.decision_period_s,
        further_metrics=tuple(further),
        slo=None if scaling.slo is None else read_slo(scaling.slo),
        dormant_after_s=dormant.after_s,
        dormant_call=_or(scaling.dormant_call, ""),
        dormant_cost=1.0 if dormant.after_s is None else own.dormant_cost,
    )


def classic_target(settings: AutoscalerSettings, *, container_concurrency: int) -> float:
    """The target of requests in flight per pod under the classic algorithm (Knative's of June 2018).

    A containerConcurrency of 1 selects the target ``single_concurrency_target``, any other value the target for
    several.
    """
    classic = settings.classic
    return classic.single_concurrency_target if container_concurrency == 1 else classic.multi_concurrency_target


def _measured(
    settings: AutoscalerSettings, scaling: ScalingAnnotations, wish: LoadWish, *, container_concurrency: int
) -> MeasuredMetric:
    metric = load_metric(wish.metric)
    total_value = _total_value(settings, wish, metric, container_concurrency=container_concurrency)
    usual_ratio = settings.container_concurrency_target_ratio if metric is CONCURRENCY else OTHER_TARGET_RATIO
    ratio = _or(scaling.target_utilization_ratio, _or(metric.utilisation, usual_ratio))
    return MeasuredMetric(
        metric=metric.name, target_value=max(TARGET_MIN, total_value * ratio), total_value=total_value
    )


def _total_value(
    settings: AutoscalerSettings, wish: LoadWish, metric: LoadMetric, *, container_concurrency: int
) -> float:
    if metric is not CONCURRENCY:
        return _or(wish.target, _or(metric.target_default, settings.requests_per_second_target_default))
    if not container_concurrency:
        return _or(wish.target, settings.container_concurrency_target_default)
    # A pod never runs more than the hard limit, so a higher target could not be met.
    return min(_or(wish.target, float(container_concurrency)), float(container_concurrency))


def _target_mode(settings: AutoscalerSettings, scaling: ScalingAnnotations, class_name: str) -> TargetMode:
    """How the learnt target is used; the classic algorithm always uses the configured target."""
    mode = TargetMode(scaling.target_source or settings.adaptive.learnt_target)
    return mode if class_name == KPA_CLASS or mode is TargetMode.OFF else TargetMode.SHADOW


def _has_own_pace(scaling: ScalingAnnotations) -> bool:
    """Whether a revision tunes Knative's algorithm by annotations.

    Such a revision has ``policy: knative`` unless it names a policy.
    """
    own = dict(scaling.overrides)
    is_tuned = scaling.target_utilization_ratio is not None or scaling.metric_aggregation_algorithm is not None
    return "policy" not in own and (is_tuned or not _KNATIVE_PACE.isdisjoint(own))


def _or(written: T | None, default: T) -> T:
    return default if written is None else written
