from typing import Any

import pytest

from serving.core.model.knative import CONDITION_DORMANT, ServingState, TrafficPath
from serving.core.model.quantity import Resources
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadTarget
from serving.core.scaling.revision import (
    ScaledDeployment,
    ScaledPod,
    ServingContainer,
    Trouble,
    deployment_of,
    pod_of,
    revision_of,
    serving_container,
    target_of,
    workload_of,
)
from serving.core.settings.autoscaler import CLASSIC_CLASS, HPA_CLASS, KPA_CLASS, AutoscalerSettings

SETTINGS = AutoscalerSettings()
LABEL = {"serving.knative.dev/revision": "r"}

KILLED = {"terminated": {"reason": "OOMKilled"}}


def revision(
    spec: dict[str, Any] | None = None,
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    status: object = None,
    **metadata: object,
) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "default",
            "name": "r",
            "uid": "u",
            "resourceVersion": "7",
            "annotations": annotations,
            "labels": labels,
            **metadata,
        },
        "spec": spec or {},
        "status": status,
    }


def test_revision_is_read_with_key_state_and_spec() -> None:
    scaled_revision = revision_of(
        revision(
            {"containerConcurrency": 10, "servingState": "Reserve"},
            annotations={"autoscaling.knative.dev/min-scale": "2"},
        ),
        SETTINGS,
    )
    assert scaled_revision is not None
    assert (scaled_revision.key, scaled_revision.uid, scaled_revision.resource_version) == (("default", "r"), "u", "7")
    assert (scaled_revision.serving_state, scaled_revision.class_name) == (ServingState.RESERVE, KPA_CLASS)
    assert (scaled_revision.spec.target_value, scaled_revision.spec.min_scale, scaled_revision.spec.reachable) == (
        7.0,
        2,
        True,
    )
    assert not scaled_revision.was_ready


def test_empty_revision_is_active_without_limit() -> None:
    scaled_revision = revision_of(revision(), SETTINGS)
    assert scaled_revision is not None
    assert (scaled_revision.serving_state, scaled_revision.container_concurrency) == (ServingState.ACTIVE, 0)


@pytest.mark.parametrize(("state", "reachable"), [("active", True), ("pending", True), ("reserve", False)])
def test_only_revision_in_routing_state_reserve_is_unreachable(state: str, reachable: bool) -> None:
    scaled_revision = revision_of(revision(labels={"serving.knative.dev/routingState": state}), SETTINGS)
    assert scaled_revision is not None
    assert scaled_revision.spec.reachable is reachable


def test_was_ready_is_read_from_condition_or_annotations() -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    not_ready = {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Active", "status": "True"}]}
    by_annotation = {"serving.knative.dev/lastPinned": "2026-11-21T00:00:00Z"}
    by_former_annotation = {"serving.dev/became-ready": "2026-11-21T00:00:00Z"}
    scaled_revisions = [
        revision_of(resource, SETTINGS)
        for resource in (
            revision(status=ready),
            revision(annotations=by_annotation),
            revision(annotations=by_former_annotation),
            revision(status=not_ready),
        )
    ]
    assert [scaled_revision is not None and scaled_revision.was_ready for scaled_revision in scaled_revisions] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(("status", "is_failed"), [("True", False), ("Unknown", False), ("False", True)])
def test_revision_with_ready_false_is_failed(status: str, *, is_failed: bool) -> None:
    conditions = [{"type": "Active", "status": "False"}, {"type": "Ready", "status": status}]
    scaled_revision = revision_of(revision(status={"conditions": conditions}), SETTINGS)
    assert scaled_revision is not None
    assert scaled_revision.is_failed is is_failed


@pytest.mark.parametrize(
    ("name", "is_scaled"), [(KPA_CLASS, True), (CLASSIC_CLASS, True), (HPA_CLASS, False), ("mine.example.com", False)]
)
def test_revision_of_other_autoscaler_is_ignored(name: str, is_scaled: bool) -> None:
    scaled_revision = revision_of(revision(annotations={"autoscaling.knative.dev/class": name}), SETTINGS)
    assert (scaled_revision is not None) is is_scaled


def test_deleted_revision_is_ignored() -> None:
    assert revision_of(revision(deletionTimestamp="2026-11-21T00:00:00Z"), SETTINGS) is None


def test_pod_memory_is_request_or_limit_or_default() -> None:
    def container_with(**resources: object) -> dict[str, object]:
        return {"name": "c", "resources": resources}

    containers = [
        container_with(requests={"memory": "64Mi"}, limits={"memory": "1Gi"}),
        container_with(limits={"memory": "128Mi"}),
        {},
    ]
    scaled_revision = revision_of(revision({"containers": containers}), SETTINGS)
    assert scaled_revision is not None
    assert scaled_revision.pod_bytes == (64 + 128 + 200) * 2**20


def deployment(replicas: int | None, **metadata: object) -> dict[str, Any]:
    owner = {"kind": "Revision", "name": "r", "uid": "u"}
    names = {"namespace": "default", "name": "r-deployment", "resourceVersion": "8", "labels": LABEL}
    spec = {} if replicas is None else {"replicas": replicas}
    return {"metadata": {**names, "ownerReferences": [owner], **metadata}, "spec": spec}


def test_deployment_has_scale_of_its_revision() -> None:
    assert deployment_of(deployment(3)) == ScaledDeployment(
        name="r-deployment", key=("default", "r"), revision_uid="u", replica_count=3, resource_version="8"
    )


def test_unset_replicas_count_as_one() -> None:
    scaled_deployment = deployment_of(deployment(None))
    assert scaled_deployment is not None
    assert scaled_deployment.replica_count == 1


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": None},
        {"ownerReferences": None},
        {"ownerReferences": [{"kind": "Revision", "name": "other", "uid": "u"}]},
        {"ownerReferences": [{"kind": "Widget", "name": "r", "uid": "u"}]},
    ],
)
def test_deployment_without_owning_revision_is_ignored(metadata: dict[str, object]) -> None:
    assert deployment_of(deployment(1, **metadata)) is None


def new_pod(*, ready: str = "True", **metadata: object) -> dict[str, Any]:
    names = {"namespace": "default", "name": "p", "labels": LABEL}
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {**names, **metadata}, "status": {"phase": "Running", "conditions": conditions}}


def test_pod_has_readiness_and_deletion_cost() -> None:
    assert pod_of(new_pod()) == ScaledPod(
        name="p", key=("default", "r"), is_ready=True, is_ending=False, deletion_cost=""
    )
    scaled_pod = pod_of(new_pod(ready="False", annotations={"controller.kubernetes.io/pod-deletion-cost": "-1"}))
    assert scaled_pod is not None
    assert (scaled_pod.is_ready, scaled_pod.deletion_cost) == (False, "-1")


def test_only_ready_pod_is_dormant() -> None:
    pod = new_pod()
    pod["status"]["conditions"] += [{"type": CONDITION_DORMANT, "status": "True"}]
    assert (seen := pod_of(pod)) is not None
    assert seen.is_dormant
    pod["status"]["conditions"] = pod["status"]["conditions"][1:]
    assert (seen := pod_of(pod)) is not None
    assert not seen.is_dormant


def test_terminating_pod_is_not_ready() -> None:
    scaled_pod = pod_of(new_pod(deletionTimestamp="2026-11-21T00:00:00Z"))
    assert scaled_pod is not None
    assert (scaled_pod.is_ready, scaled_pod.is_ending) == (False, True)


def test_pod_without_status_is_pending() -> None:
    scaled_pod = pod_of({"metadata": {"namespace": "default", "name": "p", "labels": LABEL}})
    assert scaled_pod is not None
    assert (scaled_pod.is_ready, scaled_pod.phase) == (False, "Pending")


def test_pod_without_revision_label_is_ignored() -> None:
    assert pod_of(new_pod(labels=None)) is None


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({}, None),
        ({"conditions": [{"type": "PodScheduled", "status": "False"}]}, Trouble.PENDING),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}, Trouble.FAILING),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}, {}]}, None),
        ({"containerStatuses": [{"state": {"running": {}}}]}, None),
    ],
)
def test_trouble_of_pod_is_pending_or_failing(status: dict[str, Any], trouble: Trouble | None) -> None:
    scaled_pod = pod_of({"metadata": {"name": "p", "labels": LABEL}, "status": status})
    assert scaled_pod is not None
    assert scaled_pod.trouble is trouble


def test_terminating_or_ready_pod_has_no_trouble() -> None:
    waiting = [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": waiting}
    for metadata, status in (({"deletionTimestamp": "now"}, {"containerStatuses": waiting}), ({}, ready)):
        scaled_pod = pod_of({"metadata": {"name": "p", "labels": LABEL, **metadata}, "status": status})
        assert scaled_pod is not None
        assert scaled_pod.trouble is None


def test_revision_has_configuration_and_service_of_its_labels() -> None:
    labels = {"serving.knative.dev/configuration": "c", "serving.knative.dev/service": "s"}
    scaled_revision = revision_of(revision(labels=labels), SETTINGS)
    assert scaled_revision is not None
    assert (scaled_revision.configuration, scaled_revision.service) == ("c", "s")


def test_revision_has_container_limits_and_learnt_target() -> None:
    container = {"name": "c", "resources": {"limits": {"memory": "1Ki"}}}
    learnt = '{"total":7.2}'
    annotations = {"autoscaling.serving.dev/learnt-target": learnt, "autoscaling.serving.dev/target": "learnt"}
    scaled_revision = revision_of(revision({"containers": [container]}, annotations=annotations), SETTINGS)
    assert scaled_revision is not None
    assert (scaled_revision.container.name, scaled_revision.container.limits.memory_bytes) == ("c", 1024)
    assert (scaled_revision.learnt_target, scaled_revision.spec.target_mode) == (learnt, "use")


@pytest.mark.parametrize(
    ("status", "count"),
    [
        ({"restartCount": 3}, 0),
        ({"state": KILLED}, 1),
        ({"state": {"waiting": {}}, "lastState": KILLED, "restartCount": 1}, 1),
        ({"state": KILLED, "lastState": KILLED, "restartCount": 1}, 2),
        ({"state": {"running": {}}, "lastState": {"terminated": {"reason": "Error"}}, "restartCount": 2}, 0),
    ],
)
def test_oom_kill_count_is_read_from_container_status(status: dict[str, Any], count: int) -> None:
    scaled_pod = pod_of({"metadata": {"name": "p", "labels": LABEL}, "status": {"containerStatuses": [status]}})
    assert scaled_pod is not None
    assert scaled_pod.oom_kill_count == count
    assert scaled_pod.restart_count == status.get("restartCount", 0)


@pytest.mark.parametrize("annotations", [{}, {"serving.dev/traffic-path": "nonsense"}])
def test_traffic_path_defaults_to_proxy(annotations: dict[str, str]) -> None:
    scaled_revision = revision_of(revision(annotations=annotations), SETTINGS)
    assert scaled_revision is not None
    assert scaled_revision.path is TrafficPath.PROXY


def test_traffic_path_is_read_from_annotation() -> None:
    scaled_revision = revision_of(revision(annotations={"serving.dev/traffic-path": "serve"}), SETTINGS)
    assert scaled_revision is not None
    assert scaled_revision.path is TrafficPath.SERVE


def test_revision_without_containers_has_no_limits() -> None:
    assert serving_container([]) == ServingContainer()


def test_cpu_limit_overrides_cpu_request() -> None:
    result = {"name": "c", "resources": {"limits": {"cpu": "2", "memory": "1Ki"}, "requests": {"cpu": "1"}}}
    assert serving_container([result]) == ServingContainer(name="c", limits=Resources(cpu_m=2000, memory_bytes=1024))


def test_cpu_request_is_limit_without_cpu_limit() -> None:
    result = {"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "1Ki"}}}
    assert serving_container([result]).limits == Resources(cpu_m=100)


def test_serving_container_is_the_one_with_a_port() -> None:
    assert serving_container([{"name": "a"}, {"name": "b", "ports": [{"containerPort": 80}]}]).name == "b"


def test_workload_reads_as_ready_revision() -> None:
    resource = revision({"target": {"name": "shop"}, "service": {"name": "shop"}, "scaling": {"max": 3}})
    spec = ScaledWorkloadSpec.from_object(resource)
    scaled_revision = workload_of(resource, spec, SETTINGS)
    assert scaled_revision is not None
    assert (scaled_revision.key, scaled_revision.uid, scaled_revision.spec.max_scale) == (("default", "r"), "u", 3)
    assert scaled_revision.is_workload
    assert scaled_revision.was_ready
    assert not scaled_revision.is_failed
    assert not scaled_revision.is_contested
    contested = workload_of(
        {**resource, "status": {"conditions": [{"type": "ScaledAlone", "status": "False"}]}}, spec, SETTINGS
    )
    assert contested is not None
    assert contested.is_contested
    gone = {**resource, "metadata": {**resource["metadata"], "deletionTimestamp": "now"}}
    assert workload_of(gone, spec, SETTINGS) is None


@pytest.mark.parametrize(("spec", "count"), [({}, 1), ({"replicas": 0}, 0), ({"replicas": 4}, 4)])
def test_object_with_replicas_is_a_workload_target(spec: dict[str, Any], count: int) -> None:
    target = WorkloadTarget(name="db", kind="StatefulSet")
    scaled_deployment = target_of(
        {"metadata": {"resourceVersion": "9"}, "spec": spec}, ("default", "r"), target, uid="u"
    )
    assert scaled_deployment == ScaledDeployment(
        name="db", key=("default", "r"), revision_uid="u", replica_count=count, resource_version="9", target=target
    )


def test_pod_without_label_belongs_to_selecting_workload() -> None:
    pod = {"metadata": {"namespace": "default", "name": "p"}}
    assert pod_of(pod) is None
    scaled_pod = pod_of(pod, workload="shop")
    assert scaled_pod is not None
    assert scaled_pod.key == ("default", "shop")
