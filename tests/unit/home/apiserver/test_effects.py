from typing import Any

import pytest

from serving.cluster.kinds import CONFIG_MAP, DEPLOYMENT, POD, REVISION, SERVING_SERVICE, Kind
from serving.home.apiserver.effects import effectless, unrunnable


def service(pod: dict[str, Any], **metadata: object) -> dict[str, Any]:
    return {"metadata": metadata, "spec": {"template": {"spec": pod}}}


@pytest.mark.parametrize(
    ("pod", "path"),
    [
        ({"priorityClassName": "high"}, "spec.template.spec.priorityClassName"),
        ({"affinity": {"podAntiAffinity": {"a": "b"}}}, "spec.template.spec.affinity.podAntiAffinity"),
        ({"automountServiceAccountToken": True}, "spec.template.spec.automountServiceAccountToken"),
        ({"containers": [{}, {"imagePullPolicy": "Always"}]}, "spec.template.spec.containers[1].imagePullPolicy"),
        ({"volumes": [{"hostPath": {"path": "/x"}}]}, "spec.template.spec.volumes[0].hostPath"),
    ],
)
def test_what_does_nothing_is_told_by_its_path(pod: dict[str, Any], path: str) -> None:
    (told,) = effectless(SERVING_SERVICE, service(pod))
    assert told.startswith(f"{path}: accepted without effect: ")


@pytest.mark.parametrize("field", ["runtimeClassName", "dnsPolicy"])
def test_containers_are_not_called_processes(field: str) -> None:
    (told,) = effectless(SERVING_SERVICE, service({field: "x"}), runs_images=True)
    assert "pods are processes" not in told
    assert "as on this machine" not in told


def test_what_the_scheduler_reads_is_not_told() -> None:
    required: dict[str, Any] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
    pod = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": required},
    }
    assert effectless(SERVING_SERVICE, service(pod)) == []


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


@pytest.mark.parametrize(("kind", "root"), [(SERVING_SERVICE, "spec.template."), (DEPLOYMENT, "spec.template.")])
def test_a_container_that_names_only_an_image_cannot_run(kind: Kind, root: str) -> None:
    (told,) = unrunnable(kind, service({"containers": [{"image": "nginx"}, {"image": "x", "command": ["x"]}]}))
    assert told.startswith(f"{root}spec.containers[0]: no container runtime runs images here; give it a command")


def test_a_pod_has_no_template() -> None:
    (told,) = unrunnable(POD, {"spec": {"containers": [{"image": "nginx"}]}})
    assert told.startswith("spec.containers[0]: ")


def test_what_has_a_command_can_run() -> None:
    body = service({"containers": [{"image": "nginx"}]})
    body["spec"]["template"]["metadata"] = {"annotations": {"serving.dev/command": "true"}}
    assert unrunnable(SERVING_SERVICE, body) == []
    assert unrunnable(SERVING_SERVICE, service({"containers": [{"args": ["true"]}]})) == []
    assert unrunnable(CONFIG_MAP, {}) == []


def test_what_containers_of_images_honour_is_reported_for_processes_only() -> None:
    body = service({"imagePullSecrets": [{"name": "s"}]})
    assert len(effectless(SERVING_SERVICE, body)) == 1
    assert effectless(SERVING_SERVICE, body, runs_images=True) == []
