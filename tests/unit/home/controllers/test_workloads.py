from unittest.mock import ANY

import pytest

from serving.core.model.objects import Object
from serving.home.controllers.workloads import (
    PodPlan,
    deployment_status,
    desired_slices,
    is_ready,
    new_pod,
    plan_pods,
    selects,
)

RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"


def new_deployment(replicas: int | None = 1) -> Object:
    spec: Object = {"template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c"}]}}}
    if replicas is not None:
        spec["replicas"] = replicas
    metadata = {"name": "d", "namespace": "default", "uid": "u", "generation": 3}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def pod(name: str, *, ready: bool = True, age: int = 0, cost: str | None = None, **extra: str) -> Object:
    metadata: Object = {
        "name": name,
        "namespace": "default",
        "uid": name,
        "labels": {"app": "a"},
        "creationTimestamp": f"2026-11-21T00:00:{59 - age:02}Z",
        **extra,
    }
    if cost is not None:
        metadata["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": cost}
    status = {"podIP": "127.64.0.1", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return {"metadata": metadata, "status": status}


def test_missing_replicas_are_created() -> None:
    assert plan_pods(new_deployment(3), [pod("a")]) == PodPlan(create_count=2, delete_names=())


def test_replicas_default_to_one() -> None:
    assert plan_pods(new_deployment(None), []).create_count == 1


def test_terminating_pod_does_not_count_as_replica() -> None:
    assert plan_pods(new_deployment(1), [pod("a", deletionTimestamp="x")]).create_count == 1


def test_evicted_pod_is_replaced_and_not_deleted() -> None:
    evicted = {**pod("a"), "status": {"phase": "Failed", "reason": "Evicted"}}
    assert plan_pods(new_deployment(1), [evicted]) == PodPlan(create_count=1, delete_names=())
    assert plan_pods(new_deployment(1), [evicted, pod("b")]) == PodPlan(create_count=0, delete_names=())
    assert deployment_status(new_deployment(1), [evicted, pod("b")])["replicas"] == 1


@pytest.mark.parametrize(
    ("pods", "goes"),
    [
        ([pod("ready"), pod("starting", ready=False)], "starting"),
        ([pod("dear", cost="9"), pod("cheap", cost="-1")], "cheap"),
        ([pod("old", age=30), pod("young", age=1)], "young"),
        ([pod("odd", cost="free"), pod("cheap", cost="-1")], "cheap"),
    ],
)
def test_scale_down_deletes_pods_in_kubernetes_order(pods: list[Object], goes: str) -> None:
    assert plan_pods(new_deployment(1), pods).delete_names == (goes,)


def test_new_pod_has_owner_reference_and_no_node() -> None:
    resource = new_pod(new_deployment())
    assert resource["metadata"]["generateName"] == "d-"
    assert resource["metadata"]["labels"] == {"app": "a", "pod-template-hash": ANY}
    assert resource["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert "nodeName" not in resource["spec"]


def test_changed_template_replaces_pods_of_unowned_deployments_only() -> None:
    before, changed = new_deployment(1), new_deployment(1)
    changed["spec"]["template"] = {**changed["spec"]["template"], "spec": {"containers": [{"image": "other"}]}}
    first = {**new_pod(before), "status": pod("a")["status"]}
    first["metadata"] = {**first["metadata"], "name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}
    assert plan_pods(before, [first]) == PodPlan(create_count=0, delete_names=())
    assert plan_pods(changed, [first]) == PodPlan(create_count=1, delete_names=())
    changed["metadata"]["ownerReferences"] = [{"kind": "Revision"}]
    assert plan_pods(changed, [pod("a")]) == PodPlan(create_count=0, delete_names=())


def test_deployment_is_available_if_all_pods_are_ready() -> None:
    status = deployment_status(new_deployment(2), [pod("a"), pod("b", ready=False), pod("c", deletionTimestamp="x")])
    assert (status["replicas"], status["readyReplicas"], status["unavailableReplicas"]) == (2, 1, 1)
    assert status["conditions"][0]["status"] == "False"
    assert deployment_status(new_deployment(1), [pod("a")])["conditions"][0]["status"] == "True"


def test_unchanged_deployment_condition_is_retained() -> None:
    before = {**deployment_status(new_deployment(1), [pod("a")])["conditions"][0], "lastTransitionTime": "then"}
    result = {**new_deployment(1), "status": {"conditions": [before]}}
    assert deployment_status(result, [pod("a")])["conditions"] == [before]
    assert deployment_status(result, [])["conditions"] != [before]


def nowhere(_namespace: str, _name: str, _port: int) -> None:
    return None


def of_revision(resource: Object) -> Object:
    labels = {**resource["metadata"]["labels"], "serving.knative.dev/revision": "a-00001"}
    return {**resource, "metadata": {**resource["metadata"], "labels": labels}}


def service(selector: dict[str, str] | None) -> Object:
    metadata = {"name": "s", "namespace": "default", "uid": "su", "labels": {"x": "y"}}
    return {
        "metadata": metadata,
        "spec": {"selector": selector, "ports": [{"name": "http", "port": 80, "targetPort": 8012}]},
    }


def test_endpoint_slice_lists_selected_pods_with_conditions() -> None:
    pods = [pod("b", ready=False), pod("a"), pod("c", deletionTimestamp="x"), {**pod("d"), "status": {}}]
    (slice_,) = desired_slices(service({"app": "a"}), [of_revision(each_pod) for each_pod in pods], reach=nowhere)
    assert slice_["metadata"]["labels"] == {"x": "y", "kubernetes.io/service-name": "s"}
    assert slice_["ports"] == [{"name": "http", "port": 8012, "protocol": "TCP"}]
    assert [(endpoint["targetRef"]["name"], endpoint["conditions"]) for endpoint in slice_["endpoints"]] == [
        ("a", {"ready": True, "serving": True, "terminating": False}),
        ("b", {"ready": False, "serving": False, "terminating": False}),
    ]


def test_terminating_pod_without_revision_remains_an_endpoint() -> None:
    (slice_,) = desired_slices(service({"app": "a"}), [pod("c", deletionTimestamp="x")], reach=nowhere)
    (endpoint,) = slice_["endpoints"]
    assert endpoint["conditions"] == {"ready": False, "serving": True, "terminating": True}


def test_pods_without_queue_proxy_are_grouped_into_slices_by_port() -> None:
    """Processes on different ports need one slice per port; a container listens on its named port."""
    named = service({"app": "a"})
    named["spec"]["ports"][0]["targetPort"] = "web"
    containers = [{"name": "c", "ports": [{"name": "admin", "containerPort": 9}, {"name": "web", "containerPort": 80}]}]
    pods = [{**pod(name), "spec": {"containers": containers}} for name in ("a", "b", "c", "d")]
    addresses = {"a": ("127.0.0.1", 20001), "b": ("127.0.0.1", 20002), "c": ("10.137.3.7", 80)}

    def reach(_namespace: str, name: str, port: int) -> tuple[str, int] | None:
        assert port == 80
        return addresses.get(name)

    slices = {slice_["metadata"]["name"]: slice_ for slice_ in desired_slices(named, pods, reach=reach)}
    assert sorted(slices) == ["s-local", "s-local-20001", "s-local-20002", "s-local-80"]
    assert (slices["s-local"]["endpoints"], slices["s-local"]["ports"]) == ([], [])
    assert slices["s-local-80"]["ports"] == [{"name": "http", "port": 80, "protocol": "TCP"}]
    assert [endpoint["addresses"] for endpoint in slices["s-local-20002"]["endpoints"]] == [["127.0.0.1"]]
    # Pod d has no known address yet, so its podIP is used.
    assert [endpoint["addresses"] for endpoint in slices["s-local-80"]["endpoints"]] == [["10.137.3.7"], ["127.64.0.1"]]


def test_endpoint_slice_has_app_protocol_of_the_port() -> None:
    secured = service({"app": "a"})
    secured["spec"]["ports"][0]["appProtocol"] = "https"
    (slice_,) = desired_slices(secured, [of_revision(pod("a"))], reach=nowhere)
    assert slice_["ports"] == [{"name": "http", "port": 8012, "protocol": "TCP", "appProtocol": "https"}]


def test_pod_without_the_named_target_port_is_no_endpoint() -> None:
    named = service({"app": "a"})
    named["spec"]["ports"][0]["targetPort"] = "web"
    (only,) = desired_slices(named, [{**pod("a"), "spec": {"containers": [{"name": "c"}]}}], reach=nowhere)
    assert only["endpoints"] == []


def test_service_without_matching_selector_selects_no_pod() -> None:
    assert not selects(service(None), pod("a"))
    assert not selects(service({"app": "b"}), pod("a"))


def test_pod_without_status_is_not_ready() -> None:
    assert not is_ready({"metadata": {}})


def restarted(replicas: int) -> Object:
    deployment = new_deployment(replicas)
    deployment["spec"]["template"] = {"metadata": {"annotations": {RESTARTED_AT: "now"}}, "spec": {}}
    return deployment


def renewed(name: str) -> Object:
    resource = pod(name)
    resource["metadata"]["annotations"] = {RESTARTED_AT: "now"}
    return resource


def test_rollout_restart_creates_a_pod_before_deleting_a_ready_pod() -> None:
    assert plan_pods(restarted(1), [pod("a")]) == PodPlan(create_count=1, delete_names=())
    assert plan_pods(restarted(1), [pod("a"), renewed("b")]) == PodPlan(create_count=0, delete_names=("a",))
    assert plan_pods(restarted(1), [renewed("b")]) == PodPlan(create_count=0, delete_names=())


def test_changed_guarded_annotation_replaces_pods() -> None:
    guarded = new_deployment(1)
    guarded["spec"]["template"]["metadata"]["annotations"] = {"serving.dev/guarded": "true"}
    guard = pod("b")
    guard["metadata"]["annotations"] = {"serving.dev/guarded": "true"}
    assert plan_pods(guarded, [pod("a")]) == PodPlan(create_count=1, delete_names=())
    assert plan_pods(guarded, [pod("a"), guard]) == PodPlan(create_count=0, delete_names=("a",))
    assert plan_pods(new_deployment(1), [guard]) == PodPlan(create_count=1, delete_names=())


def test_rollout_restart_at_zero_replicas_only_deletes() -> None:
    assert plan_pods(restarted(0), [pod("a")]) == PodPlan(create_count=0, delete_names=("a",))


def test_status_counts_updated_replicas() -> None:
    assert deployment_status(restarted(2), [pod("a"), renewed("b")])["updatedReplicas"] == 1
