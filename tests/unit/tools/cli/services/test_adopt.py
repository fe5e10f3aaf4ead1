import pytest

from serving.core.model.objects import Object
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadService, WorkloadTarget
from serving.tools.cli.services.adopt import http_route, ingress, port_of

SPEC = ScaledWorkloadSpec(
    target=WorkloadTarget(name="shop"),
    service=WorkloadService(name="shop"),
    hosts=("shop.example.com", "shop"),
    paths=("/api",),
)


def a_service(*ports: tuple[int, str]) -> Object:
    return {"metadata": {"name": "shop"}, "spec": {"ports": [{"port": port, "name": name} for port, name in ports]}}


def test_ingress_routes_public_hosts_to_the_activator() -> None:
    (rule,) = ingress("shop", SPEC)["spec"]["rules"]
    assert rule["host"] == "shop.example.com"
    backend = {"service": {"name": "activator", "port": {"number": 80}}}
    assert rule["http"]["paths"] == [{"path": "/api", "pathType": "Prefix", "backend": backend}]


def test_httproute_refers_to_the_gateway() -> None:
    spec = http_route("shop", SPEC, {"metadata": {"name": "g", "namespace": "n"}})["spec"]
    assert (spec["parentRefs"], spec["hostnames"]) == ([{"name": "g", "namespace": "n"}], ["shop.example.com"])
    assert spec["rules"][0]["matches"] == [{"path": {"type": "PathPrefix", "value": "/api"}}]


@pytest.mark.parametrize(
    ("ports", "wanted", "port"),
    [
        ([(8080, "")], None, 8080),
        ([(9090, "metrics"), (80, "http")], None, 80),
        ([(9090, "metrics"), (80, "http")], "metrics", "metrics"),
        ([(9090, "metrics"), (80, "http")], "80", 80),
    ],
)
def test_service_port_is_chosen_by_name_number_or_http(
    ports: list[tuple[int, str]], wanted: str | None, port: int | str
) -> None:
    assert port_of(a_service(*ports), wanted) == port


@pytest.mark.parametrize(("wanted", "text"), [(None, "choose one with --port: 1, a, 2, b"), ("3", "has no port 3")])
def test_ambiguous_or_unknown_service_port_is_rejected(
    wanted: str | None, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        port_of(a_service((1, "a"), (2, "b")), wanted)
    assert text in capsys.readouterr().err
