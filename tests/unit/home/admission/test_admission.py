import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from serving.core.model.errors import Invalid
from serving.core.scaling.policies.triggertypes import REGISTRY, TriggerPolicy
from serving.home.admission.admission import admit, annotation_warnings, unknown
from serving.net.cluster.kinds import (
    CERTIFICATE,
    CONFIG_MAP,
    CONFIGURATION,
    DEPLOYMENT,
    HTTP_ROUTE,
    REVISION,
    SCALED_WORKLOAD,
    SCALING_POLICY,
    SECRET,
    SERVING_SERVICE,
    Kind,
)

MANIFESTS = Path(__file__).parent / "manifests"

INIT = [{"name": "first", "image": "y", "command": ["migrate"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]


def service(**pod: object) -> dict[str, Any]:
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "hello"},
        "spec": {"template": {"spec": {"containers": [{"image": "x"}]} | pod}},
    }


def annotated(**annotations: str) -> dict[str, Any]:
    body = service()
    names = {f"autoscaling.knative.dev/{name.replace('_', '-')}": text for name, text in annotations.items()}
    body["spec"]["template"]["metadata"] = {"annotations": names}
    return body


def test_service_gets_knative_defaults() -> None:
    spec = admit(SERVING_SERVICE, service())["spec"]
    container = {
        "image": "x",
        "name": "user-container",
        "readinessProbe": {"tcpSocket": {"port": 0}, "successThreshold": 1},
    }
    pod = {
        "containers": [container],
        "containerConcurrency": 0,
        "enableServiceLinks": False,
        "timeoutSeconds": 300,
    }
    assert spec == {
        "template": {"spec": pod},
        "traffic": [{"latestRevision": True, "percent": 100}],
    }


def test_admission_of_an_admitted_service_is_idempotent() -> None:
    once = admit(SERVING_SERVICE, service())
    assert admit(SERVING_SERVICE, once) == once


def test_admission_does_not_mutate_its_input() -> None:
    body = service()
    admit(SERVING_SERVICE, body)
    assert body == service()


def test_empty_traffic_defaults_to_latest_revision() -> None:
    body = service()
    body["spec"]["traffic"] = []
    assert admit(SERVING_SERVICE, body)["spec"]["traffic"] == [{"latestRevision": True, "percent": 100}]


def test_named_revision_target_is_not_latest_revision() -> None:
    body = service()
    body["spec"]["traffic"] = [{"revisionName": "hello-00001", "percent": 100}]
    target = {"revisionName": "hello-00001", "percent": 100, "latestRevision": False}
    assert admit(SERVING_SERVICE, body)["spec"]["traffic"] == [target]


def test_unnamed_containers_get_free_numbered_names() -> None:
    containers = [{"image": "x", "ports": [{}]}, {"image": "y", "name": "user-container-0"}, {"image": "z"}]
    result = admit(SERVING_SERVICE, service(containers=containers))["spec"]["template"]["spec"]["containers"]
    assert [entry["name"] for entry in result] == ["user-container-1", "user-container-0", "user-container-2"]


def test_sidecar_container_gets_no_port() -> None:
    containers = [{"image": "x", "ports": [{"containerPort": 80}]}, {"image": "y"}]
    result = admit(SERVING_SERVICE, service(containers=containers))["spec"]["template"]["spec"]["containers"]
    assert "ports" not in result[1]


def test_revision_serving_state_defaults_to_active() -> None:
    body = {"metadata": {"name": "hello-00001"}, "spec": {"containers": [{"image": "x"}]}}
    assert admit(REVISION, body)["spec"]["servingState"] == "Active"


def test_traffic_of_a_configuration_is_pruned() -> None:
    body = service() | {"kind": "Configuration"}
    body["spec"]["traffic"] = []
    assert "traffic" not in admit(CONFIGURATION, body)["spec"]


def test_unknown_fields_and_nulls_are_pruned() -> None:
    body = service(nonsense=1, timeoutSeconds=None)
    assert admit(SERVING_SERVICE, body) == admit(SERVING_SERVICE, service())


def test_unread_pod_fields_are_preserved() -> None:
    affinity = {"nodeAffinity": {"preferred": [{"weight": 1}]}}
    admitted = admit(SERVING_SERVICE, service(affinity=affinity))
    assert admitted["spec"]["template"]["spec"]["affinity"] == affinity


@pytest.mark.parametrize("spec", [None, [], "x", {"template": 1}, {"template": {"spec": {"containers": {}}}}])
def test_malformed_service_spec_is_rejected(spec: object) -> None:
    with pytest.raises(Invalid):
        admit(SERVING_SERVICE, {"metadata": {"name": "hello"}, "spec": spec})


@pytest.mark.parametrize("target", [1, None, "x"])
def test_malformed_traffic_target_is_rejected(target: object) -> None:
    body = service()
    body["spec"]["traffic"] = [target]
    with pytest.raises(Invalid, match=r"spec.traffic\[0\]"):
        admit(SERVING_SERVICE, body)


def test_field_of_wrong_type_is_rejected_with_kind_and_name() -> None:
    expected = (
        r'Service.serving.knative.dev "hello" is invalid: spec.template.spec.timeoutSeconds: Invalid value: "string"'
    )
    with pytest.raises(Invalid, match=expected):
        admit(SERVING_SERVICE, service(timeoutSeconds="5"))


def test_invalid_service_account_name_is_rejected_as_by_knative() -> None:
    message = "foo@bar.baz: spec.template.spec.serviceAccountName\na lowercase RFC 1123 subdomain must consist of"
    with pytest.raises(Invalid, match=re.escape(f'"hello" is invalid: invalid value: {message} ')):
        admit(SERVING_SERVICE, service(serviceAccountName="foo@bar.baz"))
    with pytest.raises(Invalid, match=r"spec.template.spec.serviceAccountName: Too long: "):
        admit(SERVING_SERVICE, service(serviceAccountName="a" * 254))
    with pytest.raises(Invalid, match=r'spec.template.spec.serviceAccountName: Invalid value: "integer"'):
        admit(SERVING_SERVICE, service(serviceAccountName=5))


@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_invalid_memory_quantity_error_has_examples(kind: str) -> None:
    body = service()
    body["spec"]["template"]["spec"]["containers"][0]["resources"] = {kind: {"memory": "lots"}}
    place = rf"spec\.template\.spec\.containers\[0\]\.resources\.{kind}\.memory"
    with pytest.raises(
        Invalid, match=rf'"lots": {place} in body should be a quantity, as 128Mi, 1Gi, 500m or 2'
    ) as caught:
        admit(SERVING_SERVICE, body)
    assert [problem.expected for problem in caught.value.problems] == ["a quantity, as 128Mi, 1Gi, 500m or 2"]


def test_invalid_min_scale_annotation_is_rejected() -> None:
    with pytest.raises(Invalid, match=r"annotation autoscaling.knative.dev/min-scale: '-1' is not right"):
        admit(SERVING_SERVICE, annotated(min_scale="-1"))


def test_unknown_queue_proxy_mode_is_rejected() -> None:
    body = service()
    for text in ("in-process", "beside"):
        body["spec"]["template"]["metadata"] = {"annotations": {"serving.dev/queue-proxy": text}}
        assert admit(SERVING_SERVICE, body)
    body["spec"]["template"]["metadata"] = {"annotations": {"serving.dev/queue-proxy": "inside"}}
    with pytest.raises(Invalid, match=r"serving.dev/queue-proxy: 'inside' is not valid; expected beside or in-process"):
        admit(SERVING_SERVICE, body)


def test_tcp_ports_with_in_process_queue_proxy_are_rejected() -> None:
    body = service()
    body["metadata"]["annotations"] = {"serving.dev/tcp": "5432"}
    assert admit(SERVING_SERVICE, body)
    body["spec"]["template"]["metadata"] = {"annotations": {"serving.dev/queue-proxy": "in-process"}}
    with pytest.raises(
        Invalid, match=r"serving.dev/tcp: needs a queue-proxy beside the app.*one of the two annotations"
    ):
        admit(SERVING_SERVICE, body)


@pytest.mark.parametrize("name", ["rollout-duration", "rolloutDuration"])
@pytest.mark.parametrize("text", ["soon", "-1s", "1.5s", "10"])
def test_invalid_rollout_duration_is_rejected(name: str, text: str) -> None:
    body = service()
    body["metadata"]["annotations"] = {f"serving.knative.dev/{name}": text}
    with pytest.raises(Invalid, match=f"annotation serving.knative.dev/{name}: '{text}' is not right"):
        admit(SERVING_SERVICE, body)
    body["metadata"]["annotations"] = {f"serving.knative.dev/{name}": "380s"}
    assert admit(SERVING_SERVICE, body)


@pytest.mark.parametrize(
    ("text", "what"),
    [("errors<1", "'errors<1' is not right"), ("errors<1%", "only a rollout in steps is checked")],
)
def test_invalid_rollout_check_or_missing_rollout_is_rejected(text: str, what: str) -> None:
    body = service()
    body["metadata"]["annotations"] = {"serving.dev/rollout-check": text}
    with pytest.raises(Invalid, match=f"annotation serving.dev/rollout-check: {what}; expected "):
        admit(SERVING_SERVICE, body)
    body["metadata"]["annotations"] = {
        "serving.dev/rollout-check": "errors<1%,p99<500ms",
        "serving.knative.dev/rollout-duration": "380s",
    }
    assert admit(SERVING_SERVICE, body)


def test_invalid_tcp_ports_are_rejected() -> None:
    body = service()
    body["metadata"]["annotations"] = {"serving.dev/tcp": "5432,mqtt"}
    with pytest.raises(
        Invalid, match=r'annotation serving.dev/tcp: "mqtt" in "5432,mqtt" is not right; expected a port from 1'
    ):
        admit(SERVING_SERVICE, body)
    body["metadata"]["annotations"] = {"serving.dev/tcp": "5432,1883"}
    assert admit(SERVING_SERVICE, body)


def test_unknown_annotation_is_warned_about() -> None:
    assert "no such annotation" in annotation_warnings(SERVING_SERVICE, annotated(min_scales="1"))[0]


def test_object_without_annotations_has_no_warnings() -> None:
    assert annotation_warnings(SERVING_SERVICE, service()) == []


def test_status_write_is_not_validated_against_spec_rules() -> None:
    body = service(containers=[]) | {"status": {"url": "http://x"}}
    assert admit(SERVING_SERVICE, body, subresource="status")["status"] == {"url": "http://x"}


def test_status_field_of_wrong_type_is_rejected() -> None:
    with pytest.raises(Invalid, match=r"status\.url"):
        admit(SERVING_SERVICE, service() | {"status": {"url": 5}}, subresource="status")


def test_unknown_status_fields_are_preserved() -> None:
    body = service() | {"status": {"extra": 1}}
    assert admit(SERVING_SERVICE, body, subresource="status")["status"] == {"extra": 1}


def test_scaling_policy_gets_defaults() -> None:
    target = {"kind": "Service", "name": "hello"}
    spec = {"targetRef": target, "up": {"triggers": [{"usagePercent": 70}]}}
    admitted = admit(SCALING_POLICY, {"metadata": {"name": "p"}, "spec": spec})
    assert admitted["spec"]["targetRef"] == {"apiVersion": "serving.knative.dev/v1", **target}
    trigger = {"type": "occupancy", "usagePercent": 70, "thresholdPercent": 80, "timeSeconds": 600}
    up = {"triggers": [trigger], "cooldownSeconds": 600, "delta": 1}
    assert admitted["spec"] | {"targetRef": {}} == {"targetRef": {}, "up": up, "min": 0, "max": 0}


def test_scaled_workload_gets_defaults_and_invalid_host_is_rejected() -> None:
    spec = {"target": {"name": "a"}, "service": {"name": "a"}}
    admitted = admit(SCALED_WORKLOAD, {"metadata": {"name": "w"}, "spec": spec})
    assert admitted["spec"]["target"] == {"name": "a", "kind": "Deployment", "apiVersion": "apps/v1"}
    with pytest.raises(Invalid, match=r"spec\.hosts\[0\]: Invalid value: 'A'; expected a host in lower case"):
        admit(SCALED_WORKLOAD, {"metadata": {"name": "w"}, "spec": {**spec, "hosts": ["A"]}})


def test_every_registered_trigger_type_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, TriggerPolicy]", REGISTRY), "gpu", REGISTRY["occupancy"])
    for kind in REGISTRY:
        delta = {"delta": 1} if kind == "fixed-step" else {}
        spec = {
            "targetRef": {"kind": "Service", "name": "hello"},
            "up": {"triggers": [{"type": kind, "usagePercent": 70, **delta}]},
        }
        assert (
            admit(SCALING_POLICY, {"metadata": {"name": "p"}, "spec": spec})["spec"]["up"]["triggers"][0]["type"]
            == kind
        )


def test_secret_string_data_is_converted_to_data() -> None:
    admitted = admit(SECRET, {"metadata": {"name": "s"}, "data": {"a": "eA=="}, "stringData": {"a": "y", "b": "z"}})
    assert admitted == {"metadata": {"name": "s"}, "data": {"a": "eQ==", "b": "eg=="}}


def test_non_string_secret_string_data_is_rejected() -> None:
    with pytest.raises(Invalid, match='Secret "s" is invalid: stringData'):
        admit(SECRET, {"metadata": {"name": "s"}, "stringData": {"a": 1}})


def test_config_map_is_admitted_unchanged() -> None:
    body = {"metadata": {"name": "c"}, "data": {"a": "b"}, "whatever": 1}
    assert admit(CONFIG_MAP, body) is body


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"metadata": {"name": "x", "labels": {}, "colour": 1}}, ["metadata.colour"]),
        ({"spec": {"tempalte": {}}}, ["spec.tempalte"]),
        ({"specs": {}}, ["specs"]),
        ({"metadata": None}, []),
    ],
)
def test_unknown_service_fields_are_listed(body: dict[str, Any], expected: list[str]) -> None:
    assert unknown(SERVING_SERVICE, body) == expected


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (CONFIG_MAP, {"metadata": {"x": 1}, "data": {"x": "y"}, "y": 2}, ["metadata.x", "y"]),
        (
            DEPLOYMENT,
            {"spec": {"replica": 1, "template": {"spec": {"containers": [{"name": "a", "imag": "x"}]}}}},
            ["spec.replica", "spec.template.spec.containers[0].imag"],
        ),
        (HTTP_ROUTE, {"spec": {"rules": [{"match": []}]}}, ["spec.rules[0].match"]),
        (CERTIFICATE, {"spec": {"any": 1}}, []),
    ],
)
def test_unknown_fields_of_kubernetes_kinds_are_listed(kind: Kind, body: dict[str, Any], expected: list[str]) -> None:
    assert unknown(kind, body) == expected


@pytest.mark.parametrize("path", sorted(MANIFESTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_sample_manifests_are_admitted_without_unknown_fields(path: Path) -> None:
    body = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert unknown(SERVING_SERVICE, body) == []
    admit(SERVING_SERVICE, body)


def test_scaling_policy_without_target_is_rejected() -> None:
    with pytest.raises(Invalid, match=r"spec\.targetRef: Required value"):
        admit(SCALING_POLICY, {"metadata": {"name": "p"}, "spec": {"min": 1}})


def test_init_containers_are_stored_unchanged() -> None:
    written = service(initContainers=INIT, volumes=[{"name": "v", "emptyDir": {}}])
    stored = admit(SERVING_SERVICE, written)
    assert stored["spec"]["template"]["spec"]["initContainers"] == INIT
    assert admit(REVISION, {"metadata": {"name": "a"}, "spec": stored["spec"]["template"]["spec"]})["spec"][
        "initContainers"
    ]


@pytest.mark.parametrize("kind", [SERVING_SERVICE, CONFIGURATION])
def test_single_machine_accepts_init_containers(kind: Kind) -> None:
    written = service(initContainers=INIT, volumes=[{"name": "v", "emptyDir": {}}])
    assert admit(kind, written, is_one_machine=True)["spec"]["template"]["spec"]["initContainers"] == INIT


def test_single_machine_accepts_config_maps_and_revisions() -> None:
    assert admit(CONFIG_MAP, {"metadata": {"name": "a"}}, is_one_machine=True)
    revision = {"metadata": {"name": "a"}, "spec": {"containers": [{"image": "x"}]}}
    assert admit(REVISION, revision, is_one_machine=True)


def test_unknown_fields_of_init_containers_are_listed() -> None:
    known = {"image": "x", "env": [{"name": "A", "value": "b"}], "resources": {"limits": {"cpu": 1}}}
    written = service(initContainers=[known, {"image": "x", "bogus": 1}])
    assert unknown(SERVING_SERVICE, written) == ["spec.template.spec.initContainers[1].bogus"]
    assert unknown(SERVING_SERVICE, service(initContainers="x")) == []


@pytest.mark.parametrize(
    ("kind", "field", "stored"),
    [(CONFIG_MAP, "data", "data"), (CONFIG_MAP, "binaryData", "binaryData"), (SECRET, "stringData", "data")],
)
def test_null_in_config_map_or_secret_is_stored_as_empty_string(kind: Kind, field: str, stored: str) -> None:
    body = {"apiVersion": "v1", "kind": kind.name, "metadata": {"name": "x"}, field: {"a": None}}
    assert admit(kind, body, is_one_machine=True)[stored] == {"a": ""}


@pytest.mark.parametrize("kind", [SERVING_SERVICE, CONFIGURATION])
@pytest.mark.parametrize("field", ["annotations", "labels"])
def test_invalid_template_metadata_key_is_rejected(kind: Kind, field: str) -> None:
    body = service()
    body["spec"]["template"]["metadata"] = {field: {"bad key": "x"}}
    with pytest.raises(
        Invalid, match=rf"spec\.template\.metadata\.{field}: Invalid value: 'bad key': not an? .*'s name"
    ):
        admit(kind, body)
    body["spec"]["template"]["metadata"] = {field: {"Example.com/Good_key": "x"}}
    admit(kind, body)
