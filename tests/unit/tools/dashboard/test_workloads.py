"""Views of ScaledWorkloads on the dashboard."""

import pytest

from serving.core.model.objects import Object
from serving.tools.dashboard.views import pod_view
from serving.tools.dashboard.workloads import WorkloadPods, labelled, workload_view

KEY = ("default", "shop")


def workload(selector: str = "app=shop", **status: object) -> Object:
    target = {"kind": "StatefulSet", "name": "shop"}
    return {
        "metadata": {"namespace": "default", "name": "shop", "annotations": {"serving.dev/serving-state": "Reserve"}},
        "spec": {"target": target, "service": {"name": "shop"}, "scaling": {"max": 4}},
        "status": {"selector": selector, "url": "http://shop.example.com", **status},
    }


def pod(name: str = "p", namespace: str = "default", **labels: str) -> Object:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}}


def test_workload_view_resembles_a_revision_view_with_its_kind() -> None:
    view = workload_view(workload(desiredReplicas=2))
    assert (view["kind"], view["target"], view["url"]) == ("StatefulSet", "shop", "http://shop.example.com")
    assert (view["service"], view["state"], view["scaling"]) == ("", "Active", {"max-scale": "4"})
    assert workload_view(workload(desiredReplicas=0))["state"] == "Reserve"


def test_invalid_workload_view_has_its_conditions() -> None:
    conditions = [{"type": "Ready", "status": "False", "reason": "InvalidSpec", "message": "spec.target"}]
    view = workload_view({"metadata": {"name": "shop"}, "spec": {}, "status": {"conditions": conditions}})
    assert (view["kind"], view["ready"], view["conditions"][0]["reason"]) == ("Deployment", "False", "InvalidSpec")


def test_pods_are_matched_by_the_selector_of_the_workload() -> None:
    pods = WorkloadPods()
    assert pods.put(KEY, workload())
    assert not pods.put(KEY, workload(desiredReplicas=1))
    own = pod(app="shop")
    assert pods.workload_of(own) == "shop"
    view = pod_view(labelled(own, "shop"))
    assert view is not None
    assert view["revision"] == "shop"
    others = [
        pod(app="other"),
        pod(namespace="team", app="shop"),
        pod(**{"serving.knative.dev/revision": "r", "app": "shop"}),
    ]
    assert [pods.workload_of(other) for other in others] == ["", "", ""]
    assert pods.put(KEY, None)
    assert pods.workload_of(own) == ""


@pytest.mark.parametrize("selector", ["", "a in ("])
def test_workload_without_a_valid_selector_has_no_pods(selector: str) -> None:
    pods = WorkloadPods()
    assert not pods.put(KEY, workload(selector))
    assert pods.workload_of(pod(app="shop")) == ""
