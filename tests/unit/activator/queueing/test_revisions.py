"""Parsing of Revisions and ScaledWorkloads."""

from typing import Any

import pytest

from serving.activator.queueing.revisions import ServedRevision, revision_of, workload_of
from serving.core.model.knative import ServingState
from serving.core.model.nodata import NoData
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadService, WorkloadTarget
from serving.core.scaling.resolve import resolve
from serving.core.settings.annotations import read_annotations
from serving.core.settings.autoscaler import AutoscalerSettings

SCALING = AutoscalerSettings()


def revision(
    *,
    annotations: dict[str, str] | None = None,
    scaling: AutoscalerSettings = SCALING,
    **parts: Any,  # noqa: ANN401 - JSON
) -> ServedRevision:
    metadata = {"name": "hello-00001", "namespace": "default", "resourceVersion": "7", "annotations": annotations}
    read = revision_of({"metadata": metadata, **parts}, scaling)
    assert isinstance(read, ServedRevision)
    return read


def test_revision_fields_are_read_from_the_resource() -> None:
    spec = {
        "servingState": "Reserve",
        "containerConcurrency": 10,
        "timeoutSeconds": 60,
        "responseStartTimeoutSeconds": 5,
        "idleTimeoutSeconds": 7,
        "containers": [{}],
    }
    assert revision(spec=spec, status={"desiredReplicas": 3}) == ServedRevision(
        key=("default", "hello-00001"),
        resource_version="7",
        serving_state=ServingState.RESERVE,
        target_concurrency=7.0,
        container_concurrency=10,
        timeout_s=60,
        response_start_timeout_s=5,
        idle_timeout_s=7,
        desired_count=3,
    )


def test_revision_without_fields_gets_the_defaults() -> None:
    assert revision(spec={"idleTimeoutSeconds": 0}) == ServedRevision(
        key=("default", "hello-00001"),
        resource_version="7",
        serving_state=ServingState.ACTIVE,
        target_concurrency=70.0,
    )


@pytest.mark.parametrize(
    ("condition", "failure"),
    [
        ({"type": "Ready", "status": "False", "reason": "ExitCode1", "message": "it died"}, "ExitCode1: it died"),
        ({"type": "Ready", "status": "False"}, "not ready"),
        ({"type": "Ready", "status": "Unknown", "reason": "Deploying"}, None),
        ({"type": "Active", "status": "False", "reason": "NoTraffic"}, None),
        ({"type": "Ready", "status": "True"}, None),
    ],
)
def test_only_condition_ready_false_is_a_failure(condition: dict[str, str], failure: str | None) -> None:
    assert revision(status={"conditions": [condition]}).failure == failure


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulingGated"])
def test_unscheduled_pod_delays_a_revision_and_does_not_fail_it(reason: str) -> None:
    condition = {"type": "Ready", "status": "False", "reason": reason, "message": "0/1 nodes are available"}
    facts = revision(status={"conditions": [condition]})
    assert (facts.failure, facts.delay) == (None, f"{reason}: 0/1 nodes are available")


@pytest.mark.parametrize(
    ("annotations", "target"),
    [
        ({}, 70.0),
        ({"autoscaling.knative.dev/target": "5"}, 3.5),
        ({"autoscaling.knative.dev/target": "0"}, 70.0),
        ({"autoscaling.knative.dev/target": "many"}, 70.0),
        ({"autoscaling.knative.dev/target": "5", "autoscaling.knative.dev/metric": "concurrency"}, 3.5),
        ({"autoscaling.knative.dev/target": "5", "autoscaling.knative.dev/metric": "rps"}, 70.0),
        ({"autoscaling.knative.dev/target-utilization-percentage": "20"}, 20.0),
        ({"autoscaling.knative.dev/targetUtilizationPercentage": "20"}, 20.0),
    ],
)
def test_target_concurrency_equals_the_autoscalers(annotations: dict[str, str], target: float) -> None:
    scaling = read_annotations(annotations, SCALING).scaling
    aimed_at = resolve(SCALING, scaling, container_concurrency=0, reachable=True)
    target_concurrency = revision(annotations=annotations).target_concurrency
    assert target_concurrency == aimed_at.target_concurrency == pytest.approx(target)
    assert aimed_at.metric != "concurrency" or target_concurrency == aimed_at.target_value


def test_target_concurrency_uses_the_autoscaler_settings() -> None:
    assert revision(scaling=AutoscalerSettings(container_concurrency_target_default=10.0)).target_concurrency == 7.0


def test_invalid_revision_is_no_data() -> None:
    assert revision_of({"metadata": {"name": "r"}, "spec": {"servingState": "Asleep"}}, SCALING) == NoData(
        missing="fields that can be read: Invalid enum value 'Asleep' - at `$.spec.servingState`"
    )


def test_exec_readiness_probe_is_left_to_the_kubelet() -> None:
    probed = {"readinessProbe": {"exec": {"command": ["true"]}}}
    assert revision(spec={"containers": [probed]}).kubelet_decides
    assert not revision(spec={"containers": [{}]}).kubelet_decides


def test_saved_learnt_target_applies_in_modes_use_and_protect() -> None:
    learnt = {
        "autoscaling.serving.dev/learnt-target": '{"total": 10.0, "bound": "cpu", "above": 8.0, "response_s": 0.1}'
    }
    for mode, target in (("use", 7.0), ("protect", 7.0), ("shadow", 70.0), ("off", 70.0)):
        annotations = {**learnt, "autoscaling.serving.dev/target": mode}
        assert revision(annotations=annotations).target_concurrency == target


def test_workload_is_read_as_a_revision_without_queue_proxy() -> None:
    metadata = {"name": "shop", "namespace": "default", "resourceVersion": "7"}
    spec = {"target": {"name": "shop"}, "service": {"name": "shop"}, "scaling": {"target": 10}, "timeoutSeconds": 9}
    spec |= {"maxPendingRequests": 4, "waitTimeoutSeconds": 3}
    resource = {"metadata": metadata, "spec": spec}
    assert workload_of(resource, ScaledWorkloadSpec.from_object(resource), SCALING) == ServedRevision(
        key=("default", "shop"),
        resource_version="7",
        serving_state=ServingState.ACTIVE,
        target_concurrency=7.0,
        timeout_s=9,
        waiting_max=4,
        wait_max_s=3,
        kubelet_decides=True,
        is_workload=True,
    )


def test_invalid_workload_is_no_data() -> None:
    spec = ScaledWorkloadSpec(target=WorkloadTarget(name="shop"), service=WorkloadService(name="shop"))
    assert workload_of({"metadata": {"name": "shop", "uid": 3}}, spec, SCALING) == NoData(
        missing="fields that can be read: Expected `str`, got `int` - at `$.metadata.uid`"
    )
