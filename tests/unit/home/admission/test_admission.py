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


def test_a_service_gets_the_defaults_of_knative() -> None:
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


def test_what_is_complete_stays_unchanged() -> None:
    once = admit(SERVING_SERVICE, service())
    assert admit(SERVING_SERVICE, once) == once


def test_what_was_written_is_not_changed() -> None:
    body = service()
    admit(SERVING_SERVICE, body)
    assert body == service()


def test_empty_traffic_is_all_to_the_latest() -> None:
    body = service()
    body["spec"]["traffic"] = []
    assert admit(SERVING_SERVICE, body)["spec"]["traffic"] == [{"latestRevision": True, "percent": 100}]


def test_a_target_with_a_name_is_not_the_latest() -> None:
    body = service()
    body["spec"]["traffic"] = [{"revisionName": "hello-00001", "percent": 100}]
    target = {"revisionName": "hello-00001", "percent": 100, "latestRevision": False}
    assert admit(SERVING_SERVICE, body)["spec"]["traffic"] == [target]


def test_several_containers_get_numbered_names_that_are_free() -> None:
    containers = [{"image": "x", "ports": [{}]}, {"image": "y", "name": "user-container-0"}, {"image": "z"}]
    result = admit(SERVING_SERVICE, service(containers=containers))["spec"]["template"]["spec"]["containers"]
    assert [entry["name"] for entry in result] == ["user-container-1", "user-container-0", "user-container-2"]


def test_only_a_single_container_gets_a_port() -> None:
    containers = [{"image": "x", "ports": [{"containerPort": 80}]}, {"image": "y"}]
    result = admit(SERVING_SERVICE, service(containers=containers))["spec"]["template"]["spec"]["containers"]
    assert "ports" not in result[1]


def test_a_revision_begins_active() -> None:
    body = {"metadata": {"name": "hello-00001"}, "spec": {"containers": [{"image": "x"}]}}
    assert admit(REVISION, body)["spec"]["servingState"] == "Active"


def test_a_configuration_has_no_traffic() -> None:
    body = service() | {"kind": "Configuration"}
    body["spec"]["traffic"] = []
    assert "traffic" not in admit(CONFIGURATION, body)["spec"]


def test_unknown_fields_and_nulls_go() -> None:
    body = service(nonsense=1, timeoutSeconds=None)
    assert admit(SERVING_SERVICE, body) == admit(SERVING_SERVICE, service())


def test_fields_of_a_pod_that_we_do_not_read_are_kept() -> None:
    affinity = {"nodeAffinity": {"preferred": [{"weight": 1}]}}
    admitted = admit(SERVING_SERVICE, service(affinity=affinity))
    assert admitted["spec"]["template"]["spec"]["affinity"] == affinity


@pytest.mark.parametrize("spec", [None, [], "x", {"template": 1}, {"template": {"spec": {"containers": {}}}}])
def test_a_spec_of_the_wrong_shape_is_said_and_not_stumbled_over(spec: object) -> None:
    with pytest.raises(Invalid):
        admit(SERVING_SERVICE, {"metadata": {"name": "hello"}, "spec": spec})


@pytest.mark.parametrize("target", [1, None, "x"])
def test_a_target_of_the_wrong_shape_is_said(target: object) -> None:
    body = service()
    body["spec"]["traffic"] = [target]
    with pytest.raises(Invalid, match=r"spec.traffic\[0\]"):
        admit(SERVING_SERVICE, body)


def test_a_wrong_type_is_said_with_the_kind_and_name() -> None:
    expected = (
        r'Service.serving.knative.dev "hello" is invalid: spec.template.spec.timeoutSeconds: Invalid value: "string"'
    )
    with pytest.raises(Invalid, match=expected):
        admit(SERVING_SERVICE, service(timeoutSeconds="5"))


def test_the_name_of_an_account_is_refused_in_the_words_of_knative() -> None:
    message = "foo@bar.baz: spec.template.spec.serviceAccountName\na lowercase RFC 1123 subdomain must consist of"
    with pytest.raises(Invalid, match=re.escape(f'"hello" is invalid: invalid value: {message} ')):
        admit(SERVING_SERVICE, service(serviceAccountName="foo@bar.baz"))
    with pytest.raises(Invalid, match=r"spec.template.spec.serviceAccountName: Too long: "):
        admit(SERVING_SERVICE, service(serviceAccountName="a" * 254))
    with pytest.raises(Invalid, match=r'spec.template.spec.serviceAccountName: Invalid value: "integer"'):
        admit(SERVING_SERVICE, service(serviceAccountName=5))


@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_a_wrong_amount_of_memory_says_what_would_be_right(kind: str) -> None:
    body = service()
    body["spec"]["template"]["spec"]["containers"][0]["resources"] = {kind: {"memory": "lots"}}
    place = rf"spec\.template\.spec\.containers\[0\]\.resources\.{kind}\.memory"
    with pytest.raises(
        Invalid, match=rf'"lots": {place} in body should be a quantity, as 128Mi, 1Gi, 500m or 2'
    ) as caught:
        admit(SERVING_SERVICE, body)
    assert [problem.expected for problem in caught.value.problems] == ["a quantity, as 128Mi, 1Gi, 500m or 2"]


def test_a_wrong_annotation_is_refused() -> None:
    with pytest.raises(Invalid, match=r"annotation autoscaling.knative.dev/min-scale: '-1' is not right"):
        admit(SERVING_SERVICE, annotated(min_scale="-1"))


def test_a_place_of_the_queue_proxy_that_does_not_exist_is_refused() -> None:
    body = service()
    for text in ("in-process", "beside"):
        body["spec"]["template"]["metadata"] = {"annotations": {"serving.dev/queue-proxy": text}}
        assert admit(SERVING_SERVICE, body)
    body["spec"]["template"]["metadata"] = {"annotations": {"serving.dev/queue-proxy": "inside"}}
    with pytest.raises(Invalid, match=r"serving.dev/queue-proxy: 'inside' is not valid; expected beside or in-process"):
        admit(SERVING_SERVICE, body)


def test_tcp_ports_need_a_queue_proxy_beside_the_app() -> None:
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
def test_a_wrong_rollout_duration_is_refused(name: str, text: str) -> None:
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
def test_a_check_that_is_wrong_or_without_a_rollout_is_refused(text: str, what: str) -> None:
    body = service()
    body["metadata"]["annotations"] = {"serving.dev/rollout-check": text}
    with pytest.raises(Invalid, match=f"annotation serving.dev/rollout-check: {what}; expected "):
        admit(SERVING_SERVICE, body)
    body["metadata"]["annotations"] = {
        "serving.dev/rollout-check": "errors<1%,p99<500ms",
        "serving.knative.dev/rollout-duration": "380s",
    }
    assert admit(SERVING_SERVICE, body)


def test_wrong_ports_for_tcp_are_refused() -> None:
    body = service()
    body["metadata"]["annotations"] = {"serving.dev/tcp": "5432,mqtt"}
    with pytest.raises(
        Invalid, match=r'annotation serving.dev/tcp: "mqtt" in "5432,mqtt" is not right; expected a port from 1'
    ):
        admit(SERVING_SERVICE, body)
    body["metadata"]["annotations"] = {"serving.dev/tcp": "5432,1883"}
    assert admit(SERVING_SERVICE, body)


def test_an_annotation_that_does_not_exist_is_reported() -> None:
    assert "no such annotation" in annotation_warnings(SERVING_SERVICE, annotated(min_scales="1"))[0]


def test_objects_without_annotations_report_nothing() -> None:
    assert annotation_warnings(SERVING_SERVICE, service()) == []


def test_a_status_is_not_asked_for_rules() -> None:
    body = service(containers=[]) | {"status": {"url": "http://x"}}
    assert admit(SERVING_SERVICE, body, subresource="status")["status"] == {"url": "http://x"}


def test_a_status_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(Invalid, match=r"status\.url"):
        admit(SERVING_SERVICE, service() | {"status": {"url": 5}}, subresource="status")


def test_a_status_keeps_what_the_schema_does_not_know() -> None:
    body = service() | {"status": {"extra": 1}}
    assert admit(SERVING_SERVICE, body, subresource="status")["status"] == {"extra": 1}


def test_a_policy_gets_its_defaults() -> None:
    target = {"kind": "Service", "name": "hello"}
    spec = {"targetRef": target, "up": {"triggers": [{"usagePercent": 70}]}}
    admitted = admit(SCALING_POLICY, {"metadata": {"name": "p"}, "spec": spec})
    assert admitted["spec"]["targetRef"] == {"apiVersion": "serving.knative.dev/v1", **target}
    trigger = {"type": "occupancy", "usagePercent": 70, "thresholdPercent": 80, "timeSeconds": 600}
    up = {"triggers": [trigger], "cooldownSeconds": 600, "delta": 1}
    assert admitted["spec"] | {"targetRef": {}} == {"targetRef": {}, "up": up, "min": 0, "max": 0}


def test_a_workload_says_what_would_be_right() -> None:
    spec = {"target": {"name": "a"}, "service": {"name": "a"}}
    admitted = admit(SCALED_WORKLOAD, {"metadata": {"name": "w"}, "spec": spec})
    assert admitted["spec"]["target"] == {"name": "a", "kind": "Deployment", "apiVersion": "apps/v1"}
    with pytest.raises(Invalid, match=r"spec\.hosts\[0\]: Invalid value: 'A'; expected a host in lower case"):
        admit(SCALED_WORKLOAD, {"metadata": {"name": "w"}, "spec": {**spec, "hosts": ["A"]}})


def test_every_type_that_is_registered_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_secrets_texts_become_data() -> None:
    admitted = admit(SECRET, {"metadata": {"name": "s"}, "data": {"a": "eA=="}, "stringData": {"a": "y", "b": "z"}})
    assert admitted == {"metadata": {"name": "s"}, "data": {"a": "eQ==", "b": "eg=="}}


def test_a_secrets_texts_must_be_texts() -> None:
    with pytest.raises(Invalid, match='Secret "s" is invalid: stringData'):
        admit(SECRET, {"metadata": {"name": "s"}, "stringData": {"a": 1}})


def test_kinds_of_kubernetes_pass_unchanged() -> None:
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
def test_unknown_fields_are_named(body: dict[str, Any], expected: list[str]) -> None:
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
def test_unknown_fields_of_kinds_of_kubernetes_are_named(kind: Kind, body: dict[str, Any], expected: list[str]) -> None:
    assert unknown(kind, body) == expected


@pytest.mark.parametrize("path", sorted(MANIFESTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_manifests_that_people_have_are_taken_without_an_unknown_field(path: Path) -> None:
    body = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert unknown(SERVING_SERVICE, body) == []
    admit(SERVING_SERVICE, body)


def test_a_policy_without_a_target_says_so() -> None:
    with pytest.raises(Invalid, match=r"spec\.targetRef: Required value"):
        admit(SCALING_POLICY, {"metadata": {"name": "p"}, "spec": {"min": 1}})


def test_containers_that_run_before_stay_as_they_were_written() -> None:
    written = service(initContainers=INIT, volumes=[{"name": "v", "emptyDir": {}}])
    stored = admit(SERVING_SERVICE, written)
    assert stored["spec"]["template"]["spec"]["initContainers"] == INIT
    assert admit(REVISION, {"metadata": {"name": "a"}, "spec": stored["spec"]["template"]["spec"]})["spec"][
        "initContainers"
    ]


@pytest.mark.parametrize("kind", [SERVING_SERVICE, CONFIGURATION])
def test_one_machine_takes_containers_that_run_before(kind: Kind) -> None:
    written = service(initContainers=INIT, volumes=[{"name": "v", "emptyDir": {}}])
    assert admit(kind, written, is_one_machine=True)["spec"]["template"]["spec"]["initContainers"] == INIT


def test_one_machine_refuses_nothing_else() -> None:
    assert admit(CONFIG_MAP, {"metadata": {"name": "a"}}, is_one_machine=True)
    revision = {"metadata": {"name": "a"}, "spec": {"containers": [{"image": "x"}]}}
    assert admit(REVISION, revision, is_one_machine=True)


def test_unknown_fields_of_containers_that_run_before_are_reported() -> None:
    known = {"image": "x", "env": [{"name": "A", "value": "b"}], "resources": {"limits": {"cpu": 1}}}
    written = service(initContainers=[known, {"image": "x", "bogus": 1}])
    assert unknown(SERVING_SERVICE, written) == ["spec.template.spec.initContainers[1].bogus"]
    assert unknown(SERVING_SERVICE, service(initContainers="x")) == []


@pytest.mark.parametrize(
    ("kind", "field", "stored"),
    [(CONFIG_MAP, "data", "data"), (CONFIG_MAP, "binaryData", "binaryData"), (SECRET, "stringData", "data")],
)
def test_a_null_of_a_config_map_or_secret_is_an_empty_text(kind: Kind, field: str, stored: str) -> None:
    body = {"apiVersion": "v1", "kind": kind.name, "metadata": {"name": "x"}, field: {"a": None}}
    assert admit(kind, body, is_one_machine=True)[stored] == {"a": ""}


@pytest.mark.parametrize("kind", [SERVING_SERVICE, CONFIGURATION])
@pytest.mark.parametrize("field", ["annotations", "labels"])
def test_a_name_in_a_template_with_which_no_revision_can_be_created_is_refused(kind: Kind, field: str) -> None:
    body = service()
    body["spec"]["template"]["metadata"] = {field: {"bad key": "x"}}
    with pytest.raises(
        Invalid, match=rf"spec\.template\.metadata\.{field}: Invalid value: 'bad key': not an? .*'s name"
    ):
        admit(kind, body)
    body["spec"]["template"]["metadata"] = {field: {"Example.com/Good_key": "x"}}
    admit(kind, body)
