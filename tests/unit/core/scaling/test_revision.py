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


def test_a_revision_says_what_it_needs() -> None:
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


def test_a_revision_that_says_nothing_is_active_and_unlimited() -> None:
    scaled_revision = revision_of(revision(), SETTINGS)
    assert scaled_revision is not None
    assert (scaled_revision.serving_state, scaled_revision.container_concurrency) == (ServingState.ACTIVE, 0)


@pytest.mark.parametrize(("state", "reachable"), [("active", True), ("pending", True), ("reserve", False)])
def test_only_a_revision_that_lost_its_routes_is_unreachable(state: str, reachable: bool) -> None:
    scaled_revision = revision_of(revision(labels={"serving.knative.dev/routingState": state}), SETTINGS)
    assert scaled_revision is not None
    assert scaled_revision.spec.reachable is reachable


def test_a_revision_was_ready_if_it_says_so_anywhere() -> None:
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
def test_a_revision_failed_while_it_is_not_ready(status: str, *, is_failed: bool) -> None:
    conditions = [{"type": "Active", "status": "False"}, {"type": "Ready", "status": status}]
    scaled_revision = revision_of(revision(status={"conditions": conditions}), SETTINGS)
    assert scaled_revision is not None
    assert scaled_revision.is_failed is is_failed


@pytest.mark.parametrize(
    ("name", "is_ours"), [(KPA_CLASS, True), (CLASSIC_CLASS, True), (HPA_CLASS, False), ("mine.example.com", False)]
)
def test_a_revision_of_another_autoscaler_is_left_alone(name: str, is_ours: bool) -> None:
    scaled_revision = revision_of(revision(annotations={"autoscaling.knative.dev/class": name}), SETTINGS)
    assert (scaled_revision is not None) is is_ours


def test_a_revision_that_goes_away_is_left_alone() -> None:
    assert revision_of(revision(deletionTimestamp="2026-11-21T00:00:00Z"), SETTINGS) is None


def test_memory_is_requested_or_limited_or_assumed() -> None:
    def asking(**resources: object) -> dict[str, object]:
        return {"name": "c", "resources": resources}

    containers = [asking(requests={"memory": "64Mi"}, limits={"memory": "1Gi"}), asking(limits={"memory": "128Mi"}), {}]
    scaled_revision = revision_of(revision({"containers": containers}), SETTINGS)
    assert scaled_revision is not None
    assert scaled_revision.pod_bytes == (64 + 128 + 200) * 2**20


def deployment(replicas: int | None, **metadata: object) -> dict[str, Any]:
    owner = {"kind": "Revision", "name": "r", "uid": "u"}
    names = {"namespace": "default", "name": "r-deployment", "resourceVersion": "8", "labels": LABEL}
    spec = {} if replicas is None else {"replicas": replicas}
    return {"metadata": {**names, "ownerReferences": [owner], **metadata}, "spec": spec}


def test_a_deployment_has_the_scale_of_its_revision() -> None:
    assert deployment_of(deployment(3)) == ScaledDeployment(
        name="r-deployment", key=("default", "r"), revision_uid="u", replica_count=3, resource_version="8"
    )


def test_a_scale_that_is_not_set_is_one() -> None:
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
def test_a_deployment_that_no_revision_owns_is_not_ours(metadata: dict[str, object]) -> None:
    assert deployment_of(deployment(1, **metadata)) is None


def new_pod(*, ready: str = "True", **metadata: object) -> dict[str, Any]:
    names = {"namespace": "default", "name": "p", "labels": LABEL}
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {**names, **metadata}, "status": {"phase": "Running", "conditions": conditions}}


def test_a_pod_is_ready_as_it_says() -> None:
    assert pod_of(new_pod()) == ScaledPod(
        name="p", key=("default", "r"), is_ready=True, is_ending=False, deletion_cost=""
    )
    scaled_pod = pod_of(new_pod(ready="False", annotations={"controller.kubernetes.io/pod-deletion-cost": "-1"}))
    assert scaled_pod is not None
    assert (scaled_pod.is_ready, scaled_pod.deletion_cost) == (False, "-1")


def test_a_ready_pod_may_be_dormant() -> None:
    pod = new_pod()
    pod["status"]["conditions"] += [{"type": CONDITION_DORMANT, "status": "True"}]
    assert (seen := pod_of(pod)) is not None
    assert seen.is_dormant
    pod["status"]["conditions"] = pod["status"]["conditions"][1:]
    assert (seen := pod_of(pod)) is not None
    assert not seen.is_dormant


def test_a_pod_that_ends_is_not_ready() -> None:
    scaled_pod = pod_of(new_pod(deletionTimestamp="2026-11-21T00:00:00Z"))
    assert scaled_pod is not None
    assert (scaled_pod.is_ready, scaled_pod.is_ending) == (False, True)


def test_a_pod_that_says_nothing_of_itself_is_pending() -> None:
    scaled_pod = pod_of({"metadata": {"namespace": "default", "name": "p", "labels": LABEL}})
    assert scaled_pod is not None
    assert (scaled_pod.is_ready, scaled_pod.phase) == (False, "Pending")


def test_a_pod_without_the_label_is_not_ours() -> None:
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
def test_a_pod_says_what_keeps_it_from_starting(status: dict[str, Any], trouble: Trouble | None) -> None:
    scaled_pod = pod_of({"metadata": {"name": "p", "labels": LABEL}, "status": status})
    assert scaled_pod is not None
    assert scaled_pod.trouble is trouble


def test_a_pod_that_ends_or_serves_is_in_no_trouble() -> None:
    waiting = [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": waiting}
    for metadata, status in (({"deletionTimestamp": "now"}, {"containerStatuses": waiting}), ({}, ready)):
        scaled_pod = pod_of({"metadata": {"name": "p", "labels": LABEL, **metadata}, "status": status})
        assert scaled_pod is not None
        assert scaled_pod.trouble is None


def test_a_revision_says_whose_it_is() -> None:
    labels = {"serving.knative.dev/configuration": "c", "serving.knative.dev/service": "s"}
    scaled_revision = revision_of(revision(labels=labels), SETTINGS)
    assert scaled_revision is not None
    assert (scaled_revision.configuration, scaled_revision.service) == ("c", "s")


def test_a_revision_says_what_its_container_may_use_and_what_was_learnt_of_its_target() -> None:
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
def test_a_pod_says_how_often_it_ran_out_of_memory(status: dict[str, Any], count: int) -> None:
    scaled_pod = pod_of({"metadata": {"name": "p", "labels": LABEL}, "status": {"containerStatuses": [status]}})
    assert scaled_pod is not None
    assert scaled_pod.oom_kill_count == count
    assert scaled_pod.restart_count == status.get("restartCount", 0)


@pytest.mark.parametrize("annotations", [{}, {"serving.dev/traffic-path": "nonsense"}])
def test_the_traffic_path_is_proxy_by_default(annotations: dict[str, str]) -> None:
    scaled_revision = revision_of(revision(annotations=annotations), SETTINGS)
    assert scaled_revision is not None
    assert scaled_revision.path is TrafficPath.PROXY


def test_the_written_traffic_path_is_read() -> None:
    scaled_revision = revision_of(revision(annotations={"serving.dev/traffic-path": "serve"}), SETTINGS)
    assert scaled_revision is not None
    assert scaled_revision.path is TrafficPath.SERVE


def test_a_revision_without_containers_has_no_limits() -> None:
    assert serving_container([]) == ServingContainer()


def test_the_limit_of_cpu_goes_before_its_request() -> None:
    result = {"name": "c", "resources": {"limits": {"cpu": "2", "memory": "1Ki"}, "requests": {"cpu": "1"}}}
    assert serving_container([result]) == ServingContainer(name="c", limits=Resources(cpu_m=2000, memory_bytes=1024))


def test_a_request_of_cpu_is_what_a_pod_can_count_on() -> None:
    result = {"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "1Ki"}}}
    assert serving_container([result]).limits == Resources(cpu_m=100)


def test_of_several_containers_the_one_with_a_port_takes_requests() -> None:
    assert serving_container([{"name": "a"}, {"name": "b", "ports": [{"containerPort": 80}]}]).name == "b"


def test_a_workload_is_a_revision_that_was_ready() -> None:
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
def test_any_object_with_replicas_is_a_target(spec: dict[str, Any], count: int) -> None:
    target = WorkloadTarget(name="db", kind="StatefulSet")
    scaled_deployment = target_of(
        {"metadata": {"resourceVersion": "9"}, "spec": spec}, ("default", "r"), target, uid="u"
    )
    assert scaled_deployment == ScaledDeployment(
        name="db", key=("default", "r"), revision_uid="u", replica_count=count, resource_version="9", target=target
    )


def test_a_pod_without_the_label_is_one_of_the_workload_that_selects_it() -> None:
    pod = {"metadata": {"namespace": "default", "name": "p"}}
    assert pod_of(pod) is None
    scaled_pod = pod_of(pod, workload="shop")
    assert scaled_pod is not None
    assert scaled_pod.key == ("default", "shop")
