"""The views of a revision's scale and traffic path, in Knative's shapes."""

from typing import Any

import pytest

from serving.controller.revisions.views import pod_autoscaler_view, serverless_service_view
from serving.core.model.objects import Object, labels_of, nested
from tests.unit.controller.builders import NOW, a_deployment, a_revision, condition_values, merged

PODS = {"endpoints": [{"addresses": ["127.64.0.1"], "targetRef": {"kind": "Pod", "name": "p"}}]}
ACTIVATORS = {"endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}]}


def deployment(*, replicas: int, ready: int) -> Object:
    return merged(a_deployment(a_revision()), {"spec": {"replicas": replicas}, "status": {"readyReplicas": ready}})


def new_revision(**changes: Any) -> Object:  # noqa: ANN401 - JSON
    return merged(a_revision(), changes)


def with_active(status: str, reason: str = "") -> Object:
    return new_revision(status={"conditions": [{"type": "Active", "status": status, "reason": reason}]})


def autoscaler(fields: Object, *slices: Object, replicas: int = 0, ready: int = 0) -> Object:
    return pod_autoscaler_view(fields, deployment(replicas=replicas, ready=ready), slices, before=None, now=NOW)


def path(fields: Object, *slices: Object, ready: int = 0) -> Object:
    return serverless_service_view(fields, deployment(replicas=ready, ready=ready), slices, before=None, now=NOW)


def test_pod_autoscaler_scale_is_that_of_the_deployment() -> None:
    view = autoscaler(with_active("True"), replicas=3, ready=2)
    assert (view["status"]["desiredScale"], view["status"]["actualScale"]) == (3, 2)
    assert view["spec"]["scaleTargetRef"]["name"] == "hello-00001-deployment"
    assert view["metadata"]["ownerReferences"][0]["kind"] == "Revision"
    assert condition_values(view["status"], "Ready")[0] == "True"


def test_pod_autoscaler_without_deployment_has_scale_0() -> None:
    view = pod_autoscaler_view(a_revision(), None, (), before=None, now=NOW)
    assert (view["status"]["desiredScale"], view["status"]["actualScale"]) == (0, 0)
    assert condition_values(view["status"], "ScaleTargetInitialized")[0] == "Unknown"


def test_pod_autoscaler_at_zero_is_not_ready_with_reason_no_traffic() -> None:
    view = autoscaler(with_active("False", "NoTraffic"), ACTIVATORS)
    assert condition_values(view["status"], "Ready")[:2] == ("False", "NoTraffic")
    assert condition_values(view["status"], "SKSReady")[0] == "True"


@pytest.mark.parametrize(
    ("state", "reachability"), [("active", "Reachable"), ("reserve", "Unreachable"), ("pending", "")]
)
def test_reachability_follows_the_routing_state(state: str, reachability: str) -> None:
    label = {"serving.knative.dev/routingState": state}
    view = autoscaler(new_revision(metadata={"labels": {**labels_of(a_revision()), **label}}))
    assert view["spec"]["reachability"] == reachability


def test_pod_autoscaler_has_autoscaling_annotations_with_class() -> None:
    values = {"autoscaling.knative.dev/metric": "rps", "other": "x"}
    view = autoscaler(new_revision(metadata={"annotations": values}))
    assert view["metadata"]["annotations"] == {
        "autoscaling.knative.dev/class": "kpa.autoscaling.knative.dev",
        "autoscaling.knative.dev/metric": "rps",
    }


@pytest.mark.parametrize(("port", "protocol"), [("h2c", "h2c"), ("http1", "http1")])
def test_protocol_type_is_that_of_the_port(port: str, protocol: str) -> None:
    revision = new_revision(spec={"containers": [{"image": "x", "ports": [{"name": port}]}], "containerConcurrency": 7})
    assert autoscaler(revision)["spec"]["protocolType"] == protocol
    assert autoscaler(revision)["spec"]["containerConcurrency"] == 7


def test_mode_is_proxy_while_endpoints_are_activators() -> None:
    view = path(a_revision(), ACTIVATORS)
    assert (view["spec"]["mode"], view["spec"]["numActivators"]) == ("Proxy", 2)
    assert view["status"]["privateServiceName"] == "hello-00001-private"
    assert condition_values(view["status"], "Ready")[0] == "True"
    assert condition_values(view["status"], "ActivatorEndpointsPopulated")[0] == "True"


def test_mode_is_serve_while_endpoints_are_pods() -> None:
    view = path(a_revision(), PODS, ready=1)
    assert (view["spec"]["mode"], view["spec"]["numActivators"]) == ("Serve", 0)
    assert condition_values(view["status"], "ActivatorEndpointsPopulated")[0] == "False"


def test_mode_without_public_service_is_that_of_annotation() -> None:
    assert (
        path(new_revision(metadata={"annotations": {"serving.dev/traffic-path": "serve"}}))["spec"]["mode"] == "Serve"
    )
    view = path(a_revision())
    assert view["spec"]["mode"] == "Proxy"
    assert condition_values(view["status"], "Ready")[:2] == ("Unknown", "NoHealthyBackends")


def test_unchanged_conditions_retain_transition_times() -> None:
    before = path(a_revision(), ACTIVATORS)
    after = serverless_service_view(a_revision(), None, [ACTIVATORS], before=before, now="later")
    assert nested(after, "status", "conditions") == nested(before, "status", "conditions")
