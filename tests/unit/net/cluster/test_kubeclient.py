from pathlib import Path

import msgspec
import pytest

from serving.core.model.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooManyRequests,
    Unavailable,
    Unsupported,
    UnsupportedMediaType,
)
from serving.net.cluster.kubeclient import (
    CallRecorder,
    error_of,
    event_error,
    listed_kind,
    permission_of,
    recorder_from_environment,
)


@pytest.mark.parametrize(
    ("method", "path", "query", "permission"),
    [
        ("GET", "/api/v1/pods", {}, "list pods"),
        ("GET", "/api/v1/pods", {"watch": "true"}, "watch pods"),
        ("GET", "/api/v1/namespaces/a/pods/p", {}, "get pods"),
        ("GET", "/api/v1/namespaces/a", {}, "get namespaces"),
        ("GET", "/api/v1/namespaces", {"labelSelector": "a=b"}, "list namespaces"),
        ("POST", "/api/v1/namespaces/a/events", {}, "create events"),
        ("PATCH", "/apis/apps/v1/namespaces/a/deployments/d/scale", {}, "patch deployments.apps/scale"),
        ("PUT", "/api/v1/namespaces/a/events/e", {}, "update events"),
        ("DELETE", "/apis/serving.knative.dev/v1/namespaces/a/revisions/r", {}, "delete revisions.serving.knative.dev"),
        ("GET", "/apis/argoproj.io/v1alpha1", {}, "get discovery"),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {}, "create tokenreviews.authentication.k8s.io"),
    ],
)
def test_permission_of_a_call_has_rbac_verb_and_resource(
    method: str, path: str, query: dict[str, str], permission: str
) -> None:
    assert permission_of(method, path, query) == permission


def test_kind_is_found_in_discovery_with_its_scale_subresource() -> None:
    resources: list[dict[str, object]] = [
        {"name": "rollouts/scale", "kind": "Scale"},
        {"name": "rollouts", "kind": "Rollout", "namespaced": True},
        {"name": "analyses", "kind": "Analysis"},
    ]
    rollout, analysis = (listed_kind("argoproj.io/v1alpha1", name, resources) for name in ("Rollout", "Analysis"))
    assert rollout is not None
    assert analysis is not None
    assert (rollout.api_version, rollout.plural, rollout.namespaced) == ("argoproj.io/v1alpha1", "rollouts", True)
    assert (rollout.has_scale, analysis.has_scale, analysis.namespaced) == (True, False, False)
    assert listed_kind("argoproj.io/v1alpha1", "Scale", resources) is None


def test_call_recorder_writes_each_permission_once(tmp_path: Path) -> None:
    file = tmp_path / "calls"
    recorder = CallRecorder(file)
    for name in ("p", "q"):
        recorder.add("GET", f"/api/v1/namespaces/a/pods/{name}", {})
    recorder.add("GET", "/api/v1/pods", {})
    assert file.read_text() == "get pods\nlist pods\n"


def test_calls_are_recorded_only_if_environment_variable_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SERVING_KUBE_RECORD", raising=False)
    assert recorder_from_environment() is None
    monkeypatch.setenv("SERVING_KUBE_RECORD", str(tmp_path / "calls"))
    assert isinstance(recorder_from_environment(), CallRecorder)


def body(reason: str = "", message: str = "because", **more: object) -> bytes:
    return msgspec.json.encode({"kind": "Status", "message": message, "reason": reason, **more})


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Forbidden),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", Unsupported),
        (408, "Timeout", Unavailable),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Gone),
        (413, "RequestEntityTooLarge", Invalid),
        (415, "UnsupportedMediaType", UnsupportedMediaType),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", Unavailable),
        (501, "NotImplemented", Unsupported),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
def test_http_status_maps_to_cluster_error(status: int, reason: str, expected: type[ClusterError]) -> None:
    error = error_of(status, body(reason))
    assert (type(error), str(error)) == (expected, "because")


def test_causes_of_invalid_response_become_problems() -> None:
    details = {"causes": [{"field": "spec.a", "message": "wrong"}, {"field": "spec.b"}]}
    error = error_of(422, body("Invalid", details=details))
    assert isinstance(error, Invalid)
    assert [(problem.where, problem.what) for problem in error.problems] == [("spec.a", "wrong"), ("spec.b", "")]


def test_invalid_response_without_causes_has_no_problems() -> None:
    error = error_of(422, body("Invalid", details={"name": "x"}))
    assert isinstance(error, Invalid)
    assert error.problems == ()


def test_error_message_has_retry_after_seconds() -> None:
    assert str(error_of(503, body(), "7")) == "because (asked to wait 7 s)"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"<html>bad gateway</html>", "HTTP 502: <html>bad gateway</html>"),
        (b"", "HTTP 502 without a text"),
        (b"\xff", "HTTP 502: \ufffd"),
        (b"{}", "HTTP 502"),
    ],
)
def test_response_that_is_no_status_object_is_quoted(data: bytes, text: str) -> None:
    assert str(error_of(502, data)) == text


def test_watch_error_410_is_gone() -> None:
    error = event_error({"code": 410, "reason": "Expired", "message": "too old"})
    assert (type(error), str(error)) == (Gone, "too old")


@pytest.mark.parametrize("status", [{"code": "x"}, {"message": "no code"}])
def test_watch_error_without_code_is_unavailable(status: dict[str, object]) -> None:
    assert type(event_error(status)) is Unavailable
