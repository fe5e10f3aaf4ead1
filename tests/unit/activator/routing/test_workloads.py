"""Hosts of ScaledWorkloads, with and without routes."""

from typing import Any

from serving.activator.routing.hosttable import HostRule
from serving.activator.routing.routes import Routes
from serving.activator.routing.sites import Listener
from serving.activator.routing.workloads import host_rules_of
from serving.core.model.objects import Object
from serving.core.model.routepolicy import SessionAffinity
from serving.core.model.scaledworkload import ScaledWorkloadSpec
from tests.unit.activator.routing.test_routes import facts

PUBLIC, INNER = Listener.PUBLIC, Listener.INNER


def workload(name: str = "shop", *, namespace: str = "default", annotations: Any = None, **spec: Any) -> Object:  # noqa: ANN401 - JSON
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": "1", "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"target": {"name": name}, "service": {"name": name}, **spec}}


def new_rules(resource: Object) -> list[HostRule]:
    return list(host_rules_of(resource, ScaledWorkloadSpec.from_object(resource)))


def test_workload_without_hosts_has_its_cluster_local_host() -> None:
    (only,) = new_rules(workload())
    assert (only.host, only.listeners, only.path) == ("shop.default.svc.cluster.local", (INNER,), "")
    assert (only.site.route, only.site.revisions) == ("default/shop", ("shop",))


def test_rules_combine_each_host_with_each_path() -> None:
    host_rules = new_rules(
        workload(hosts=["*.a.com"], paths=["/x/", "/"], headers=[{"name": "X-A"}], rules=[{"hosts": ["b.com"]}])
    )
    inner = "shop.default.svc.cluster.local"
    assert [(rule.host, rule.path, len(rule.headers)) for rule in host_rules] == [
        *((inner, "/x", 1), (inner, "", 1), ("*.a.com", "/x", 1), ("*.a.com", "", 1)),
        *((inner, "", 0), ("b.com", "", 0)),
    ]


def test_cluster_local_host_of_another_namespace_is_skipped() -> None:
    host_rules = new_rules(workload(hosts=["db.other.svc.cluster.local", "www.default.svc.cluster.local"]))
    assert [rule.host for rule in host_rules] == ["shop.default.svc.cluster.local", "www.default.svc.cluster.local"]
    assert {rule.listeners for rule in host_rules} == {(INNER,)}


def test_access_annotation_makes_a_workload_private() -> None:
    (only,) = new_rules(workload(annotations={"serving.dev/access": "private"}))
    assert only.site.access is not None
    assert (only.site.access.namespace, only.site.access.route) == ("default", "shop")


def test_affinity_annotation_overrides_the_service_affinity() -> None:
    sticky = {**workload(), "status": {"clientAffinitySeconds": 60}}
    assert new_rules(sticky)[0].site.policy.affinity == SessionAffinity(client_s=60)
    for text, affinity in (("cookie", SessionAffinity()), ("none", None)):
        annotated = {**sticky, "metadata": {**sticky["metadata"], "annotations": {"serving.dev/affinity": text}}}
        assert new_rules(annotated)[0].site.policy.affinity == affinity


def test_route_shares_its_host_only_by_path_within_its_namespace() -> None:
    routes = Routes()
    routes.set(facts())
    host = "hello.default.localhost"
    routes.set_rules("default/shop", new_rules(workload(hosts=[host], paths=["/shop"])))
    routes.set_rules("evil/shop", new_rules(workload(namespace="evil", hosts=[host], paths=["/evil"])))

    def site(target: str, name: str = host, listener: Listener = PUBLIC) -> str | None:
        new_site = routes.find(listener, name, target=target.encode())
        return None if new_site is None else new_site.route

    assert site("/") == "default/hello"
    assert site("/shop/1") == "default/shop"
    assert site("/evil") == "default/hello"
    routes.set_rules("default/shop", new_rules(workload(hosts=[host])))
    assert site("/shop/1") == "default/hello"
    assert site("/", "shop.default", INNER) == "default/shop"
    assert site("/", "SHOP.default.svc.cluster.local:80", INNER) == "default/shop"
    assert site("/", "shop.default.svc.cluster.local") is None
    turn = routes.turn
    routes.set_rules("default/shop", ())
    assert routes.turn > turn
    assert site("/", "shop.default", INNER) is None
