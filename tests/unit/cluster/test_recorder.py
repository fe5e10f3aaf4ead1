from pathlib import Path

import pytest

from serving.cluster.recorder import CallRecorder, permission_of, recorder_from_environment


@pytest.mark.parametrize(
    ("method", "path", "query", "said"),
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
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {}, "create tokenreviews.authentication.k8s.io"),
    ],
)
def test_a_call_is_told_as_roles_write_it(method: str, path: str, query: dict[str, str], said: str) -> None:
    assert permission_of(method, path, query) == said


def test_each_pair_is_written_once(tmp_path: Path) -> None:
    file = tmp_path / "calls"
    recorder = CallRecorder(file)
    for name in ("p", "q"):
        recorder.add("GET", f"/api/v1/namespaces/a/pods/{name}", {})
    recorder.add("GET", "/api/v1/pods", {})
    assert file.read_text() == "get pods\nlist pods\n"


def test_nothing_is_kept_unless_the_environment_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVING_KUBE_RECORD", raising=False)
    assert recorder_from_environment() is None
    monkeypatch.setenv("SERVING_KUBE_RECORD", str(tmp_path / "calls"))
    assert isinstance(recorder_from_environment(), CallRecorder)
