from serving.home.apiserver.discovery import openapi_v2, openapi_v2_protobuf, openapi_v3, openapi_v3_index
from serving.home.schemas.crds import crds
from serving.net.cluster.kinds import SERVING_SERVICE

GVK = "x-kubernetes-group-version-kind"


def test_every_indexed_group_has_an_openapi_document() -> None:
    for place, entry in openapi_v3_index()["paths"].items():
        assert entry["serverRelativeURL"].startswith(f"/openapi/v3/{place}?hash=")
        assert openapi_v3(place) is not None


def test_unserved_group_has_no_openapi_document() -> None:
    assert openapi_v3("apis/rbac.authorization.k8s.io/v1") is None


def test_patch_operation_has_field_validation_parameter() -> None:
    document = openapi_v3("apis/serving.knative.dev/v1")
    assert document is not None
    patch = document["paths"]["/apis/serving.knative.dev/v1/namespaces/{namespace}/services/{name}"]["patch"]
    assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]
    assert patch[GVK] == {"group": "serving.knative.dev", "version": "v1", "kind": "Service"}


def test_openapi_schema_of_service_equals_its_crd() -> None:
    document = openapi_v3("apis/serving.knative.dev/v1")
    assert document is not None
    schema = document["components"]["schemas"]["dev.knative.serving.v1.Service"]
    assert schema["properties"] == crds()[SERVING_SERVICE].schema["properties"]


def test_cluster_scoped_paths_have_no_namespace() -> None:
    document = openapi_v3("api/v1")
    assert document is not None
    assert "/api/v1/nodes/{name}" in document["paths"]


def test_openapi_v2_has_no_definitions() -> None:
    assert openapi_v2()["definitions"] == {}


def test_openapi_v2_is_encoded_as_protobuf() -> None:
    assert openapi_v2_protobuf() == b"\x0a\x032.0\x12\x0d\x0a\x07serving\x12\x02v1\x42\x00\x4a\x00"
