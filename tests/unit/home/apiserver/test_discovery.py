import pytest

from serving.home.apiserver.discovery import (
    aggregated,
    aggregated_version,
    api_versions,
    group_list,
    group_of,
    resource_list,
)
from serving.net.cluster.kinds import KINDS


def names(group: str, version: str) -> list[str]:
    container = resource_list(group, version)
    assert container is not None
    return [resource["name"] for resource in container["resources"]]


def test_core_group_has_version_v1() -> None:
    assert api_versions()["versions"] == ["v1"]


def test_group_list_has_every_group_once() -> None:
    assert [group["name"] for group in group_list()["groups"]] == [
        "apps",
        "discovery.k8s.io",
        "autoscaling",
        "gateway.networking.k8s.io",
        "http.keda.sh",
        "cert-manager.io",
        "networking.k8s.io",
        "keda.sh",
        "coordination.k8s.io",
        "cluster.x-k8s.io",
        "metrics.k8s.io",
        "policy",
        "serving.knative.dev",
        "networking.internal.knative.dev",
        "autoscaling.internal.knative.dev",
        "serving.dev",
        "batch",
    ]


def test_group_with_two_versions_prefers_the_first() -> None:
    group = group_of("serving.knative.dev")
    assert group is not None
    assert [version["version"] for version in group["versions"]] == ["v1", "v1beta1"]
    assert group["preferredVersion"]["version"] == "v1"


def test_resource_list_has_only_kinds_of_its_version() -> None:
    assert names("serving.knative.dev", "v1beta1") == ["domainmappings", "domainmappings/status"]
    assert "domainmappings" not in names("serving.knative.dev", "v1")


def test_view_kind_has_only_read_verbs() -> None:
    container = resource_list("autoscaling.internal.knative.dev", "v1alpha1")
    assert container is not None
    assert [(resource["name"], resource["verbs"]) for resource in container["resources"]] == [
        ("podautoscalers", ["get", "list", "watch"])
    ]


def test_group_has_preferred_version() -> None:
    group = group_of("apps")
    assert group is not None
    assert group["preferredVersion"] == {"groupVersion": "apps/v1", "version": "v1"}


@pytest.mark.parametrize("group", ["", "rbac.authorization.k8s.io"])
def test_group_of_an_unserved_group_is_none(group: str) -> None:
    assert group_of(group) is None


def test_resource_list_of_an_unserved_version_is_none() -> None:
    assert resource_list("apps", "v1beta1") is None


def test_pods_have_status_and_log_subresources() -> None:
    assert {"pods", "pods/status", "pods/log"} <= set(names("", "v1"))


def test_deployments_have_status_and_scale_subresources() -> None:
    deployments = [name for name in names("apps", "v1") if name.startswith("deployments")]
    assert deployments == ["deployments", "deployments/status", "deployments/scale"]


def test_config_maps_have_no_status_subresource() -> None:
    assert "configmaps/status" not in names("", "v1")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json", "v2"),
        ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", "v2beta1"),
        ("application/json", ""),
        ("", ""),
    ],
)
def test_aggregated_discovery_version_is_read_from_accept(accept: str, expected: str) -> None:
    assert aggregated_version(accept) == expected


def test_aggregated_discovery_has_every_kind() -> None:
    documents = [aggregated("v2", core=core) for core in (True, False)]
    versions = [version for document in documents for item in document["items"] for version in item["versions"]]
    resources = [resource["resource"] for version in versions for resource in version["resources"]]
    assert sorted(resources) == sorted(kind.plural for kind in KINDS)


def test_aggregated_scale_has_autoscaling_response_kind() -> None:
    (apps,) = [item for item in aggregated("v2", core=False)["items"] if item["metadata"]["name"] == "apps"]
    scale = apps["versions"][0]["resources"][0]["subresources"][1]
    assert scale["responseKind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
