import pytest

from serving.core.model.errors import Problem
from serving.core.settings.annotations import GROUP, ScalingAnnotations, read_annotations, read_rollout_duration
from serving.core.settings.autoscaler import HPA_CLASS, AutoscalerSettings

SETTINGS = AutoscalerSettings(max_scale_limit=100)


def read(**annotations: str) -> ScalingAnnotations:
    new_annotations = read_annotations(
        {f"autoscaling.knative.dev/{key}": text for key, text in annotations.items()}, SETTINGS
    )
    assert new_annotations.problems == ()
    return new_annotations.scaling


def problems_of(annotations: dict[str, str], settings: AutoscalerSettings = SETTINGS) -> list[str]:
    named = {f"autoscaling.knative.dev/{key}": text for key, text in annotations.items()}
    return [str(problem) for problem in read_annotations(named, settings).problems]


def test_no_annotations_override_no_settings() -> None:
    assert read() == ScalingAnnotations()


def test_camel_case_and_kebab_case_keys_are_read() -> None:
    assert read(minScale="3") == read(**{"min-scale": "3"}) == ScalingAnnotations(overrides=(("min_scale", 3),))


def test_each_annotation_is_parsed_in_its_unit() -> None:
    assert read(
        **{
            "class": "kpa.autoscaling.knative.dev",
            "metric": "rps",
            "metric-aggregation-algorithm": "weightedExponential",
            "target": "150",
            "target-utilization-percentage": "80",
            "target-burst-capacity": "-1",
            "window": "40s",
            "panic-window-percentage": "20",
            "panic-threshold-percentage": "150",
            "min-scale": "2",
            "max-scale": "9",
            "initial-scale": "3",
            "activation-scale": "4",
            "scale-down-delay": "15m",
            "scale-to-zero-pod-retention-period": "1m5s",
        }
    ) == ScalingAnnotations(
        class_name="kpa.autoscaling.knative.dev",
        metric="rps",
        metric_aggregation_algorithm="weightedExponential",
        target=150.0,
        target_utilization_ratio=0.8,
        activation_scale=4,
        overrides=(
            ("stable_window_s", 40.0),
            ("panic_window_ratio", 0.2),
            ("panic_threshold_ratio", 1.5),
            ("target_burst_capacity", -1.0),
            ("scale_down_delay_s", 900.0),
            ("scale_to_zero_pod_retention_period_s", 65.0),
            ("initial_scale", 3),
            ("min_scale", 2),
            ("max_scale", 9),
        ),
    )


def test_progress_deadline_is_read_from_group_serving() -> None:
    annotations = read_annotations({"serving.knative.dev/progress-deadline": "2m"}, SETTINGS)
    assert annotations.scaling.override("progress_deadline_s") == 120.0


def test_equal_values_of_both_spellings_are_valid() -> None:
    assert read(**{"minScale": "3", "min-scale": "3"}).override("min_scale") == 3


def test_kebab_case_overrides_camel_case_with_warning() -> None:
    annotations = read_annotations({f"{GROUP}minScale": "3", f"{GROUP}min-scale": "4"}, SETTINGS)
    assert (annotations.scaling.override("min_scale"), annotations.problems) == (4, ())
    (warning,) = annotations.warnings
    assert "minScale: '3' has no effect beside autoscaling.knative.dev/min-scale: '4'" in str(warning)


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({"window": "5s"}, "window: '5s' is not right; expected a duration from 6s to 1h, in whole seconds"),
        ({"min-scale": "5", "max-scale": "4"}, "min-scale: 5 is above max-scale 4; expected at most 4"),
        ({"max-scale": "101"}, "max-scale: 101 is above max-scale-limit 100; expected at most 100"),
        ({"min-scale": "101"}, "min-scale: 101 is above max-scale-limit 100; expected at most 100"),
        ({"activation-scale": "1"}, "activation-scale: '1' is not right; expected a whole number from 2 to 2147483647"),
        (
            {"activation-scale": "2", "min-scale": "3"},
            "activation-scale: 2 is outside min-scale and max-scale; expected from 3",
        ),
        (
            {"activation-scale": "5", "max-scale": "4"},
            "activation-scale: 5 is outside min-scale and max-scale; expected from 2 to 4",
        ),
        (
            {"initial-scale": "0"},
            "initial-scale: 0 while allow-zero-initial-scale is false; expected a whole number of at least 1",
        ),
        ({"class": "x.knative.dev"}, "class: 'x.knative.dev' is not an autoscaler of Knative"),
        ({"metric": "cpu"}, "metric: 'cpu' is not right; expected one of concurrency, rps"),
        ({"metric": "", "class": HPA_CLASS}, "metric: empty; expected a metric's name"),
    ],
)
def test_invalid_annotation_is_reported_with_expected_form(annotations: dict[str, str], text: str) -> None:
    (problem,) = problems_of(annotations)
    assert text in problem


def test_all_problems_are_reported_together() -> None:
    assert len(problems_of({"window": "1s", "target": "0", "class": "x.knative.dev", "metric": "cpu"})) == 4


@pytest.mark.parametrize("class_name", ["someone.example.com", "classic.autoscaling.serving.dev", HPA_CLASS])
def test_other_autoscaler_classes_are_accepted(class_name: str) -> None:
    assert problems_of({"class": class_name}) == []


def test_class_of_settings_applies_without_class_annotation() -> None:
    assert problems_of({"metric": "cpu"}, AutoscalerSettings(pod_autoscaler_class=HPA_CLASS)) == []


def test_initial_scale_zero_is_valid_if_allowed() -> None:
    assert problems_of({"initial-scale": "0"}, AutoscalerSettings(allow_zero_initial_scale=True)) == []


def test_unknown_annotation_is_a_warning_and_other_groups_are_ignored() -> None:
    annotations = read_annotations({"autoscaling.knative.dev/min-scal": "1", "example.com/min-scal": "1"}, SETTINGS)
    (warning,) = annotations.warnings
    assert "autoscaling.knative.dev/min-scal: no such annotation; it has no effect" in str(warning)
    assert annotations.problems == ()


def test_class_of_other_autoscaler_is_a_warning() -> None:
    (warning,) = read_annotations({"autoscaling.knative.dev/class": "foo"}, SETTINGS).warnings
    assert "'foo' is the class of another autoscaler: none here scales the revision" in str(warning)


def test_max_scale_is_unbounded_without_limit() -> None:
    assert problems_of({"max-scale": "5000"}, AutoscalerSettings(max_scale_limit=0)) == []


def test_rollout_duration_is_read_in_both_spellings() -> None:
    assert read_rollout_duration({}) is None
    assert read_rollout_duration({"serving.knative.dev/rollout-duration": "1m30s"}) == 90
    assert read_rollout_duration({"serving.knative.dev/rolloutDuration": "0s"}) == 0
    problem = read_rollout_duration({"serving.knative.dev/rollout-duration": "soon"})
    assert isinstance(problem, Problem)
    assert (problem.where, problem.what) == (
        "annotation serving.knative.dev/rollout-duration",
        "'soon' is not right",
    )


def test_serving_target_annotation_accepts_only_learnt() -> None:
    key = "autoscaling.serving.dev/target"
    assert read_annotations({key: "learnt"}, AutoscalerSettings()).scaling.target_source == "learnt"
    (problem,) = read_annotations({key: "50"}, AutoscalerSettings()).problems
    assert key in problem.where
    assert "learnt" in problem.expected


def load_problems(load: str, **annotations: str) -> list[str]:
    named = {f"autoscaling.knative.dev/{key}": text for key, text in annotations.items()}
    new_annotations = read_annotations({**named, "autoscaling.serving.dev/metric": load}, SETTINGS)
    return [str(problem) for problem in new_annotations.problems]


def test_metric_annotation_accepts_several_metrics() -> None:
    assert load_problems("gauge:vllm:num_requests_waiting=5, concurrency=20, rps") == []
    assert load_problems("gauge:waiting", target="5") == []


@pytest.mark.parametrize(
    ("load", "annotations", "problem"),
    [
        (
            "speed=1",
            {},
            "annotation autoscaling.serving.dev/metric: 'speed=1' is not right; expected metrics with targets",
        ),
        ("gauge:a=x", {}, "expected targets from 0.01 to 1e+12, not 'x'"),
        ("gauge:a", {}, "gauge:a has no target; expected autoscaling.serving.dev/metric: gauge:a=NUMBER"),
        ("rps, gauge:a", {"target": "5"}, "gauge:a has no target"),
        ("rps", {"metric": "rps"}, "autoscaling.knative.dev/metric stands beside it; expected one of the two"),
        ("rps", {"class": HPA_CLASS}, "only the class kpa.autoscaling.knative.dev scales by it"),
    ],
)
def test_invalid_metric_annotation_is_rejected(load: str, annotations: dict[str, str], problem: str) -> None:
    (each_problem,) = load_problems(load, **annotations)
    assert problem in each_problem


def test_gauge_in_knative_metric_annotation_requires_target() -> None:
    assert problems_of({"metric": "gauge:a", "target": "3"}) == []
    (problem,) = problems_of({"metric": "gauge:a"})
    assert problem.startswith("annotation autoscaling.knative.dev/metric: gauge:a has no target")


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ({"autoscaling.serving.dev/slo": "p95<300"}, "slo: 'p95<300' is not right; expected a percentile from p50 to"),
        ({"autoscaling.serving.dev/slo": "p95<1s", "autoscaling.knative.dev/class": HPA_CLASS}, "only the class kpa."),
        (
            {"autoscaling.serving.dev/slo": "p95<1s", "autoscaling.serving.dev/target": "use"},
            "autoscaling.serving.dev/target: use stands beside it; expected one of the two",
        ),
    ],
)
def test_invalid_slo_annotation_is_rejected_with_one_problem(annotations: dict[str, str], problem: str) -> None:
    (each_problem,) = read_annotations(annotations, SETTINGS).problems
    assert problem in str(each_problem)


def test_slo_annotation_is_read_without_surrounding_spaces() -> None:
    assert (
        read_annotations({"autoscaling.serving.dev/slo": " p99-wait<100ms"}, SETTINGS).scaling.slo == "p99-wait<100ms"
    )


@pytest.mark.parametrize(
    ("text", "is_right"), [("500m", True), ("2", True), ("0", False), ("1025", False), ("much", False)]
)
def test_start_cpu_must_be_a_cpu_quantity_within_bounds(text: str, is_right: bool) -> None:
    annotations = read_annotations({"serving.dev/start-cpu": text}, SETTINGS)
    assert annotations.scaling.start_cpu == (text if is_right else None)
    assert len(annotations.problems) == (not is_right)
