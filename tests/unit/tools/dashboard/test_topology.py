from typing import Any

import pytest

from serving.core.model.knative import SERVICE_LABEL
from serving.tools.dashboard.topology import HostTarget, PodCount, ServedHost, hosts_of, pod_counts

READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def route(name: str, traffic: list[dict[str, Any]], *, service: str = "") -> dict[str, Any]:
    labels = {SERVICE_LABEL: service} if service else {}
    status = {**READY, "url": f"http://{name}.shop.localhost", "traffic": traffic}
    return {"metadata": {"namespace": "shop", "name": name, "labels": labels}, "status": status}


def mapping(host: str, kind: str, name: str, **status: object) -> dict[str, Any]:
    ref = {"kind": kind, "name": name}
    return {"metadata": {"namespace": "shop", "name": host}, "spec": {"ref": ref}, "status": status}


def test_service_route_targets_the_service_and_tag_its_revision() -> None:
    traffic = [
        {"revisionName": "cart-1", "percent": 90},
        {"revisionName": "cart-2", "percent": 10, "tag": "new", "url": "http://new-cart.shop.localhost"},
    ]
    main, tagged = hosts_of([route("cart", traffic, service="cart")], [])
    assert main == ServedHost(
        namespace="shop",
        host="cart.shop.localhost",
        url="http://cart.shop.localhost",
        kind="Route",
        service="cart",
        tag="",
        targets=(),
        ready="True",
        reason="",
    )
    assert (tagged.host, tagged.tag, tagged.service) == ("new-cart.shop.localhost", "new", "")
    assert tagged.targets == (HostTarget(revision="cart-2", percent=100),)


def test_route_without_a_service_targets_each_revision_once() -> None:
    traffic: list[dict[str, Any]] = [
        {"revisionName": "a-1", "percent": 20},
        {"revisionName": "a-1", "percent": 30},
        {"revisionName": "a-2", "percent": 50},
        {"revisionName": "a-3", "tag": "old"},
    ]
    hosts = hosts_of([route("lone", traffic)], [])
    # The tag has no URL yet.
    assert [served_host.targets for served_host in hosts] == [
        (HostTarget(revision="a-1", percent=50), HostTarget(revision="a-2", percent=50))
    ]


def test_domain_mapping_has_the_targets_of_its_reference() -> None:
    routes = [route("cart", [], service="cart"), route("lone", [{"revisionName": "a-1", "percent": 100}])]
    mappings = [
        mapping("a.example", "Service", "cart", **READY, url="https://a.example"),
        mapping("b.example", "Route", "lone", conditions=[{"type": "Ready", "status": "False", "message": "no claim"}]),
        mapping("c.example", "Route", "cart"),
        mapping("d.example", "Route", "none"),
    ]
    served_hosts = {
        served_host.host: served_host
        for served_host in hosts_of(routes, mappings)
        if served_host.kind == "DomainMapping"
    }
    assert {
        host: (served_host.service, [target.revision for target in served_host.targets])
        for host, served_host in served_hosts.items()
    } == {
        "a.example": ("cart", []),
        "b.example": ("", ["a-1"]),
        "c.example": ("cart", []),
        "d.example": ("", []),
    }
    assert (served_hosts["a.example"].url, served_hosts["b.example"].url) == ("https://a.example", "http://b.example")
    assert [
        (served_host.ready, served_host.reason)
        for served_host in (served_hosts["b.example"], served_hosts["c.example"])
    ] == [
        ("False", "no claim"),
        ("Unknown", ""),
    ]


def test_route_without_a_status_has_no_hosts() -> None:
    assert hosts_of([{"metadata": {"namespace": "shop", "name": "new"}}], []) == []


@pytest.mark.parametrize(
    ("view", "state"),
    [
        ({"ready": True}, "ready"),
        ({"ready": True, "dormant": True}, "dormant"),
        ({"ready": True, "ending": True}, "ending"),
        ({}, "starting"),
        ({"restarts": 2}, "failing"),
        ({"phase": "Failed"}, "failing"),
    ],
)
def test_pod_is_counted_in_one_state(view: dict[str, Any], state: str) -> None:
    pod = {"node": "n", "ready": False, "dormant": False, "ending": False, "restarts": 0, "phase": "Running"}
    assert pod_counts({"shop/a": [pod | view]}) == [PodCount(key="shop/a", node="n", state=state, count=1)]


def test_pods_are_counted_by_revision_node_and_state() -> None:
    pod = {"node": "n", "ready": True, "dormant": False, "ending": False, "restarts": 0, "phase": "Running"}
    new_pod_counts = pod_counts(
        {"shop/b": [pod, pod, {**pod, "node": "m"}], "shop/a": [{**pod, "ready": False, "node": ""}]}
    )
    assert [(pod_count.key, pod_count.node, pod_count.state, pod_count.count) for pod_count in new_pod_counts] == [
        ("shop/a", "", "starting", 1),
        ("shop/b", "m", "ready", 1),
        ("shop/b", "n", "ready", 2),
    ]
