"""The status of ScaledWorkloads."""

from typing import Any

import pytest

from serving.controller.workloads.known import KnownWorkload
from serving.controller.workloads.status import WorkloadView, workload_status
from serving.core.model.objects import Object, condition_of
from serving.net.cluster.kinds import SERVICE
from serving.net.cluster.schedules import schedule_problems
from tests.unit.controller.builders import CREATED, NOW, SCALING, SETTINGS

HTTP = {"name": "http", "port": 80}
TARGET: Object = {"spec": {"replicas": 2, "selector": {"matchLabels": {"app": "shop"}}}, "status": {"readyReplicas": 1}}


def workload(name: str = "shop", *, namespace: str = "default", created: str = CREATED, **spec: Any) -> Object:  # noqa: ANN401 - JSON
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": created, "generation": 3}
    return {"metadata": metadata, "spec": {"target": {"name": "shop"}, "service": {"name": "shop"}, **spec}}


def service(*ports: Object) -> Object:
    return {"spec": {"ports": list(ports)}}


def status(resource: Object, **view: Any) -> Object:  # noqa: ANN401 - fields of the view
    whole = WorkloadView(
        **{"own": KnownWorkload.of(resource, schedule_problems), "target": TARGET, "service": service(HTTP), **view}
    )
    return workload_status(resource, whole, settings=SETTINGS, scaling=SCALING, now=NOW)


def condition(fields: Object, name: str) -> tuple[str, str, str]:
    entry = condition_of({"status": fields}, name)
    return entry["status"], entry.get("reason", ""), entry.get("message", "")


def test_complete_workload_is_ready() -> None:
    entry = status(workload(hosts=["shop.example.com"], paths=["/api/"]))
    assert condition(entry, "Ready") == ("True", "", "")
    assert condition(entry, "Active") == ("True", "", "")
    assert (entry["observedGeneration"], entry["desiredReplicas"], entry["readyReplicas"]) == (3, 2, 1)
    assert (entry["url"], entry["path"], entry["portName"]) == ("http://shop.example.com:8080/api", "proxy", "http")
    assert entry["selector"] == "app=shop"


@pytest.mark.parametrize("hosts", [[], ["*.example.com"]])
def test_url_without_exact_host_is_cluster_local(hosts: list[str]) -> None:
    assert status(workload(hosts=hosts))["url"] == "http://shop.default.svc.cluster.local"


def test_scale_subresource_supplies_replicas_and_selector() -> None:
    scale = {"kind": "Scale", "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "app=shop"}}
    entry = status(workload(), target=scale)
    assert condition(entry, "Ready")[0] == "True"
    assert (entry["desiredReplicas"], entry["readyReplicas"], entry["selector"]) == (3, 2, "app=shop")


def test_workload_at_zero_is_ready_and_not_active() -> None:
    entry = status(workload(), target={"spec": {"replicas": 0}})
    assert condition(entry, "Ready")[0] == "True"
    assert condition(entry, "Active")[:2] == ("False", "NoTraffic")
    assert (entry["desiredReplicas"], entry["readyReplicas"]) == (0, 0)


@pytest.mark.parametrize(
    ("view", "name", "reason", "message"),
    [
        ({"target": None}, "TargetResolved", "TargetNotFound", "there is no Deployment shop in this namespace"),
        (
            {"target": None, "is_known_kind": False},
            "TargetResolved",
            "KindNotScaled",
            "Deployment of apps/v1 has no scale, or the controller may not read it",
        ),
        ({"service": None}, "ServiceResolved", "ServiceNotFound", "there is no Service shop in this namespace"),
        (
            {"service": service(HTTP, {"port": 90})},
            "ServiceResolved",
            "PortNotNamed",
            "Service shop has the ports 80 (http), 90 (no name): name one in spec.service.port",
        ),
        (
            {"service": service()},
            "ServiceResolved",
            "PortNotNamed",
            "Service shop has the ports none: name one in spec.service.port",
        ),
        (
            {"is_revision": True},
            "HostsClaimed",
            "NameTaken",
            "a Revision is called shop, too, and is served in its place: give the ScaledWorkload another name",
        ),
        (
            {
                "scalers": [
                    {
                        "metadata": {"name": "other"},
                        "spec": {"scaleTargetRef": {"kind": "StatefulSet", "name": "shop"}},
                    },
                    {"metadata": {"name": "hpa"}, "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "shop"}}},
                ]
            },
            "ScaledAlone",
            "HorizontalPodAutoscaler",
            "HorizontalPodAutoscaler hpa scales Deployment shop, too: delete it or this ScaledWorkload",
        ),
        (
            {
                "workloads": [
                    KnownWorkload.of(workload("a-twin")),
                    KnownWorkload.of(workload("a-bad", target={})),
                    KnownWorkload.of(workload("far", namespace="x")),
                    KnownWorkload.of(workload("twin")),
                ]
            },
            "ScaledAlone",
            "SameTarget",
            "the older ScaledWorkload a-twin scales Deployment shop: delete one of them",
        ),
    ],
)
def test_missing_or_conflicting_objects_are_reported(
    view: dict[str, Any], name: str, reason: str, message: str
) -> None:
    result = status(workload(), **view)
    assert condition(result, name) == ("False", reason, message)
    assert condition(result, "Ready") == ("False", reason, message)


@pytest.mark.parametrize(
    ("port", "ports", "expected"),
    [
        (80, [{"name": "http", "port": 80}], "http"),
        ("http", [{"name": "admin", "port": 9}, {"name": "http", "port": 80}], "http"),
        (None, [{"port": 80}], ""),
        (80, [{"port": 80}], ""),
    ],
)
def test_status_has_name_of_service_port(port: object, ports: list[Object], expected: str) -> None:
    entry = status(workload(service={"name": "shop", "port": port}), service=service(*ports))
    assert entry["portName"] == expected


def target_port(port: Object, *, labels: dict[str, str] | None = None, **selector: str) -> object:
    template = {"metadata": {"labels": {"app": "shop"} if labels is None else labels}}
    target = {**TARGET, "spec": {**TARGET["spec"], "template": template}}
    resource = {**workload(), "status": {"targetPort": 1}}
    own_service = {"spec": {"ports": [port], "selector": selector}}
    return status(resource, target=target, service=own_service).get("targetPort")


def test_target_port_is_in_status_if_service_selects_pods_without_tls() -> None:
    assert target_port(HTTP, app="shop") == 80
    assert target_port({**HTTP, "targetPort": "web"}, app="shop") == "web"
    assert target_port(HTTP) is None
    assert target_port(HTTP, app="shop", track="blue") is None
    assert target_port({**HTTP, "appProtocol": "https"}, app="shop") is None
    assert status(workload(), target=None).get("targetPort") is None


def affinity_s(**spec: Any) -> object:  # noqa: ANN401 - fields of a Service
    resource = {**workload(), "status": {"clientAffinitySeconds": 1}}
    return status(resource, service={"spec": {"ports": [HTTP], **spec}}).get("clientAffinitySeconds")


def test_session_affinity_of_service_is_in_status() -> None:
    assert affinity_s() is affinity_s(sessionAffinity="None") is None
    assert affinity_s(sessionAffinity="ClientIP") == 10_800
    assert affinity_s(sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"timeoutSeconds": 60}}) == 60


def test_target_port_without_container_port_is_reported() -> None:
    named = service({**HTTP, "targetPort": "web"})
    message = "Service shop leads to the port web, which no container of Deployment shop has"
    for ports, expected in (([], ("False", "TargetPortNotFound", message)), ([{"name": "web"}], ("True", "", ""))):
        template = {"spec": {"containers": [{"name": "app", "ports": ports}]}}
        target = {**TARGET, "spec": {**TARGET["spec"], "template": template}}
        assert condition(status(workload(), target=target, service=named), "ServiceResolved") == expected
    assert condition(status(workload(), service=named), "ServiceResolved")[0] == "True"


def test_rule_of_older_workload_in_namespace_is_reported() -> None:
    older = workload("a-twin", created="2020-01-01T00:00:00Z", target={"name": "other"}, hosts=["shop.example.com"])
    known = [KnownWorkload.of(older)]
    written_status = status(workload(hosts=["shop.example.com"], paths=["/"]), workloads=known)
    message = (
        "the older ScaledWorkload a-twin gets all requests for shop.example.com: let hosts, paths or headers differ"
    )
    assert condition(written_status, "HostsClaimed") == ("False", "RuleTaken", message)
    rules: list[Object] = [{"paths": ["/api"]}, {"headers": [{"name": "X-Canary"}]}, {"hosts": ["*.example.com"]}]
    for rule in rules:
        written_status = status(workload(**{"hosts": ["shop.example.com"], **rule}), workloads=known)
        assert condition(written_status, "HostsClaimed")[0] == "True", rule


def test_missing_service_port_is_reported_with_existing_ports() -> None:
    result = status(workload(service={"name": "shop", "port": "grpc"}))
    assert "portName" not in result
    message = "Service shop has no port grpc; it has 80 (http)"
    assert condition(result, "ServiceResolved") == ("False", "PortNotFound", message)


def test_host_belongs_to_oldest_workload_across_namespaces() -> None:
    mine = workload(hosts=["a.example.com"], rules=[{"hosts": ["b.example.com"]}])
    older = workload("old", namespace="other", created="2026-01-01T00:00:00Z", rules=[{"hosts": ["b.example.com"]}])
    message = "the host b.example.com belongs to ScaledWorkload other/old, which is older"
    assert condition(status(mine, workloads=[KnownWorkload.of(older)]), "HostsClaimed") == (
        "False",
        "HostTaken",
        message,
    )
    assert condition(status(older, workloads=[KnownWorkload.of(mine)]), "HostsClaimed")[0] == "True"
    unrelated = workload("old", namespace="other", created="2026-01-01T00:00:00Z", hosts=["c.example.com"])
    assert condition(status(mine, workloads=[KnownWorkload.of(unrelated)]), "HostsClaimed")[0] == "True"
    same_namespace = workload(
        "old", created="2026-01-01T00:00:00Z", target={"name": "x"}, hosts=["b.example.com"], paths=["/api"]
    )
    assert condition(status(mine, workloads=[KnownWorkload.of(same_namespace)]), "HostsClaimed")[0] == "True"


def test_host_of_another_namespace_is_reported() -> None:
    holders = {"a.example.com": "Route other/hello", "b.example.com": "Route other/b"}
    message = "the host a.example.com belongs to Route other/hello"
    result = status(workload(hosts=["a.example.com"]), holders=holders)
    assert condition(result, "HostsClaimed") == ("False", "HostTaken", message)


def test_scaling_keys_are_validated_as_revision_annotations() -> None:
    result = status(workload(scaling={"window": "5s"}))
    assert condition(result, "ScalingValid")[:2] == ("False", "InvalidScaling")
    assert "autoscaling.knative.dev/window" in condition(result, "ScalingValid")[2]


def test_contested_replicas_are_reported() -> None:
    contested = workload()
    contested["metadata"]["annotations"] = {"autoscaling.serving.dev/contested": "another client"}
    assert condition(status(contested), "ScaledAlone") == ("False", "ScaledByAnother", "another client")


def test_schedule_problems_are_reported() -> None:
    schedule = {"start": "0 8 * * *", "end": "0 9 * * *", "min": 1, "timeZone": "Mars"}
    result = status(workload(scaling={"schedules": [schedule]}))
    assert condition(result, "ScalingValid")[:2] == ("False", "InvalidScaling")
    assert "spec.schedules[0].timeZone" in condition(result, "ScalingValid")[2]


def test_unreadable_spec_preserves_rest_of_status() -> None:
    known = {**workload(service={"name": ""}), "status": {"url": "http://before", "conditions": []}}
    entry = status(known)
    assert entry["url"] == "http://before"
    assert condition(entry, "Ready") == (
        "False",
        "InvalidSpec",
        "spec.service.name: ''; expected the name of a Service",
    )


def test_fallback_service_is_resolved_in_addition_to_service() -> None:
    own = workload(coldStart={"fallback": {"name": "maintenance", "port": 80}})
    resolved = status(own, fallback=service({"name": "page", "port": 80}))
    assert (resolved["portName"], resolved["fallbackPortName"]) == ("http", "page")
    assert condition(resolved, "Ready")[0] == "True"
    message = "there is no Service maintenance in this namespace"
    assert condition(status(own), "ServiceResolved") == ("False", "ServiceNotFound", message)
    message = "there is no Service shop in this namespace"
    assert condition(status(own, service=None), "ServiceResolved") == ("False", "ServiceNotFound", message)


def test_workload_reads_its_service_and_fallback() -> None:
    known = KnownWorkload.of(workload(coldStart={"fallback": {"name": "maintenance"}}))
    assert [known.reads(SERVICE, name) for name in ("shop", "maintenance", "other")] == [True, True, False]
    assert not KnownWorkload.of(workload()).reads(SERVICE, "maintenance")
