"""Reconciliation of a Service: its children and its status."""

from typing import Any

import pytest

from serving.controller.routes.confirmation import SILENT_S
from serving.controller.routes.service import (
    FIRST_S,
    ServiceChildren,
    desired_configuration,
    desired_route,
    reconcile_service,
)
from serving.controller.values.writes import UNSETTLED_S, WritePlan
from serving.core.model.knative import CLAIMED_TAGS_ANNOTATION
from serving.core.model.objects import Object, is_controlled_by
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Create, Patch
from tests.unit.controller.builders import (
    NOW,
    a_configuration,
    a_route,
    a_service,
    condition_values,
    merged,
    stored,
    with_ready,
    written_status,
)

OUT_OF_DATE = "The {} is still working to reflect the latest desired specification."
OTHER = {"containers": [{"image": "other"}]}


def observed(child: Object, status: str = "True", **more: Any) -> Object:  # noqa: ANN401 - JSON
    """A child whose reconciler has observed its latest spec."""
    entry = with_ready(child, status, message=more.pop("message", ""))
    return {**entry, "status": {**entry["status"], "observedGeneration": 1, **more}}


def ready_children(**traffic: Any) -> ServiceChildren:  # noqa: ANN401 - JSON
    target = {"revisionName": "hello-00001", "latestRevision": True, "percent": 100, **traffic}
    return ServiceChildren(
        configuration=observed(
            a_configuration(), latestReadyRevisionName="hello-00001", latestCreatedRevisionName="hello-00001"
        ),
        route=observed(a_route(), url="http://hello", address={"url": "http://inner"}, traffic=[target]),
    )


def plan_for(service: Object, children: ServiceChildren) -> WritePlan:
    return reconcile_service(service, children, now=NOW)


def status_of(service: Object, children: ServiceChildren) -> Object:
    return written_status(plan_for(service, children), kinds.SERVING_SERVICE)


def patches(plan: WritePlan, resource: Kind) -> list[Object]:
    return [write.patch for write in plan.writes if isinstance(write, Patch) and write.kind is resource]


def test_empty_fields_do_not_change_configuration() -> None:
    service = a_service(spec={"containers": [{"image": "app", "resources": {}, "volumeMounts": []}], "volumes": []})
    children = ready_children()
    plan = plan_for(service, children)
    assert not patches(plan, kinds.CONFIGURATION)
    assert condition_values(status_of(service, children), "ConfigurationsReady")[0] == "True"


def test_service_creates_configuration_and_route() -> None:
    service = stored(a_service(), labels={"team": "a"}, annotations={"serving.knative.dev/creator": "ann"})
    plan = plan_for(service, ServiceChildren(configuration=None, route=None))
    children = [write.body for write in plan.writes if isinstance(write, Create)]
    assert [child["kind"] for child in children] == ["Configuration", "Route"]
    for child in children:
        assert is_controlled_by(child, service)
        assert child["metadata"]["labels"] == {
            "team": "a",
            "serving.knative.dev/service": "hello",
            "serving.knative.dev/serviceUID": "uid-of-service-hello",
        }
        assert child["metadata"]["annotations"] == {"serving.knative.dev/creator": "ann"}


def test_last_applied_annotation_is_not_copied_to_children() -> None:
    service = stored(a_service(), annotations={"kubectl.kubernetes.io/last-applied-configuration": "{}"})
    assert desired_configuration(service)["metadata"]["annotations"] == {}


def test_traffic_defaults_to_latest_revision() -> None:
    assert desired_route(a_service())["spec"]["traffic"] == [
        {"configurationName": "hello", "latestRevision": True, "percent": 100}
    ]


def test_traffic_target_without_revision_is_latest() -> None:
    traffic = [{"percent": 60, "tag": "new"}, {"revisionName": "hello-00001", "percent": 40}]
    assert desired_route(a_service(traffic=traffic))["spec"]["traffic"] == [
        {"configurationName": "hello", "latestRevision": True, "percent": 60, "tag": "new"},
        {"revisionName": "hello-00001", "latestRevision": False, "percent": 40},
    ]


def test_new_service_reports_children_out_of_date() -> None:
    plan = plan_for(a_service(), ServiceChildren(configuration=None, route=None))
    assert all(isinstance(write, Create) for write in plan.writes), (
        "the status follows the first status of the children"
    )
    status = status_of(a_service(), ServiceChildren(configuration=a_configuration(), route=a_route()))
    assert condition_values(status, "ConfigurationsReady") == (
        "Unknown",
        "OutOfDate",
        OUT_OF_DATE.format("Configuration"),
    )
    assert condition_values(status, "RoutesReady") == ("Unknown", "OutOfDate", OUT_OF_DATE.format("Route"))
    assert condition_values(status, "Ready")[0] == "Unknown"


def test_service_status_mirrors_its_children() -> None:
    plan = plan_for(a_service(), ready_children())
    status = written_status(plan, kinds.SERVING_SERVICE)
    assert [
        condition_values(status, condition_type)[0]
        for condition_type in ("Ready", "ConfigurationsReady", "RoutesReady")
    ] == ["True"] * 3
    assert (status["url"], status["address"]) == ("http://hello", {"url": "http://inner"})
    assert status["latestReadyRevisionName"] == status["latestCreatedRevisionName"] == "hello-00001"
    assert status["traffic"][0]["revisionName"] == "hello-00001"
    assert plan.notes == ()


def test_recovered_service_emits_event() -> None:
    plan = plan_for(with_ready(a_service(), "False"), ready_children())
    assert [(note.reason, note.message) for note in plan.notes] == [
        ("ServiceReady", "Service is ready at http://hello")
    ]


def test_settled_service_plans_no_writes() -> None:
    service = {**a_service(), "status": status_of(a_service(), ready_children())}
    assert plan_for(service, ready_children()) == WritePlan()


def test_terminating_service_plans_no_writes() -> None:
    assert (
        plan_for(stored(a_service(), deletionTimestamp=NOW), ServiceChildren(configuration=None, route=None))
        == WritePlan()
    )


def test_failed_configuration_is_reported_once_as_event() -> None:
    children = ServiceChildren(
        configuration=observed(a_configuration(), "False", message="boom"), route=observed(a_route())
    )
    plan = plan_for(a_service(), children)
    status = written_status(plan, kinds.SERVING_SERVICE)
    assert condition_values(status, "Ready") == ("False", "", "boom")
    assert [(note.message, note.warning) for note in plan.notes] == [("boom", True)]
    assert plan_for({**a_service(), "status": status}, children).notes == ()


def test_template_change_patches_configuration() -> None:
    plan = plan_for(a_service(spec=OTHER), ready_children())
    (patch,) = patches(plan, kinds.CONFIGURATION)
    assert patch == {"spec": {"template": {"spec": OTHER}}, "metadata": {"resourceVersion": "7"}}
    assert condition_values(written_status(plan, kinds.SERVING_SERVICE), "ConfigurationsReady")[1] == "OutOfDate"


def test_traffic_change_patches_route() -> None:
    traffic = [{"revisionName": "hello-00001", "percent": 100}]
    plan = plan_for(a_service(traffic=traffic), ready_children())
    (patch,) = patches(plan, kinds.ROUTE)
    assert patch["spec"] == {"traffic": [{**traffic[0], "latestRevision": False}]}
    assert condition_values(written_status(plan, kinds.SERVING_SERVICE), "RoutesReady")[1] == "OutOfDate"


def test_annotations_of_child_reconciler_are_preserved() -> None:
    children = ready_children()
    assert children.route is not None
    result = stored(children.route, annotations={CLAIMED_TAGS_ANNOTATION: "{}", "old": "x"}, labels={})
    (patch,) = patches(
        plan_for(a_service(), ServiceChildren(configuration=children.configuration, route=result)), kinds.ROUTE
    )
    after = merged(result, patch)["metadata"]
    assert after["annotations"] == {CLAIMED_TAGS_ANNOTATION: "{}"}
    assert "serving.knative.dev/service" in after["labels"]


@pytest.mark.parametrize(("percent", "revision"), [(50, "hello-00001"), (100, "hello-00002")])
def test_traffic_not_migrated_is_reported(percent: int, revision: str) -> None:
    status = status_of(a_service(), ready_children(percent=percent, revisionName=revision))
    message = "Traffic is not yet migrated to the latest revision."
    assert condition_values(status, "RoutesReady") == ("Unknown", "TrafficNotMigrated", message)


def test_children_of_another_owner_are_reported_and_not_changed() -> None:
    children = ServiceChildren(
        configuration=stored(a_configuration(spec=OTHER), ownerReferences=[]),
        route=stored(a_route(), ownerReferences=[]),
    )
    plan = plan_for(a_service(), children)
    assert len(plan.writes) == 1
    status = written_status(plan, kinds.SERVING_SERVICE)
    assert condition_values(status, "ConfigurationsReady") == (
        "False",
        "NotOwned",
        'There is an existing Configuration "hello" that we do not own.',
    )
    assert condition_values(status, "RoutesReady")[2] == 'There is an existing Route "hello" that we do not own.'


def test_route_is_created_after_named_revision_is_accepted() -> None:
    service = a_service(metadata={"name": "hello-blue"})
    plan = plan_for(service, ServiceChildren(configuration=None, route=None))
    assert [write.body["kind"] for write in plan.writes if isinstance(write, Create)] == ["Configuration"]
    accepted = observed(a_configuration(metadata={"name": "hello-blue"}))
    plan = plan_for(service, ServiceChildren(configuration=accepted, route=None))
    assert [write.body["kind"] for write in plan.writes if isinstance(write, Create)] == ["Route"]


def test_taken_revision_name_blocks_traffic_change() -> None:
    service = a_service(metadata={"name": "hello-blue"}, traffic=[{"revisionName": "hello-blue", "percent": 100}])
    children = ServiceChildren(
        configuration=observed(a_configuration(metadata={"name": "hello-blue"}), "False"),
        route=observed(a_route()),
        name_is_taken=True,
    )
    plan = plan_for(service, children)
    assert patches(plan, kinds.ROUTE) == []
    message = 'The revision name "hello-blue" is taken by a conflicting Revision, so traffic will not be migrated'
    assert condition_values(written_status(plan, kinds.SERVING_SERVICE), "RoutesReady") == (
        "False",
        "RevisionNameTaken",
        message,
    )


def test_only_unsettled_status_is_debounced() -> None:
    unsettled = ServiceChildren(configuration=a_configuration(), route=a_route())
    assert plan_for(a_service(), unsettled).debounce_s == FIRST_S, "the Configuration has no status to repeat"
    starting = ServiceChildren(configuration=with_ready(a_configuration(), "Unknown"), route=a_route())
    assert plan_for(a_service(), starting).debounce_s == UNSETTLED_S
    unconfirmed = ServiceChildren(configuration=with_ready(a_configuration(), "True"), route=a_route())
    assert plan_for(a_service(), unconfirmed).debounce_s == SILENT_S, "the Route waits for the activators"
    assert plan_for(with_ready(a_service(), "Unknown"), unconfirmed).debounce_s == UNSETTLED_S
    assert plan_for(a_service(), ready_children()).debounce_s == 0.0
    assert plan_for(with_ready(a_service(), "True"), unsettled).debounce_s == 0.0
    assert plan_for(a_service(), ServiceChildren(configuration=None, route=None)).debounce_s == 0.0
