from typing import Any

import pytest

from serving.core.model.objects import Object
from serving.home.apiserver.effects import (
    effectless,
    located,
    record_remarks,
    remark_event,
    settings_warnings,
    unrunnable,
)
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    KEDA_SCALED_OBJECT,
    POD,
    REVISION,
    SECRET,
    SERVING_SERVICE,
    Kind,
)

ABOUT: Object = {"metadata": {"name": "a" * 253, "namespace": "default", "uid": "u", "resourceVersion": "7"}}
REMARK = "spec.x: accepted without effect: because"


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
def test_ineffective_field_is_reported_by_its_path(pod: dict[str, Any], path: str) -> None:
    (reported,) = effectless(SERVING_SERVICE, service(pod))
    assert reported.startswith(f"{path}: accepted without effect: ")


def test_tcp_port_missing_from_annotation_is_reported() -> None:
    ports = [{"containerPort": 8080}, {"containerPort": 5432}, {"containerPort": 1883}]
    pod = {"containers": [{"ports": ports}]}
    (reported,) = effectless(SERVING_SERVICE, service(pod, annotations={"serving.dev/tcp": "5432"}))
    assert reported.startswith("spec.template.spec.containers[0].ports[2]: accepted without effect: ")
    assert "name 1883 in the annotation serving.dev/tcp" in reported


def test_fractional_memory_bytes_are_reported() -> None:
    limits = [{"memory": "128m", "cpu": "128m"}, {"memory": "128Mi"}, {"memory": 1024}]
    pod = {"containers": [{"resources": {"limits": limit}} for limit in limits]}
    (reported,) = effectless(SERVING_SERVICE, service(pod))
    path = "spec.template.spec.containers[0].resources.limits.memory"
    assert reported == f"{path}: 128m is 0.128 bytes; expected whole bytes, as 128Mi"


@pytest.mark.parametrize("field", ["runtimeClassName", "dnsPolicy"])
def test_warnings_with_container_runtime_do_not_mention_processes(field: str) -> None:
    (reported,) = effectless(SERVING_SERVICE, service({field: "x"}), runs_images=True)
    assert "pods are processes" not in reported
    assert "as on this machine" not in reported


def test_scheduler_fields_are_not_reported() -> None:
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
def test_pod_without_ineffective_fields_has_no_report(pod: dict[str, Any]) -> None:
    assert effectless(SERVING_SERVICE, service(pod)) == []


def test_other_platforms_annotations_are_reported() -> None:
    body = service({}, annotations={"run.googleapis.com/ingress": "all", "serving.dev/command": "x"})
    expected = "metadata.annotations[run.googleapis.com/ingress]: accepted without effect: it is for another platform"
    assert effectless(SERVING_SERVICE, body) == [expected]


def test_malformed_annotations_are_not_reported() -> None:
    assert effectless(SERVING_SERVICE, service({}, annotations=5)) == []


def test_revision_pod_fields_are_below_spec() -> None:
    assert len(effectless(REVISION, {"spec": {"schedulerName": "x"}})) == 1


def test_ineffective_fields_of_pods_are_not_reported() -> None:
    assert effectless(POD, {"spec": {"nodeSelector": {"a": "b"}}}) == []


@pytest.mark.parametrize(("kind", "root"), [(SERVING_SERVICE, "spec.template."), (DEPLOYMENT, "spec.template.")])
def test_image_only_container_is_reported_as_unrunnable(kind: Kind, root: str) -> None:
    (reported,) = unrunnable(kind, service({"containers": [{"image": "nginx"}, {"image": "x", "command": ["x"]}]}))
    assert reported.startswith(
        f"{root}spec.containers: no container runtime runs images here, so that no pod will start"
    )


def test_image_only_pod_is_reported_at_spec_containers() -> None:
    (reported,) = unrunnable(POD, {"spec": {"containers": [{"image": "nginx"}]}})
    assert reported.startswith("spec.containers: ")


@pytest.mark.parametrize("fields", [{"args": ["-listen=:8080"]}, {"command": ["sh", "-c", "exec true"]}])
def test_image_with_command_or_args_is_unrunnable(fields: Object) -> None:
    assert len(unrunnable(SERVING_SERVICE, service({"containers": [{"image": "x", **fields}]}))) == 1


def test_command_annotation_makes_service_runnable() -> None:
    body = service({"containers": [{"image": "nginx"}]})
    body["spec"]["template"]["metadata"] = {"annotations": {"serving.dev/command": "true"}}
    assert unrunnable(SERVING_SERVICE, body) == []
    assert unrunnable(CONFIG_MAP, {}) == []


def test_image_pull_secrets_are_reported_for_processes_only() -> None:
    body = service({"imagePullSecrets": [{"name": "s"}]})
    assert len(effectless(SERVING_SERVICE, body)) == 1
    assert effectless(SERVING_SERVICE, body, runs_images=True) == []


def test_located_wildcard_matches_every_list_item() -> None:
    assert located({"a": [{"b": 1}, {"c": 2}, {"b": 3}]}, "a[*].b") == [("a[0].b", 1), ("a[2].b", 3)]


def test_located_path_through_a_scalar_has_no_matches() -> None:
    assert located({"a": 1}, "a.b[*]") == []


def test_event_of_a_remark_names_its_object_within_api_limits() -> None:
    event = remark_event(SERVING_SERVICE, ABOUT, REMARK * 100, now="2026-11-21T08:00:00Z")
    assert (len(event["metadata"]["name"]), len(event["message"])) == (253, 1024)
    assert event["involvedObject"] == {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "name": "a" * 253,
        "namespace": "default",
        "uid": "u",
        "resourceVersion": "7",
    }


async def test_repeated_remark_increments_event_count() -> None:
    cluster = MemoryCluster()
    for texts in ((REMARK, "other"), (REMARK,)):
        await record_remarks(cluster, SERVING_SERVICE, ABOUT, texts=texts)
    items = (await cluster.list(EVENT, "default")).items
    assert {entry["message"]: entry["count"] for entry in items} == {REMARK: 2, "other": 1}


async def test_unrecordable_remark_raises_no_error() -> None:
    nowhere = {"metadata": {**ABOUT["metadata"], "namespace": "Not A Namespace"}}
    await record_remarks(MemoryCluster(), SERVING_SERVICE, nowhere, texts=[REMARK])


def config_map(name: str = "config-autoscaler", namespace: str = "knative-serving", **data: str) -> dict[str, Any]:
    texts = {key if key == "_example" else key.replace("_", "-"): text for key, text in data.items()}
    return {"metadata": {"name": name, "namespace": namespace}, "data": texts}


def test_unknown_and_invalid_settings_are_warned_about() -> None:
    unknown, invalid = sorted(settings_warnings(CONFIG_MAP, config_map(stabel_window="30s", max_scale="many")))
    assert "config-autoscaler has no key stabel-window" in unknown
    assert "did you mean stable-window?" in unknown
    assert "max-scale: 'many' is not right" in invalid


def test_invalid_node_group_options_are_warned_about() -> None:
    stored = config_map("config-nodegroup")
    stored["data"]["nodegroups_config.yaml"] = "node_groups: [{name: batch, scale_up_cool_down_timeout: 10m}]"
    texts = settings_warnings(CONFIG_MAP, stored)
    assert any("scale_up_cool_down_timeout: no such option, ignored" in text for text in texts), texts
    assert any("label_key: not given" in text for text in texts)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (CONFIG_MAP, config_map(stable_window="30s", _example="x: y")),
        (CONFIG_MAP, config_map(namespace="default", nonsense="1")),
        (CONFIG_MAP, config_map(name="of-an-app", nonsense="1")),
        (CONFIG_MAP, {"metadata": {"name": "config-autoscaler", "namespace": "knative-serving"}}),
        (SECRET, config_map(nonsense="1")),
    ],
)
def test_objects_without_settings_errors_get_no_warning(kind: Any, stored: dict[str, Any]) -> None:  # noqa: ANN401 - a kind
    assert settings_warnings(kind, stored) == []


@pytest.mark.parametrize(("metadata", "count"), [({"topic": "orders"}, 1), ({"httpScaledObject": "shop"}, 0)])
def test_scaled_object_without_http_route_is_reported(metadata: dict[str, str], count: int) -> None:
    spec = {"scaleTargetRef": {"name": "shop"}, "triggers": [{"type": "kafka", "metadata": metadata}]}
    assert len(effectless(KEDA_SCALED_OBJECT, {"spec": spec})) == count
