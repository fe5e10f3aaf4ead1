from typing import Any

import pytest

from serving.core.model.knative import TargetMode
from serving.core.scaling.resolve import classic_target, resolve, resolve_annotations
from serving.core.scaling.spec import ScalingSpec, WindowKind, dormant_variables
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import (
    ADAPTIVE_POLICY,
    CLASSIC_CLASS,
    HPA_CLASS,
    KNATIVE_POLICY,
    AdaptiveSettings,
    AutoscalerSettings,
)
from serving.core.settings.dormancy import DORMANT
from serving.core.settings.knob import Field, Value, fields_of

SETTINGS = AutoscalerSettings()


def new_spec(
    scaling: ScalingAnnotations | None = None,
    settings: AutoscalerSettings = SETTINGS,
    *,
    container_concurrency: int = 0,
) -> ScalingSpec:
    annotations = scaling or ScalingAnnotations()
    return resolve(settings, annotations, container_concurrency=container_concurrency, reachable=True)


def test_spec_without_annotations_has_values_of_settings() -> None:
    scaling_spec = new_spec()
    assert (scaling_spec.metric, scaling_spec.total_value, scaling_spec.target_value) == ("concurrency", 100.0, 70.0)
    assert (scaling_spec.stable_window_s, scaling_spec.panic_window_s, scaling_spec.window_kind) == (
        60.0,
        6.0,
        WindowKind.LINEAR,
    )
    assert (scaling_spec.min_scale, scaling_spec.activation_scale, scaling_spec.initial_scale) == (0, 1, 1)
    assert scaling_spec.reachable


def test_container_concurrency_is_total_value() -> None:
    scaling_spec = new_spec(container_concurrency=10)
    assert (scaling_spec.total_value, scaling_spec.target_value) == (10.0, 7.0)


@pytest.mark.parametrize(("target", "total_value"), [(4.0, 4.0), (40.0, 10.0)])
def test_target_is_limited_to_container_concurrency(target: float, total_value: float) -> None:
    assert new_spec(ScalingAnnotations(target=target), container_concurrency=10).total_value == total_value


def test_rps_has_its_own_utilization_ratio() -> None:
    settings = AutoscalerSettings(container_concurrency_target_ratio=0.5)
    scaling_spec = new_spec(ScalingAnnotations(metric="rps"), settings)
    assert (scaling_spec.metric, scaling_spec.total_value, scaling_spec.target_value) == ("rps", 200.0, 140.0)


def test_annotation_overrides_setting() -> None:
    scaling_spec = new_spec(
        ScalingAnnotations(
            target=50.0,
            target_utilization_ratio=1.0,
            activation_scale=3,
            metric_aggregation_algorithm="weighted-exponential",
            overrides=(("stable_window_s", 15.0), ("panic_window_ratio", 0.1), ("min_scale", 2)),
        ),
        AutoscalerSettings(min_scale=1),
    )
    assert (
        scaling_spec.total_value,
        scaling_spec.target_value,
        scaling_spec.min_scale,
        scaling_spec.activation_scale,
    ) == (50.0, 50.0, 2, 3)
    assert (scaling_spec.panic_window_s, scaling_spec.window_kind) == (2.0, WindowKind.WEIGHTED_EXPONENTIAL)


def another(field: Field) -> Value:
    """A value of a setting that is right, and not its default."""
    if field.knob.unit is DORMANT:
        return "only"
    tried: tuple[Value, ...] = (*field.knob.choices, 0.5, 1, 2, 7, 700)
    return next(candidate for candidate in tried if candidate != field.default and field.knob.admits(candidate))


@pytest.mark.parametrize(
    "field", [field for field in fields_of(AutoscalerSettings) if field.knob.annotation], ids=lambda field: field.name
)
def test_every_annotated_setting_affects_spec(field: Field) -> None:
    annotations = ScalingAnnotations(overrides=((field.name, another(field)),))
    assert new_spec(annotations) != new_spec(), f"serving/core/scaling/resolve.py does not use own.{field.name}"


def test_zero_annotation_overrides_setting() -> None:
    settings = AutoscalerSettings(min_scale=3, target_burst_capacity=100)
    scaling_spec = new_spec(ScalingAnnotations(overrides=(("min_scale", 0), ("target_burst_capacity", 0))), settings)
    assert (scaling_spec.min_scale, scaling_spec.target_burst_capacity) == (0, 0)


@pytest.mark.parametrize(
    ("annotated_max", "limit", "max_scale"), [(None, 1000, 1000), (0, 1000, 1000), (5, 1000, 5), (None, 0, 0)]
)
def test_max_scale_defaults_to_limit(annotated_max: int | None, limit: int, max_scale: int) -> None:
    overrides = () if annotated_max is None else (("max_scale", annotated_max),)
    scaling_spec = new_spec(ScalingAnnotations(overrides=overrides), AutoscalerSettings(max_scale_limit=limit))
    assert scaling_spec.max_scale == max_scale


def test_decision_period_is_that_of_settings() -> None:
    assert new_spec(settings=AutoscalerSettings(decision_period_s=5.0)).decision_period_s == 5.0


def test_target_is_at_least_0_01() -> None:
    assert new_spec(ScalingAnnotations(target=0.01, target_utilization_ratio=0.5)).target_value == 0.01


@pytest.mark.parametrize(("container_concurrency", "target"), [(0, 1.0), (1, 0.9), (2, 1.0)])
def test_classic_target_depends_on_container_concurrency(container_concurrency: int, target: float) -> None:
    assert classic_target(SETTINGS, container_concurrency=container_concurrency) == target


def test_target_concurrency_ignores_target_of_other_metrics() -> None:
    rps = resolve(SETTINGS, ScalingAnnotations(metric="rps", target=5.0), container_concurrency=10, reachable=True)
    assert (rps.target_value, rps.target_concurrency) == (3.5, 7.0)


def test_metric_of_hpa_is_not_measured() -> None:
    annotations = ScalingAnnotations(metric="cpu", class_name=HPA_CLASS)
    scaling_spec = resolve(SETTINGS, annotations, container_concurrency=0, reachable=True)
    assert (scaling_spec.class_name, scaling_spec.metric) == (HPA_CLASS, "concurrency")


def test_target_mode_is_that_of_annotation_or_settings() -> None:
    assert new_spec().target_mode is TargetMode.SHADOW
    for text, mode in (("learnt", "use"), ("use", "use"), ("protect", "protect"), ("shadow", "shadow"), ("off", "off")):
        assert new_spec(ScalingAnnotations(target_source=text)).target_mode == mode
    cluster = {"true": "shadow", "false": "off", "protect": "protect"}
    for text, mode in cluster.items():
        settings = AutoscalerSettings(adaptive=AdaptiveSettings(learnt_target=text))
        assert new_spec(settings=settings).target_mode == mode
        assert new_spec(ScalingAnnotations(target_source="use"), settings).target_mode is TargetMode.USE


def test_classic_class_does_not_use_learnt_target() -> None:
    classic = ScalingAnnotations(target_source="learnt", class_name=CLASSIC_CLASS)
    assert new_spec(classic).target_mode is TargetMode.SHADOW
    off = AutoscalerSettings(adaptive=AdaptiveSettings(learnt_target="off"))
    assert new_spec(ScalingAnnotations(class_name=CLASSIC_CLASS), off).target_mode is TargetMode.OFF


def test_several_metrics_have_their_own_targets() -> None:
    scaling_spec = new_spec(ScalingAnnotations(load="gauge:a=0.8, concurrency=20, rps, queue-length", target=9.0))
    assert (scaling_spec.metric, scaling_spec.total_value, scaling_spec.target_value) == ("gauge:a", 0.8, 0.8)
    assert [
        (measured_metric.metric, measured_metric.total_value, measured_metric.target_value)
        for measured_metric in scaling_spec.further_metrics
    ] == [
        ("concurrency", 20.0, 14.0),
        ("rps", 200.0, 140.0),
        ("queue-length", 10.0, 7.0),
    ]
    # The activator, which counts requests, asks by the target of requests.
    assert scaling_spec.target_concurrency == 14.0


def test_target_annotation_applies_to_first_metric_without_target() -> None:
    scaling_spec = new_spec(ScalingAnnotations(load="gauge:a, gauge:b=2", target=9.0, target_utilization_ratio=0.5))
    assert (scaling_spec.total_value, scaling_spec.target_value, scaling_spec.further_metrics[0].target_value) == (
        9.0,
        4.5,
        1.0,
    )


def dormant_spec(annotations: dict[str, str], *, reachable: bool = True, **settings: Any) -> ScalingSpec:  # noqa: ANN401 - of settings
    named = {f"serving.dev/{name}": text for name, text in annotations.items()}
    return resolve_annotations(named, AutoscalerSettings(**settings), container_concurrency=0, reachable=reachable)


def test_default_policy_is_adaptive() -> None:
    assert new_spec().policy == ADAPTIVE_POLICY


def test_dormancy_is_off_by_default() -> None:
    scaling_spec = dormant_spec({})
    assert (scaling_spec.dormant_after_s, scaling_spec.dormant_cost) == (None, 1.0)


def test_dormant_setting_applies_only_under_adaptive_policy() -> None:
    assert dormant_spec({}, dormant="after=1s", policy=KNATIVE_POLICY).dormant_after_s is None
    assert dormant_spec({}, dormant="after=1s").dormant_after_s == 1.0


def test_dormant_annotation_applies_under_each_policy() -> None:
    scaling_spec = dormant_spec({"dormant": "after=2s", "dormant-call": "POST /a, POST /b"}, policy=KNATIVE_POLICY)
    assert (scaling_spec.policy, scaling_spec.dormant_after_s, scaling_spec.dormant_cost) == (KNATIVE_POLICY, 2.0, 0.2)
    assert scaling_spec.dormant_call == "POST /a, POST /b"
    assert dormant_spec({"dormant": "never"}, dormant="only", policy=ADAPTIVE_POLICY).dormant_after_s is None


def test_dormant_only_disables_scale_to_zero_while_reachable() -> None:
    assert not dormant_spec({"dormant": "only"}).enable_scale_to_zero
    assert dormant_spec({"dormant": "only"}, reachable=False).enable_scale_to_zero


def test_dormant_spec_becomes_queue_proxy_variables() -> None:
    assert dormant_variables(dormant_spec({})) == {}
    assert dormant_variables(dormant_spec({"dormant": "after=100ms"})) == {"SERVING_POD_DORMANT_AFTER_S": "0.1"}
    result = dormant_variables(dormant_spec({"dormant": "after=1s", "dormant-call": "POST /a, POST /b"}))
    assert result == {"SERVING_POD_DORMANT_AFTER_S": "1", "SERVING_POD_DORMANT_CALL": "POST /a, POST /b"}
