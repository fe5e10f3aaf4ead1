"""Numbers of pods by cpu and memory, as in kube-controller-manager; the worked numbers follow its documentation."""

from typing import Any

import pytest

from serving.core.model.nodata import NoData
from serving.core.scaling.podscaling import (
    MetricTarget,
    PodScaling,
    PodScalingState,
    PodUse,
    measured_metrics,
    pod_scaling_of,
    scaled_count,
)

NOW_S = 10_000.0
CPU_HALF = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
}

STEADY: dict[str, Any] = {"scaleDown": {"stabilizationWindowSeconds": 0}}


def new_scaling(*metrics: dict[str, Any], low: int = 1, high: int = 10, **behavior: Any) -> PodScaling:  # noqa: ANN401 - manifests
    return pod_scaling_of(
        {
            "spec": {
                "minReplicas": low,
                "maxReplicas": high,
                "metrics": list(metrics or (CPU_HALF,)),
                "behavior": behavior,
            }
        }
    )


def resource(name: str, *, container: str = "", **target: Any) -> dict[str, Any]:  # noqa: ANN401 - manifests
    kind, key = ("ContainerResource", "containerResource") if container else ("Resource", "resource")
    return {"type": kind, key: {"name": name, "container": container, "target": target}}


def pods(*used: float | None, requested: float | None = 1.0, unready: int = 0) -> list[PodUse]:
    ready = len(used) - unready
    return [PodUse(requested=requested, used=result, is_unready=at >= ready) for at, result in enumerate(used)]


def count(
    pod_scaling: PodScaling,
    *uses: list[PodUse],
    present: int,
    state: PodScalingState | None = None,
    now_s: float = NOW_S,
) -> int:
    return scaled_count(state or PodScalingState(), pod_scaling, uses, present_count=present, now_s=now_s)[1]


@pytest.mark.parametrize(
    ("used", "present", "wanted"),
    [
        # 90 % of a request where 50 % should be: 2 x 1.8 = 3.6.
        ((0.9, 0.9), 2, 4),
        # Within a tenth of the target nothing changes.
        ((0.54, 0.54), 2, 2),
        ((0.46, 0.46), 2, 2),
        ((0.1, 0.1, 0.1, 0.1), 4, 1),
        ((0.0, 0.0), 2, 1),
    ],
)
def test_count_is_use_over_target(used: tuple[float, ...], present: int, wanted: int) -> None:
    assert count(new_scaling(**STEADY), pods(*used), present=present) == wanted


def test_default_metric_is_80_percent_of_cpu() -> None:
    (metric,) = pod_scaling_of({"spec": {"maxReplicas": 3}}).metrics
    assert metric == MetricTarget(resource="cpu", percent=80)


def test_average_value_requires_no_request() -> None:
    pod_scaling = new_scaling(resource("memory", averageValue="100Mi"), resource("cpu", averageValue="500m"), **STEADY)
    memory, cpu = pods(250 * 2**20, requested=None), pods(0.2, requested=None)
    state, wanted, reason = scaled_count(PodScalingState(), pod_scaling, (memory, cpu), present_count=1, now_s=NOW_S)
    assert (wanted, reason) == (3, "memory at 250Mi/100Mi")
    assert state.changes == ((NOW_S, 2),)
    busy = scaled_count(state, pod_scaling, (pods(2**20), pods(1.0)), present_count=1, now_s=NOW_S)
    assert busy[2] == "cpu at 1000m/500m"


def test_reason_has_container_of_metric() -> None:
    pod_scaling = new_scaling(resource("cpu", container="app", averageUtilization=50), **STEADY)
    assert scaled_count(PodScalingState(), pod_scaling, (pods(0.5),), present_count=1, now_s=NOW_S)[2] == (
        "cpu of container app at 50%/50%"
    )


@pytest.mark.parametrize(
    ("metric", "expected_reason"),
    [
        ({"type": "Pods", "pods": {"metric": {"name": "x"}}}, "metric of type Pods: only cpu and memory"),
        ({"type": "External"}, "metric of type External: only cpu and memory"),
        (resource("cpu"), "metric cpu has neither averageUtilization nor averageValue"),
    ],
)
def test_unsupported_metric_is_reported(metric: dict[str, Any], expected_reason: str) -> None:
    pod_scaling = new_scaling(metric)
    assert isinstance(pod_scaling.metrics[0], NoData)
    _, wanted, reason = scaled_count(PodScalingState(), pod_scaling, ((),), present_count=2, now_s=NOW_S)
    assert wanted == 2
    assert reason.startswith(expected_reason)


def test_missing_metric_prevents_only_scale_down() -> None:
    pod_scaling = new_scaling(CPU_HALF, {"type": "External"}, **STEADY)
    assert count(pod_scaling, pods(0.1, 0.1), [], present=2) == 2
    assert count(pod_scaling, pods(0.9, 0.9), [], present=2) == 4


def test_utilization_requires_request_and_measured_pod() -> None:
    lines = [
        scaled_count(PodScalingState(), new_scaling(), (uses,), present_count=1, now_s=NOW_S)[2]
        for uses in (pods(0.9, requested=None), pods(None), pods(0.9, unready=1))
    ]
    assert lines == [
        "cpu: a pod requests none, so that there is no share of it",
        *["cpu: no ready pod is measured yet"] * 2,
    ]


@pytest.mark.parametrize(
    ("uses", "wanted"),
    [
        # Unmeasured on the way up uses nothing: (0.9 + 0) / 2 is 45 %, which is not above the target.
        (pods(0.9, None), 2),
        # (2.0 + 0) / 2 is 100 %: twice as many.
        (pods(2.0, None), 4),
        # Unready counts the same on the way up, and not at all on the way down.
        (pods(2.0, 9.0, unready=1), 4),
        (pods(0.1, 0.0, unready=1), 1),
        # Unmeasured on the way down uses its whole request: (0.1 + 1) / 2 is 55 %, which is not below the target.
        (pods(0.1, None), 2),
        # (0.1 * 3 + 1) / 4 is 32.5 %: 4 x 0.65.
        (pods(0.1, 0.1, 0.1, None), 3),
    ],
)
def test_unmeasured_pods_count_against_a_change(uses: list[PodUse], wanted: int) -> None:
    assert count(new_scaling(**STEADY), uses, present=len(uses)) == wanted


def test_unmeasured_pod_counts_as_average_value_on_scale_down() -> None:
    pod_scaling = new_scaling(resource("memory", averageValue="100"), **STEADY)
    # (10 + 10 + 100) / 3 is 40 of 100: 3 x 0.4 = 1.2.
    assert count(pod_scaling, pods(10.0, 10.0, None), present=3) == 2


def test_unmeasured_pods_never_reverse_direction() -> None:
    # 3 pods are there by the scale, and the one that is measured and the one that is not want 3.
    assert count(new_scaling(**STEADY), pods(1.5, None), present=4) == 4


def test_scale_zero_is_unchanged() -> None:
    assert scaled_count(PodScalingState(), new_scaling(), ((),), present_count=0, now_s=NOW_S)[1:] == (
        0,
        "scale 0 is left alone",
    )


def test_bounds_precede_metrics() -> None:
    pod_scaling = new_scaling(low=2, high=3, **STEADY)
    assert count(pod_scaling, pods(0.5), present=1) == 2
    assert count(pod_scaling, pods(*[0.5] * 6), present=6) == 3
    scaled_counts = scaled_count(PodScalingState(), pod_scaling, (pods(9.0, 9.0),), present_count=2, now_s=NOW_S)
    assert scaled_counts[1:] == (3, "cpu at 900%/50%; 6 is as far as the policies go at once; limited to maxReplicas 3")
    low = scaled_count(PodScalingState(), pod_scaling, (pods(0.0, 0.0, 0.0),), present_count=3, now_s=NOW_S)
    assert low[1:] == (2, "cpu at 0%/50%; raised to minReplicas 2")


def test_scale_down_waits_300_s_for_lower_recommendations() -> None:
    pod_scaling, state, counts = new_scaling(), PodScalingState(), []
    for second in range(0, 400, 15):
        state, wanted, reason = scaled_count(
            state, pod_scaling, (pods(*[0.1] * 4),), present_count=4, now_s=NOW_S + second
        )
        counts.append(wanted)
        if second == 0:
            assert reason == "cpu at 10%/50%; 4 held by the stabilization window"
    assert counts.index(1) == 300 / 15
    assert set(counts) == {4, 1}


def test_scale_up_window_uses_lowest_recommendation() -> None:
    pod_scaling = new_scaling(scaleUp={"stabilizationWindowSeconds": 60})
    state, wanted, _ = scaled_count(PodScalingState(), pod_scaling, (pods(0.9, 0.9),), present_count=2, now_s=NOW_S)
    assert wanted == 2
    assert count(pod_scaling, pods(0.9, 0.9), present=2, state=state, now_s=NOW_S + 61) == 4


def test_scale_up_adds_4_pods_or_100_percent_in_15_s() -> None:
    pod_scaling = new_scaling(high=100)
    state, wanted, _ = scaled_count(PodScalingState(), pod_scaling, (pods(50.0),), present_count=1, now_s=NOW_S)
    assert wanted == 5
    # Pods added in the period count, so no more are added in it.
    state, wanted, _ = scaled_count(state, pod_scaling, (pods(*[50.0] * 5),), present_count=5, now_s=NOW_S + 5)
    assert wanted == 5
    assert count(pod_scaling, pods(*[50.0] * 5), present=5, state=state, now_s=NOW_S + 20) == 10


@pytest.mark.parametrize(("select", "up", "down"), [("Max", 12, 4), ("Min", 10, 6), ("Disabled", 8, 8), (None, 12, 4)])
def test_select_policy_selects_largest_or_smallest_change_or_none(select: str | None, up: int, down: int) -> None:
    policies = [
        {"type": "Pods", "value": 2, "periodSeconds": 30},
        {"type": "Percent", "value": 50, "periodSeconds": 30},
    ]
    # Of 8 pods, 50 % are 4.
    rules = {"stabilizationWindowSeconds": 0, "policies": policies, "selectPolicy": select}
    pod_scaling = new_scaling(high=100, scaleUp=rules, scaleDown=rules)
    assert count(pod_scaling, pods(*[5.0] * 8), present=8) == up
    assert count(pod_scaling, pods(*[0.0] * 8), present=8) == down


def test_status_has_measured_metrics() -> None:
    memory = resource("memory", container="app", averageValue="100")
    pod_scaling = new_scaling(CPU_HALF, memory, {"type": "External"})
    metrics = measured_metrics(pod_scaling, [pods(0.25, None, 0.75, requested=2.0), pods(10.0, 20.0), []])
    assert metrics == [
        {
            "type": "Resource",
            "resource": {"name": "cpu", "current": {"averageValue": "500m", "averageUtilization": 25}},
        },
        {
            "type": "ContainerResource",
            "containerResource": {"name": "memory", "container": "app", "current": {"averageValue": "15"}},
        },
    ]
    assert measured_metrics(new_scaling(), [pods(None)]) == []
    assert measured_metrics(new_scaling(), [pods(1.0, requested=None)]) == []
