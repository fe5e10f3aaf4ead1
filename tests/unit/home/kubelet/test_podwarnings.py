import pytest

from serving.home.kubelet.podwarnings import memory_limit_bytes, pod_event, warnings_of

POD = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}}


def test_pod_event_has_object_reason_and_message() -> None:
    event = pod_event(POD, reason="OOMKilled", message="too much", now="now")
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "n", "uid": "u"}
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "OOMKilled", "too much")


def test_pod_event_name_depends_on_its_message() -> None:
    names = {pod_event(POD, reason="r", message=text, now=now)["metadata"]["name"] for text, now in ("a1", "a2", "b3")}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("limits", "wanted"), [({"memory": "64Mi"}, 64 * 2**20), ({"memory": "many"}, None), ({}, None), (None, None)]
)
def test_memory_limit_is_parsed_in_bytes(limits: object, wanted: int | None) -> None:
    assert memory_limit_bytes({"resources": {"limits": limits}}) == wanted


def test_unenforced_limits_and_volume_paths_are_warned_about() -> None:
    container = {"name": "c", "resources": {"limits": {"cpu": "100m"}}, "volumeMounts": [{"mountPath": "/etc/x"}]}
    assert [
        reason for reason, _ in warnings_of(container, security={}, refused=["cpu", "memory"], has_images=False)
    ] == ["CpuLimitNotEnforced", "VolumesElsewhere"]


def test_container_without_unenforced_fields_has_no_warning() -> None:
    assert warnings_of({"name": "c"}, security={"allowPrivilegeEscalation": False}, has_images=False) == []


def test_unenforced_security_context_of_a_process_is_warned_about() -> None:
    security = {"runAsUser": 1000, "readOnlyRootFilesystem": True, "runAsNonRoot": False}
    ((reason, message),) = warnings_of({"name": "c"}, security=security, has_images=False)
    assert (reason, "runAsUser, readOnlyRootFilesystem" in message) == ("SecurityContextNotEnforced", True)


def test_image_container_is_warned_about_refused_limits_only() -> None:
    container = {"name": "c", "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}}}
    warnings = warnings_of(container, security={"runAsUser": 1000}, refused=["cpu"], has_images=True)
    assert [reason for reason, _ in warnings] == ["CpuLimitNotEnforced"]


def test_rootless_container_is_warned_about_run_as_user() -> None:
    ((reason, message),) = warnings_of(
        {"name": "c"}, security={"runAsUser": 1000, "readOnlyRootFilesystem": True}, has_images=True, is_rootless=True
    )
    assert (reason, "c: runAsUser is not enforced" in message) == ("SecurityContextNotEnforced", True)
