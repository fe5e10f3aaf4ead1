from typing import Any

import pytest

from serving.home.admission.admission import admit
from serving.home.admission.defaults import fill_in_defaults, with_requests
from serving.net.cluster.kinds import DOMAIN_MAPPING, POD, REVISION

# JSON values have any type.
# ruff: noqa: ANN401


def pod_of(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    body = {"metadata": {"name": "hello"}, "spec": {"containers": list(containers), **spec}}
    result: dict[str, Any] = admit(REVISION, body)["spec"]
    return result


def container_of(**fields: Any) -> dict[str, Any]:
    container: dict[str, Any] = pod_of({"image": "x", **fields})["containers"][0]
    return container


def test_container_port_0_defaults_to_8080() -> None:
    # Go clients send 0 for an omitted port.
    assert container_of(ports=[{"containerPort": 0}])["ports"] == [{"containerPort": 8080, "protocol": "TCP"}]


def test_timeout_0_defaults_to_300_seconds() -> None:
    assert pod_of({"image": "x"}, timeoutSeconds=0)["timeoutSeconds"] == 300


@pytest.mark.parametrize(
    ("probe", "stored"),
    [
        (None, {"tcpSocket": {"port": 0}, "successThreshold": 1}),
        ({"httpGet": {"path": "/"}}, {"httpGet": {"path": "/"}, "successThreshold": 1}),
        ({"successThreshold": 2}, {"tcpSocket": {"port": 0}, "successThreshold": 2}),
        (
            {"periodSeconds": 5},
            {"tcpSocket": {"port": 0}, "successThreshold": 1, "periodSeconds": 5}
            | {"failureThreshold": 3, "timeoutSeconds": 1},
        ),
        (
            {"periodSeconds": 5, "failureThreshold": 9, "timeoutSeconds": 2},
            {"tcpSocket": {"port": 0}, "successThreshold": 1, "periodSeconds": 5}
            | {"failureThreshold": 9, "timeoutSeconds": 2},
        ),
    ],
)
def test_readiness_probe_gets_defaults(probe: Any, stored: dict[str, Any]) -> None:
    fields = {} if probe is None else {"readinessProbe": probe}
    assert container_of(**fields)["readinessProbe"] == stored


def test_sidecar_gets_no_readiness_probe() -> None:
    first, second = pod_of({"image": "x", "ports": [{}]}, {"image": "y"})["containers"]
    assert "readinessProbe" in first
    assert "readinessProbe" not in second
    assert [first["name"], second["name"]] == ["user-container-0", "user-container-1"]


def test_domain_mapping_ref_defaults_to_its_namespace() -> None:
    ref = {"kind": "Service", "name": "hello", "apiVersion": "serving.knative.dev/v1"}
    body = {"metadata": {"name": "a.example.com", "namespace": "ns"}, "spec": {"ref": ref}}
    assert admit(DOMAIN_MAPPING, body)["spec"]["ref"]["namespace"] == "ns"


@pytest.mark.parametrize("spec", [{"containers": 1}, {"containers": [1]}, {"containers": [{"readinessProbe": 1}]}])
def test_defaulting_ignores_malformed_spec(spec: dict[str, Any]) -> None:
    fill_in_defaults(REVISION, {}, spec)
    assert "containers" in spec


def test_defaulting_is_idempotent() -> None:
    body = {"metadata": {"name": "hello"}, "spec": {"containers": [{"image": "x", "ports": [{"containerPort": 0}]}]}}
    once = admit(REVISION, body)
    assert admit(REVISION, once) == once
    assert admit(REVISION, body, once) == once


def test_missing_pod_request_defaults_to_limit() -> None:
    written = {"limits": {"cpu": "1", "memory": "1Mi"}, "requests": {"cpu": "2m"}}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "resources": written}, {"name": "b"}]}}
    stored = admit(POD, pod)["spec"]["containers"]
    assert stored[0]["resources"]["requests"] == {"cpu": "2m", "memory": "1Mi"}
    assert stored[1] == {"name": "b"}


@pytest.mark.parametrize("pod", [{"metadata": {}}, {"spec": {"containers": [{"name": "a", "resources": None}]}}])
def test_pod_without_limits_is_unchanged(pod: dict[str, Any]) -> None:
    assert with_requests(pod) is pod
