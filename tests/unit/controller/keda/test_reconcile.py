from typing import Any

from serving.controller.keda.conversion import convert_route
from serving.controller.keda.reconcile import reconcile_keda_route
from serving.core.model.objects import Object, condition_of, owner_reference
from serving.home.schemas.crds import crds
from serving.net.cluster.kinds import HTTP_SCALED_OBJECT, INTERCEPTOR_ROUTE, SCALED_WORKLOAD, Kind
from serving.net.cluster.port import Create, Patch
from tests.unit.config.crdfields import differences, fields_of_schema, fields_of_value

NOW = "2026-11-29T00:00:00Z"


def a_route(**spec: object) -> Object:
    target = {"name": "shop", "service": "shop-svc", "port": 80}
    return {
        "apiVersion": HTTP_SCALED_OBJECT.api_version,
        "kind": HTTP_SCALED_OBJECT.name,
        "metadata": {"name": "shop", "namespace": "team", "uid": "1", "resourceVersion": "5", "generation": 2},
        "spec": {"hosts": ["shop.example.com"], "scaleTargetRef": target, **spec},
    }


def a_workload(route: Object, **status: object) -> Object:
    workload = convert_route(route, ()).workload()
    owned = {"ownerReferences": [owner_reference(route)], "uid": "2", "resourceVersion": "6"}
    return {**workload, "metadata": {**workload["metadata"], **owned}, "status": status}


def written(
    route: Object, workload: Object | None = None, kind: Kind = HTTP_SCALED_OBJECT
) -> tuple[list[Any], dict[str, tuple[str, str, str]]]:
    """The writes except the status, and the conditions as status, reason and message."""
    plan = reconcile_keda_route(kind, route, convert_route(route, ()), workload=workload, now=NOW)
    *others, status = plan.writes
    assert isinstance(status, Patch)
    conditions = status.patch["status"]["conditions"]
    assert all(
        condition["observedGeneration"] == 2 and condition["lastTransitionTime"] == NOW for condition in conditions
    )
    return others, {
        condition["type"]: (condition["status"], condition["reason"], condition["message"]) for condition in conditions
    }


def test_new_route_creates_owned_scaled_workload() -> None:
    (create,), conditions = written(a_route())
    assert isinstance(create, Create)
    assert create.kind == SCALED_WORKLOAD
    assert create.body["metadata"]["ownerReferences"] == [owner_reference(a_route())]
    assert create.body["spec"]["hosts"] == ["shop.example.com"]
    assert conditions["Converted"] == ("True", "EveryFieldActs", "every field acts")
    assert conditions["Ready"][:2] == ("Unknown", "WorkloadNotReconciled")


def test_changed_route_patches_its_scaled_workload() -> None:
    (patch,), _ = written(a_route(hosts=["b.example.com"], scaledownPeriod=90), a_workload(a_route()))
    assert patch.patch["spec"] == {"hosts": ["b.example.com"]}
    assert patch.patch["metadata"]["annotations"].keys() == {
        "autoscaling.knative.dev/scale-to-zero-pod-retention-period",
        "autoscaling.knative.dev/target-utilization-percentage",
    }


def test_ready_condition_mirrors_scaled_workload() -> None:
    ready = {"type": "Ready", "status": "False", "reason": "TargetMissing", "message": "no Deployment"}
    others, conditions = written(a_route(), a_workload(a_route(), conditions=[ready]))
    assert others == []
    assert conditions["Ready"] == ("False", "TargetMissing", "no Deployment")
    _, conditions = written(a_route(), a_workload(a_route(), conditions=[{"type": "Ready", "status": "True"}]))
    assert conditions["Ready"] == ("True", "WorkloadReady", 'ScaledWorkload "shop" has Ready True')


def test_foreign_scaled_workload_is_not_changed() -> None:
    foreign = a_workload(a_route())
    del foreign["metadata"]["ownerReferences"]
    others, conditions = written(a_route(hosts=["b.example.com"]), foreign)
    assert (others, conditions["Ready"][:2]) == ([], ("False", "NotOwned"))


def test_fields_without_effect_and_problems_are_reported_in_conditions() -> None:
    others, conditions = written(a_route(initialCooldownPeriod=90, timeouts={"responseHeader": "soon"}))
    assert others == []
    reason = "a new workload keeps its scale for its window, 60s"
    message = f"spec.initialCooldownPeriod has no effect: {reason}"
    assert conditions["Converted"] == ("False", "FieldsWithoutEffect", message)
    assert conditions["Ready"][1] == "NotConverted"
    assert "spec.timeouts.responseHeader: 'soon'" in conditions["Ready"][2]


def test_server_rejection_is_reported_in_ready_condition() -> None:
    route = a_route()
    plan = reconcile_keda_route(
        HTTP_SCALED_OBJECT, route, convert_route(route, ()), workload=None, now=NOW, refusal="the quota is used up"
    )
    (status,) = plan.writes
    assert isinstance(status, Patch)
    ready = condition_of({"status": status.patch["status"]}, "Ready")
    assert (ready["status"], ready["message"]) == ("False", "the quota is used up")


def test_settled_route_plans_no_writes() -> None:
    route = a_route()
    plan = reconcile_keda_route(
        HTTP_SCALED_OBJECT, route, convert_route(route, ()), workload=a_workload(route), now=NOW
    )
    settled = {**route, "status": plan.writes[-1].patch["status"]}  # type: ignore[union-attr]
    again = reconcile_keda_route(
        HTTP_SCALED_OBJECT, settled, convert_route(settled, ()), workload=a_workload(route), now="later"
    )
    assert again.writes == ()


def test_terminating_route_plans_no_writes() -> None:
    route = a_route()
    route["metadata"]["deletionTimestamp"] = NOW
    assert (
        reconcile_keda_route(HTTP_SCALED_OBJECT, route, convert_route(route, ()), workload=None, now=NOW).writes == ()
    )


def test_status_fields_equal_schema_of_the_crd() -> None:
    for kind in (HTTP_SCALED_OBJECT, INTERCEPTOR_ROUTE):
        route = {**a_route(), "kind": kind.name}
        plan = reconcile_keda_route(kind, route, convert_route(route, ()), workload=None, now=NOW)
        status = plan.writes[-1].patch["status"]  # type: ignore[union-attr]
        schema = crds()[kind].schema["properties"]["status"]
        fields, written_fields = fields_of_schema(schema, "status"), fields_of_value(status, "status")
        assert differences(fields, written_fields, record_name="the controller", exceptions={}) == []
