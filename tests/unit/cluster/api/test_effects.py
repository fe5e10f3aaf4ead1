from typing import Any

import pytest

from serving.cluster.api.effects import effectless
from serving.cluster.kinds import POD, REVISION, SERVING_SERVICE


def service(pod: dict[str, Any], **metadata: object) -> dict[str, Any]:
    return {"metadata": metadata, "spec": {"template": {"spec": pod}}}


@pytest.mark.parametrize(
    ("pod", "path"),
    [
        ({"nodeSelector": {"a": "b"}}, "spec.template.spec.nodeSelector"),
        ({"serviceAccountName": "x"}, "spec.template.spec.serviceAccountName"),
        ({"containers": [{}, {"imagePullPolicy": "Always"}]}, "spec.template.spec.containers[1].imagePullPolicy"),
        ({"volumes": [{"projected": {"sources": []}}]}, "spec.template.spec.volumes[0].projected"),
    ],
)
def test_what_does_nothing_is_told_by_its_path(pod: dict[str, Any], path: str) -> None:
    (told,) = effectless(SERVING_SERVICE, service(pod))
    assert told.startswith(f"{path}: accepted without effect: ")


@pytest.mark.parametrize(
    "pod", [{"enableServiceLinks": False}, {"nodeSelector": {}}, {"affinity": None}, {"containers": [{}]}]
)
def test_what_asks_for_nothing_is_not_told(pod: dict[str, Any]) -> None:
    assert effectless(SERVING_SERVICE, service(pod)) == []


def test_annotations_of_another_platform_are_told() -> None:
    body = service({}, annotations={"run.googleapis.com/ingress": "all", "serving.dev/command": "x"})
    expected = "metadata.annotations[run.googleapis.com/ingress]: accepted without effect: it is for another platform"
    assert effectless(SERVING_SERVICE, body) == [expected]


def test_annotations_of_another_shape_are_left_alone() -> None:
    assert effectless(SERVING_SERVICE, service({}, annotations=5)) == []


def test_a_revision_has_its_pod_elsewhere() -> None:
    assert len(effectless(REVISION, {"spec": {"schedulerName": "x"}})) == 1


def test_kinds_of_kubernetes_tell_nothing() -> None:
    assert effectless(POD, {"spec": {"nodeSelector": {"a": "b"}}}) == []
