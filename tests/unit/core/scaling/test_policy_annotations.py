"""Annotations of Knative on a revision under ``policy: adaptive``: each acts, or selects Knative's policy."""

from collections.abc import Mapping

import pytest

from serving.core.scaling.resolve import resolve_annotations
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, AutoscalerSettings

PREFIX = "autoscaling.knative.dev/"
SETTINGS = AutoscalerSettings(policy=ADAPTIVE_POLICY)


def resolved(annotations: Mapping[str, str]) -> ScalingSpec:
    return resolve_annotations(annotations, SETTINGS, container_concurrency=10, reachable=True)


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("target-utilization-percentage", "50", "target_value", 5.0),
        ("panic-threshold-percentage", "300", "panic_threshold_ratio", 3.0),
        ("panic-window-percentage", "20", "panic_window_s", 12.0),
        ("window", "30s", "stable_window_s", 30.0),
        ("scale-down-delay", "5m", "scale_down_delay_s", 300.0),
        ("scale-to-zero-pod-retention-period", "4m", "scale_to_zero_pod_retention_s", 240.0),
        ("metric-aggregation-algorithm", "weightedExponential", "window_kind", "weightedExponential"),
    ],
)
def test_annotation_of_knative_algorithm_selects_knative_policy(
    name: str, value: str, field: str, expected: object
) -> None:
    spec = resolved({PREFIX + name: value})
    assert (resolved({}).policy, spec.policy) == (ADAPTIVE_POLICY, KNATIVE_POLICY)
    assert getattr(spec, field) == expected
    chosen = resolved({PREFIX + name: value, "autoscaling.serving.dev/policy": "adaptive"})
    assert (chosen.policy, getattr(chosen, field)) == (ADAPTIVE_POLICY, expected)


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("target", "5", "total_value", 5.0),
        ("min-scale", "2", "min_scale", 2),
        ("max-scale", "4", "max_scale", 4),
        ("initial-scale", "3", "initial_scale", 3),
        ("activation-scale", "3", "activation_scale", 3),
        ("target-burst-capacity", "-1", "target_burst_capacity", -1.0),
        ("metric", "rps", "metric", "rps"),
    ],
)
def test_annotation_of_both_policies_applies_under_adaptive_policy(
    name: str, value: str, field: str, expected: object
) -> None:
    spec = resolved({PREFIX + name: value})
    assert spec.policy == ADAPTIVE_POLICY
    assert getattr(spec, field) == expected
    assert getattr(resolved({}), field) != expected


def test_target_ratio_setting_applies_under_adaptive_policy() -> None:
    settings = AutoscalerSettings(policy=ADAPTIVE_POLICY, container_concurrency_target_ratio=0.5)
    spec = resolve_annotations({}, settings, container_concurrency=10, reachable=True)
    assert (spec.target_value, spec.policy) == (5.0, ADAPTIVE_POLICY)
