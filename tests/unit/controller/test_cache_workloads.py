"""ScaledWorkloads and KEDA's routes in the controller's cache: enqueued objects, and plans."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from serving.controller.cache import ControllerCache
from serving.controller.decide import decide
from serving.controller.values.writes import WorkKey, WritePlan
from serving.controller.workloads.rights import RIGHTS
from serving.core.model.objects import Object, nested
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Create, Delete, Patch, Write
from tests.unit.controller.builders import (
    NOW,
    NOW_S,
    SCALING,
    SETTINGS,
    a_cache,
    condition_values,
    stored,
    written_status,
)

SHOP: WorkKey = (kinds.SCALED_WORKLOAD, "default", "shop")
FAR: WorkKey = (kinds.SCALED_WORKLOAD, "far", "shop")
ROUTE: WorkKey = (kinds.HTTP_SCALED_OBJECT, "default", "shop")
BINDING: WorkKey = (kinds.ROLE_BINDING, "default", RIGHTS)
SPEC = {"target": {"name": "shop"}, "service": {"name": "shop-svc"}}
ACTIVATORS = {
    "addressType": "IPv4",
    "ports": [{"name": "http", "port": 8081}],
    "endpoints": [{"addresses": ["10.0.0.1"]}],
}


def an_object(kind: Kind, name: str = "shop", **fields: Any) -> Object:  # noqa: ANN401 - JSON
    metadata = {"name": name, **fields.pop("metadata", {})}
    return stored({"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **fields})


def a_workload(namespace: str = "default", **metadata: Any) -> Object:  # noqa: ANN401 - JSON
    return an_object(kinds.SCALED_WORKLOAD, spec=SPEC, metadata={"namespace": namespace, **metadata})


def a_namespace() -> Object:
    """A labelled namespace."""
    return stored({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "namespace": ""}})


def a_keda_route() -> Object:
    return an_object(
        kinds.HTTP_SCALED_OBJECT,
        spec={"hosts": ["shop.example.com"], "scaleTargetRef": {"name": "shop", "service": "shop-svc", "port": 80}},
    )


@pytest.mark.parametrize(
    ("kind", "name", "is_read"),
    [
        (kinds.DEPLOYMENT, "shop", True),
        (kinds.STATEFUL_SET, "shop", False),
        (kinds.DEPLOYMENT, "other", False),
        (kinds.SERVICE, "shop-svc", True),
        (kinds.HORIZONTAL_POD_AUTOSCALER, "any", True),
    ],
)
def test_workload_is_enqueued_by_objects_its_status_reads(kind: Kind, name: str, *, is_read: bool) -> None:
    unreadable = an_object(kinds.SCALED_WORKLOAD, "bad", spec={})
    cache = a_cache(
        (kinds.SCALED_WORKLOAD, a_workload()),
        (kinds.SCALED_WORKLOAD, a_workload("far")),
        (kinds.SCALED_WORKLOAD, unreadable),
    )
    woken = {key for key in cache.put(kind, an_object(kind, name)) if key[0] is kinds.SCALED_WORKLOAD}
    assert woken == ({SHOP} if is_read else set())


def test_workload_spec_change_enqueues_all_and_status_only_itself() -> None:
    cache = a_cache((kinds.SCALED_WORKLOAD, a_workload()), (kinds.HTTP_SCALED_OBJECT, a_keda_route()))
    rights: WorkKey = (kinds.ROLE_BINDING, "far", RIGHTS)
    assert cache.put(kinds.SCALED_WORKLOAD, a_workload("far")) == {SHOP, FAR, rights}
    assert cache.put(kinds.SCALED_WORKLOAD, {**a_workload(resourceVersion="8"), "status": {}}) == {SHOP, ROUTE}
    assert cache.drop(kinds.SCALED_WORKLOAD, FAR[1:]) == {SHOP, FAR, rights}
    cache.put(kinds.SCALED_WORKLOAD, an_object(kinds.SCALED_WORKLOAD, "other", spec=SPEC))
    cache.drop(kinds.SCALED_WORKLOAD, ("default", "other"))
    assert cache.indexes.workloads.namespaces == {"default"}
    assert cache.reconfigure(SETTINGS, SCALING) == {SHOP, BINDING}


def a_cache_with_rights(*objects: tuple[Kind, Object], **settings: str) -> ControllerCache:
    cache = a_cache(*objects, settings=msgspec.structs.replace(SETTINGS, **settings))
    for kind in (kinds.NAMESPACE, kinds.ROLE_BINDING):
        cache.apply_list(kind, {(namespace, name) for _, namespace, name in cache.keys(kind)}, version="9")
    return cache


def rights_of(cache: ControllerCache) -> tuple[str, Sequence[Write]]:
    """The reason of the condition TargetResolved, and the writes for the RoleBinding."""
    status = written_status(decide(cache, SHOP, now=NOW, now_s=NOW_S), kinds.SCALED_WORKLOAD)
    return condition_values(status, "TargetResolved")[1], decide(cache, BINDING, now=NOW, now_s=NOW_S).writes


def test_role_binding_exists_only_in_labelled_namespace_with_workloads() -> None:
    workload = (kinds.SCALED_WORKLOAD, a_workload())
    cache = a_cache_with_rights(workload)
    assert rights_of(cache) == ("NamespaceNotLabelled", ())
    # The watch delivers labelled namespaces only.
    assert cache.put(kinds.NAMESPACE, a_namespace()) == {SHOP, BINDING}
    reason, (create,) = rights_of(cache)
    assert reason == "TargetNotFound"
    assert isinstance(create, Create)
    assert create.body["roleRef"]["name"] == create.body["metadata"]["name"] == "serving-scaled-workloads"
    assert {(subject["namespace"], subject["name"]) for subject in create.body["subjects"]} == {
        ("knative-serving", "autoscaler"),
        ("knative-serving", "controller"),
    }
    binding = stored({**create.body, "metadata": {**create.body["metadata"], "uid": "b", "resourceVersion": "7"}})
    assert cache.put(kinds.ROLE_BINDING, binding) == {BINDING}
    assert rights_of(cache) == ("TargetNotFound", ())
    # It is deleted without the label, and without workloads.
    assert cache.drop(kinds.NAMESPACE, ("", "default")) == {SHOP, BINDING}
    reason, (deletion,) = rights_of(cache)
    assert (reason, type(deletion)) == ("NamespaceNotLabelled", Delete)
    cache.put(kinds.NAMESPACE, a_namespace())
    assert BINDING in cache.drop(kinds.SCALED_WORKLOAD, SHOP[1:])
    (deletion,) = decide(cache, BINDING, now=NOW, now_s=NOW_S).writes
    assert isinstance(deletion, Delete)


def test_role_binding_is_created_in_every_namespace_if_configured() -> None:
    workload = (kinds.SCALED_WORKLOAD, a_workload())
    reason, (create,) = rights_of(a_cache_with_rights(workload, workload_namespaces="all"))
    assert (reason, type(create)) == ("TargetNotFound", Create)


def test_no_role_binding_on_server_without_roles() -> None:
    assert rights_of(a_cache((kinds.SCALED_WORKLOAD, a_workload()))) == ("TargetNotFound", ())


def test_workload_status_reads_target_service_and_name_conflict() -> None:
    cache = a_cache(
        (kinds.SCALED_WORKLOAD, a_workload()),
        (kinds.DEPLOYMENT, an_object(kinds.DEPLOYMENT, spec={"replicas": 2})),
        (kinds.SERVICE, an_object(kinds.SERVICE, "shop-svc", spec={"ports": [{"name": "http", "port": 80}]})),
        (kinds.REVISION, an_object(kinds.REVISION)),
    )
    status = written_status(decide(cache, SHOP, now=NOW, now_s=NOW_S), kinds.SCALED_WORKLOAD)
    assert (status["desiredReplicas"], status["portName"]) == (2, "http")
    assert condition_values(status, "HostsClaimed")[1] == "NameTaken"


def test_unreadable_spec_is_reported_in_condition() -> None:
    cache = a_cache((kinds.SCALED_WORKLOAD, an_object(kinds.SCALED_WORKLOAD, spec={})))
    status = written_status(decide(cache, SHOP, now=NOW, now_s=NOW_S), kinds.SCALED_WORKLOAD)
    assert condition_values(status, "ScalingValid")[1] == "InvalidSpec"


def test_terminating_workload_plans_no_writes() -> None:
    cache = a_cache((kinds.SCALED_WORKLOAD, a_workload(deletionTimestamp=NOW)))
    assert decide(cache, SHOP, now=NOW, now_s=NOW_S) == WritePlan()


def test_in_place_service_slice_follows_activators() -> None:
    workload = {**a_workload(annotations={"serving.dev/in-place": "shop-svc"}), "status": {"portName": "http"}}
    cache = a_cache((kinds.SCALED_WORKLOAD, workload))
    assert cache.put_activators(("knative-serving", "a"), ACTIVATORS) == {SHOP}
    create = decide(cache, SHOP, now=NOW, now_s=NOW_S).writes[-1]
    assert isinstance(create, Create)
    assert create.body["endpoints"][0]["addresses"] == ["10.0.0.1"]
    cache.put(kinds.ENDPOINT_SLICE, stored(create.body))
    (status,) = decide(cache, SHOP, now=NOW, now_s=NOW_S).writes
    assert isinstance(status, Patch)


def test_keda_route_creates_workload_with_scaled_object_fields() -> None:
    cache = a_cache((kinds.HTTP_SCALED_OBJECT, a_keda_route()))
    trigger = {"type": "external-push", "metadata": {"httpScaledObject": "shop"}}
    scaled = an_object(kinds.KEDA_SCALED_OBJECT, spec={"maxReplicaCount": 7, "triggers": [trigger]})
    assert cache.put(kinds.KEDA_SCALED_OBJECT, scaled) == {ROUTE}
    create, _ = decide(cache, ROUTE, now=NOW, now_s=NOW_S).writes
    assert isinstance(create, Create)
    assert nested(create.body, "spec", "scaling", "max") == 7


def test_repeated_rejection_enqueues_once() -> None:
    cache = a_cache((kinds.HTTP_SCALED_OBJECT, a_keda_route()))
    assert cache.refuse(ROUTE, "too many") == {ROUTE}
    assert cache.refuse(ROUTE, "too many") == set()


def test_scale_of_unwatched_kind_is_used_until_target_changes() -> None:
    cache, rollout = a_cache(), {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "shop"}
    assert cache.put_scale(("default", "shop"), None) == set()
    workload = a_workload() | {"spec": {**SPEC, "target": rollout}}
    cache.put(kinds.SCALED_WORKLOAD, workload)

    def reason() -> str:
        status = written_status(decide(cache, SHOP, now=NOW, now_s=NOW_S), kinds.SCALED_WORKLOAD)
        entry = next(condition for condition in status["conditions"] if condition["type"] == "TargetResolved")
        return str(entry.get("reason", ""))

    assert reason() == "KindNotScaled"
    assert cache.put_scale(("default", "shop"), None) == {SHOP}
    assert reason() == "TargetNotFound"
    scale = {"kind": "Scale", "spec": {"replicas": 1}, "status": {"replicas": 1, "selector": "app=shop"}}
    assert cache.put_scale(("default", "shop"), scale) == {SHOP}
    assert cache.put_scale(("default", "shop"), scale) == set()
    assert reason() == ""
    # The scale is dropped with a change of the target.
    cache.put(kinds.SCALED_WORKLOAD, stored(workload | {"spec": SPEC}, resourceVersion="8"))
    assert cache.indexes.workloads.scales == {}
    cache.put_scale(("default", "shop"), scale)
    cache.drop(kinds.SCALED_WORKLOAD, ("default", "shop"))
    assert cache.indexes.workloads.scales == {}


def test_placeholder_body_follows_its_config_map() -> None:
    response = {"bodyFromConfigMap": {"name": "pages", "key": "wait"}}
    spec = {
        "target": {"service": "shop", "port": 80},
        "rules": [{"hosts": ["shop.example.com"]}],
        "scalingMetric": {"concurrency": {"targetValue": 1}},
        "coldStart": {"placeholder": {"response": response}},
    }
    trigger = {"type": "external-push", "metadata": {"interceptorRoute": "shop"}}
    scaled = {"scaleTargetRef": {"name": "shop"}, "triggers": [trigger]}
    cache = a_cache(
        (kinds.INTERCEPTOR_ROUTE, an_object(kinds.INTERCEPTOR_ROUTE, spec=spec)),
        (kinds.KEDA_SCALED_OBJECT, an_object(kinds.KEDA_SCALED_OBJECT, spec=scaled)),
    )
    key: WorkKey = (kinds.INTERCEPTOR_ROUTE, "default", "shop")
    assert cache.put(kinds.CONFIG_MAP, an_object(kinds.CONFIG_MAP, "pages", data={"wait": "soon"})) == {key}
    created = decide(cache, key, now=NOW, now_s=NOW_S).writes[0]
    assert isinstance(created, Create)
    assert nested(created.body, "spec", "coldStart", "placeholder") == {"body": "soon"}
