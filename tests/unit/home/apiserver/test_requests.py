import msgspec
import pytest

from serving.core.model.errors import AlreadyExists, Gone, Invalid, NotFound, Problem, Unsupported
from serving.home.apiserver.requests import (
    Fault,
    RequestTarget,
    check_list_version,
    refusal,
    refusal_code,
    success,
    target_of,
)
from serving.net.cluster.kinds import DEPLOYMENT, NAMESPACE, NODE, POD, SERVICE, SERVING_SERVICE
from serving.net.cluster.kubeclient import error_of

TARGET = RequestTarget(kind=SERVING_SERVICE, namespace="default", name="hello")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/pods", RequestTarget(kind=POD, namespace=None)),
        ("/api/v1/namespaces/a/pods", RequestTarget(kind=POD, namespace="a")),
        ("/api/v1/namespaces/a/pods/p", RequestTarget(kind=POD, namespace="a", name="p")),
        ("/api/v1/namespaces/a/pods/p/log", RequestTarget(kind=POD, namespace="a", name="p", subresource="log")),
        ("/api/v1/namespaces", RequestTarget(kind=NAMESPACE, namespace="")),
        ("/api/v1/namespaces/a", RequestTarget(kind=NAMESPACE, namespace="", name="a")),
        ("/api/v1/namespaces/a/status", RequestTarget(kind=NAMESPACE, namespace="", name="a", subresource="status")),
        ("/api/v1/nodes/n", RequestTarget(kind=NODE, namespace="", name="n")),
        ("/api/v1/namespaces/a/services/s", RequestTarget(kind=SERVICE, namespace="a", name="s")),
        (
            "/apis/serving.knative.dev/v1/namespaces/a/services/s",
            RequestTarget(kind=SERVING_SERVICE, namespace="a", name="s"),
        ),
        ("/apis/apps/v1/deployments/", RequestTarget(kind=DEPLOYMENT, namespace=None)),
        ("/api/v1/namespaces/a/pods/p%2Flog", RequestTarget(kind=POD, namespace="a", name="p/log")),
    ],
)
def test_path_is_parsed_as_request_target(path: str, expected: RequestTarget) -> None:
    assert target_of(path) == expected


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api",
        "/api/v1",
        "/apis/apps/v1",
        "/other/v1/pods",
        "/api/v2/pods",
        "/api/v1/things",
        "/apis/apps/v1/pods",
        "/apis/serving.knative.dev/v1alpha1/services",
        "/api/v1/pods/p",
        "/api/v1/namespaces//pods",
        "/api/v1/namespaces/a/nodes/n",
        "/api/v1/namespaces/a/pods/p/log/more",
        "/api/v1/namespaces/a/pods//log",
    ],
)
def test_unknown_path_is_not_found(path: str) -> None:
    with pytest.raises(NotFound, match="could not find the requested resource"):
        target_of(path)


@pytest.mark.parametrize(
    ("version", "match", "code"),
    [
        ("", "", 0),
        ("7", "", 0),
        ("9", "Exact", 0),
        ("0", "NotOlderThan", 0),
        ("10", "", 410),
        ("7", "Exact", 410),
        ("0", "Exact", 400),
        ("", "Exact", 400),
        ("9", "Other", 400),
        ("x", "", 400),
    ],
)
def test_list_at_another_resource_version_is_rejected(version: str, match: str, code: int) -> None:
    refused = 0
    try:
        check_list_version({"resourceVersion": version, "resourceVersionMatch": match}, "9")
    except (Fault, Gone) as error:
        refused = refusal_code(error)
    assert refused == code


def test_deprecated_watch_path_is_rejected_with_advice() -> None:
    with pytest.raises(Unsupported, match=r"\?watch=true"):
        target_of("/api/v1/watch/pods")


@pytest.mark.parametrize(("namespace", "expected"), [(None, ""), ("a", "a")])
def test_one_namespace_is_empty_for_all_namespaces(namespace: str | None, expected: str) -> None:
    assert RequestTarget(kind=POD, namespace=namespace).one_namespace == expected


def test_error_status_has_details_of_its_target() -> None:
    assert refusal(NotFound("no"), TARGET) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "no",
        "reason": "NotFound",
        "code": 404,
        "details": {"name": "hello", "group": "serving.knative.dev", "kind": "services"},
    }


def test_each_problem_is_a_status_cause() -> None:
    problems = [Problem(where="spec.a", what="wrong", expected="right")]
    details = refusal(Invalid("no", problems), TARGET)["details"]
    assert details["causes"] == [{"reason": "FieldValueInvalid", "message": "wrong", "field": "spec.a"}]
    assert details["kind"] == "Service"


def test_error_without_target_has_no_details() -> None:
    assert "details" not in refusal(Gone("old"))


def test_invalid_patch_status_has_message_and_no_details() -> None:
    status = refusal(Invalid("no value at /spec/nope"), TARGET)
    assert (status["message"], "details" in status) == ("no value at /spec/nope", False)


def test_unknown_resource_is_named_in_error() -> None:
    with pytest.raises(NotFound, match="resource: horizontalpodautoscalers of autoscaling/v1"):
        target_of("/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers")


def test_fault_reason_is_derived_from_its_code() -> None:
    status = refusal(Fault(415, "what?"))
    assert (status["reason"], status["code"]) == ("UnsupportedMediaType", 415)


def test_fault_of_uncommon_code_has_http_phrase_as_reason() -> None:
    assert refusal(Fault(418, "no"))["reason"] == "I'm a Teapot"


def test_success_status_names_the_deleted_object() -> None:
    assert success(TARGET, "u")["details"] == {
        "name": "hello",
        "group": "serving.knative.dev",
        "kind": "services",
        "uid": "u",
    }


def test_errors_are_restored_from_their_status() -> None:
    for error in (
        NotFound("a"),
        AlreadyExists("b"),
        Gone("c"),
        Invalid("d", [Problem(where="e", what="f", expected="g")]),
    ):
        back = error_of(refusal_code(error), msgspec.json.encode(refusal(error, TARGET)))
        assert (type(back), str(back)) == (type(error), str(error))
