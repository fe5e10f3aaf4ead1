"""Conversion of Ingresses and HTTPRoutes to ScaledWorkloads: supported fields, and reports of the others."""

from typing import Any

import pytest

from serving.core.model.objects import Object
from serving.core.model.scaledworkload import RoutingRule
from serving.home.controllers.ingressrules import Routing, routing_of, workload_writes
from serving.net.cluster.port import Create, Delete, Patch

Json = dict[str, Any]


def a_service(name: str = "shop", **selector: str) -> Object:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"selector": selector or {"app": "shop"}}}


def a_deployment(name: str = "shop", annotations: dict[str, str] | None = None, **labels: str) -> Object:
    metadata = {"name": name, "namespace": "team", "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"template": {"metadata": {"labels": labels or {"app": name}}}}}


def a_path(path: str = "/", service: str = "shop", kind: str = "Prefix", **port: object) -> Json:
    return {"path": path, "pathType": kind, "backend": {"service": {"name": service, "port": port or {"number": 80}}}}


def an_ingress(*rules: Json, name: str = "in", **spec: object) -> Object:
    metadata = {"name": name, "namespace": "team", "uid": name}
    body = {"rules": list(rules), **spec}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata, "spec": body}


def a_rule(host: str, *paths: Json) -> Json:
    return {**({"host": host} if host else {}), "http": {"paths": list(paths or (a_path(),))}}


def an_httproute(*rules: Json, **spec: object) -> Object:
    metadata = {"name": "route", "namespace": "team", "uid": "route"}
    body = {"hostnames": ["shop.example.com"], "rules": list(rules), **spec}
    return {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": metadata, "spec": body}


BACKEND = {"name": "shop", "port": 80}


def routed(*routes: Object, services: Any = (), deployments: Any = ()) -> Routing:  # noqa: ANN401 - objects
    return routing_of(routes, services or [a_service()], deployments or [a_deployment()], domain="localhost")


def rules_of(routing: Routing) -> tuple[RoutingRule, ...]:
    return routing.deployments["shop"].spec.routing


def texts_of(routing: Routing) -> list[str]:
    return [note.text for note in routing.notes]


@pytest.mark.parametrize(
    ("route", "rules"),
    [
        (an_ingress(a_rule("a.example.com")), [RoutingRule(hosts=("a.example.com",))]),
        (an_ingress(a_rule("")), [RoutingRule(hosts=("shop.team.localhost",))]),
        (
            an_ingress(defaultBackend=a_path()["backend"]),
            [RoutingRule(hosts=("shop.team.localhost",))],
        ),
        (
            an_ingress(a_rule("a.example.com", a_path("/api/"), a_path("/v1")), a_rule("b.example.com")),
            [RoutingRule(hosts=("a.example.com",), paths=("/api", "/v1")), RoutingRule(hosts=("b.example.com",))],
        ),
        (an_httproute({"backendRefs": [BACKEND]}), [RoutingRule(hosts=("shop.example.com",))]),
        (
            an_httproute({"matches": [{"path": {"type": "PathPrefix", "value": "/api"}}], "backendRefs": [BACKEND]}),
            [RoutingRule(hosts=("shop.example.com",), paths=("/api",))],
        ),
    ],
)
def test_route_is_converted_to_rules_of_its_deployment(route: Object, rules: list[RoutingRule]) -> None:
    routing = routed(route)
    assert list(rules_of(routing)) == rules
    assert routing.deployments["shop"].spec.service.port == 80
    assert texts_of(routing) == []


def test_header_matches_of_an_http_route_are_converted() -> None:
    match = {"headers": [{"name": "X-Canary", "value": "yes"}]}
    (rule,) = rules_of(routed(an_httproute({"matches": [match], "backendRefs": [BACKEND]})))
    assert [(header.name, header.value) for header in rule.headers] == [("X-Canary", "yes")]


@pytest.mark.parametrize(
    ("route", "text"),
    [
        (an_ingress(a_rule("a.example.com", a_path(kind="Exact"))), "only prefixes are served"),
        (
            an_ingress(a_rule("a.example.com", a_path("/api(/|$)(.*)", kind="ImplementationSpecific"))),
            "path /api(/|$)(.*) is not served: it is a regular expression, and only prefixes are served",
        ),
        (an_ingress(a_rule("a.example.com", a_path(service="gone"))), "service/gone does not exist"),
        (
            an_ingress({"http": {"paths": [{"path": "/", "backend": {"resource": {}}}]}}),
            "its backend is not a Service",
        ),
        (an_ingress(a_rule("Not_A.Host")), "deployment/shop is not served: spec.rules[0].hosts[0]: 'Not_A.Host'"),
        (an_ingress(a_rule("a.example.com"), tls=[{}]), "spec.tls has no effect: `serving up --help`"),
        (an_httproute({"backendRefs": [BACKEND, BACKEND]}), "it has 2 backends instead of one Service"),
        (an_httproute({"backendRefs": [BACKEND | {"namespace": "b"}]}), "its Service is in another namespace"),
        (
            an_httproute({"backendRefs": [BACKEND], "filters": [{"type": "URLRewrite"}]}),
            "spec.rules.filters has no effect",
        ),
        (
            an_httproute({"matches": [{"path": {"type": "Exact", "value": "/a"}}], "backendRefs": [BACKEND]}),
            "only prefixes and exact headers are",
        ),
    ],
)
def test_unserved_parts_of_a_route_are_reported(route: Object, text: str) -> None:
    assert any(text in each_text for each_text in texts_of(routed(route)))


def test_annotation_of_another_controller_is_reported() -> None:
    route = an_ingress(a_rule("a.example.com"))
    route["metadata"]["annotations"] = {"nginx.ingress.kubernetes.io/rewrite-target": "/", "team": "a"}
    assert texts_of(routed(route)) == ["annotation nginx.ingress.kubernetes.io/rewrite-target has no effect"]


@pytest.mark.parametrize(
    ("deployments", "count"), [([a_deployment("b")], 0), ([a_deployment(app="shop"), a_deployment("b", app="shop")], 2)]
)
def test_service_without_exactly_one_deployment_is_reported(deployments: list[Object], count: int) -> None:
    routing = routed(an_ingress(a_rule("a.example.com")), deployments=deployments)
    assert routing.deployments == {}
    assert texts_of(routing) == [f"service/shop selects the pods of {count} Deployments; expected one"]


def test_second_port_of_a_deployment_is_reported() -> None:
    route = an_ingress(a_rule("a.example.com", a_path(), a_path("/admin", number=81)))
    routing = routed(route)
    assert rules_of(routing) == (RoutingRule(hosts=("a.example.com",)),)
    assert texts_of(routing) == [
        "service/shop port 81 is not served: deployment/shop is served at service/shop port 80"
    ]


def test_two_routes_to_a_deployment_share_a_scaled_workload() -> None:
    routes = [an_ingress(a_rule("a.example.com")), an_ingress(a_rule("b.example.com"), name="other")]
    writes, notes = workload_writes(routed(*routes), [])
    (create,) = writes
    assert isinstance(create, Create)
    assert [owner["name"] for owner in create.body["metadata"]["ownerReferences"]] == ["in", "other"]
    assert [rule["hosts"] for rule in create.body["spec"]["rules"]] == [["a.example.com"], ["b.example.com"]]
    assert notes == []


def created(route: Object, **parts: Any) -> Object:  # noqa: ANN401 - objects
    (create,), _ = workload_writes(routed(route, **parts), [])
    assert isinstance(create, Create)
    body: Object = {**create.body, "metadata": {**create.body["metadata"], "uid": "1", "resourceVersion": "2"}}
    return body


def test_scaling_annotations_of_a_deployment_are_copied_and_removed() -> None:
    annotations = {"autoscaling.knative.dev/min-scale": "1", "team": "a"}
    deployments = [a_deployment(annotations=annotations)]
    own = {"autoscaling.knative.dev/min-scale": "1"}
    workload = created(an_ingress(a_rule("a.example.com")), deployments=deployments)
    assert workload["metadata"]["annotations"] == own
    workload["metadata"]["annotations"] |= {"serving.dev/serving-state": "Reserve"}
    (patch,), _ = workload_writes(routed(an_ingress(a_rule("a.example.com"))), [workload])
    assert isinstance(patch, Patch)
    assert patch.patch == {"metadata": {"annotations": {"autoscaling.knative.dev/min-scale": None}}}


def test_scaled_workload_is_patched_and_deleted_with_its_routes() -> None:
    workload = created(an_ingress(a_rule("a.example.com")))
    assert workload_writes(routed(an_ingress(a_rule("a.example.com"))), [workload]) == ([], [])
    (patch,), _ = workload_writes(routed(an_ingress(a_rule("b.example.com"))), [workload])
    assert isinstance(patch, Patch)
    assert patch.patch == {"spec": {"rules": [{"hosts": ["b.example.com"]}]}}
    (delete,), _ = workload_writes(routed(), [workload])
    assert isinstance(delete, Delete)


def test_users_scaled_workload_is_not_changed() -> None:
    workload = created(an_ingress(a_rule("a.example.com")))
    del workload["metadata"]["labels"]
    writes, (note,) = workload_writes(routed(an_ingress(a_rule("b.example.com"))), [workload])
    assert writes == []
    assert note.text == "deployment/shop is served as scaledworkload/shop says, not as this route does"
