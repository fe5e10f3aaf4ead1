"""The Deployment and the private Service of a revision."""

from typing import Any

import msgspec
import pytest

from serving.controller.revisions.deployment import (
    desired_deployment,
    desired_private_service,
    template_patch,
)
from serving.controller.revisions.sidecar import Sidecar
from serving.core.model.objects import Object, is_controlled_by
from serving.core.settings.innertls import InnerTlsSettings
from tests.unit.controller.builders import a_revision
from tests.unit.controller.revisions.test_sidecar import SIDECAR


def new_deployment(**template: Any) -> Object:  # noqa: ANN401 - JSON
    return desired_deployment(a_revision(**template), replica_count=2, progress_deadline_s=600.0)


def container_of(deployment: Object, index: int = 0) -> Object:
    container: Object = deployment["spec"]["template"]["spec"]["containers"][index]
    return container


def test_deployment_is_owned_by_revision_with_scale_and_deadline() -> None:
    revision = a_revision()
    deployment = desired_deployment(revision, replica_count=2, progress_deadline_s=600.0)
    assert deployment["metadata"]["name"] == "hello-00001-deployment"
    assert is_controlled_by(deployment, revision)
    assert (deployment["spec"]["replicas"], deployment["spec"]["progressDeadlineSeconds"]) == (2, 600)


def test_deployment_selector_matches_pod_labels() -> None:
    deployment = new_deployment()
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert (
        labels
        == deployment["metadata"]["labels"]
        == {
            "app": "hello-00001",
            "serving.knative.dev/configuration": "hello",
            "serving.knative.dev/revision": "hello-00001",
            "serving.knative.dev/revisionUID": "uid-of-revision-hello-00001",
            "serving.knative.dev/service": "hello",
        }
    )


def test_template_labels_and_annotations_are_copied_to_the_pod() -> None:
    metadata = {"labels": {"app": "mine", "team": "a"}, "annotations": {"serving.dev/command": "python app.py"}}
    pod = new_deployment(metadata=metadata)["spec"]["template"]["metadata"]
    assert (pod["labels"]["app"], pod["labels"]["team"]) == ("mine", "a")
    assert pod["annotations"] == {"serving.dev/command": "python app.py"}


def test_container_gets_knative_environment_variables() -> None:
    template = {"containers": [{"image": "app", "env": [{"name": "A", "value": "1"}]}]}
    assert [
        (variable["name"], variable["value"]) for variable in container_of(new_deployment(spec=template))["env"]
    ] == [
        ("A", "1"),
        ("K_REVISION", "hello-00001"),
        ("K_CONFIGURATION", "hello"),
        ("K_SERVICE", "hello"),
    ]


def test_container_without_port_defaults_to_8080() -> None:
    container = container_of(new_deployment())
    assert container["ports"] == [{"name": "user-port", "containerPort": 8080, "protocol": "TCP"}]
    assert container["readinessProbe"]["tcpSocket"] == {"port": 8080}


def test_probe_without_port_uses_container_port() -> None:
    own = {
        "image": "app",
        "ports": [{"name": "h2c", "containerPort": 9000}],
        "readinessProbe": {"httpGet": {"path": "/x"}},
        "livenessProbe": {"tcpSocket": {"port": 0}},
    }
    container = container_of(new_deployment(spec={"containers": [own]}))
    assert container["ports"][0]["name"] == "h2c"
    assert container["readinessProbe"]["httpGet"] == {"path": "/x", "port": 9000}
    assert container["livenessProbe"]["tcpSocket"] == {"port": 9000}


def test_readiness_probe_scheme_is_uppercased() -> None:
    own = {"image": "app", "readinessProbe": {"httpGet": {"scheme": "http"}}}
    assert container_of(new_deployment(spec={"containers": [own]}))["readinessProbe"]["httpGet"]["scheme"] == "HTTP"


def test_probe_with_port_is_unchanged() -> None:
    own = {"image": "app", "readinessProbe": {"grpc": {"port": 7}}}
    assert container_of(new_deployment(spec={"containers": [own]}))["readinessProbe"]["grpc"] == {"port": 7}


def test_non_serving_container_gets_no_port() -> None:
    deployment = new_deployment(spec={"containers": [{"image": "a", "ports": [{}]}, {"image": "b"}]})
    assert ["ports" in container_of(deployment, index) for index in range(2)] == [True, False]


def test_serving_container_without_probe_gets_none() -> None:
    revision = a_revision()
    del revision["spec"]["containers"][0]["readinessProbe"]
    deployment = desired_deployment(revision, replica_count=1, progress_deadline_s=1)
    assert "readinessProbe" not in container_of(deployment)


def test_termination_message_falls_back_to_logs() -> None:
    assert container_of(new_deployment())["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_pod_termination_grace_period_is_request_timeout() -> None:
    pod = new_deployment(spec={"containers": [{"image": "app"}], "timeoutSeconds": 7})["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 7
    assert not {"servingState", "timeoutSeconds", "containerConcurrency"} & pod.keys()


def test_private_service_targets_queue_proxy_port() -> None:
    revision = a_revision()
    service = desired_private_service(revision)
    assert service["metadata"]["name"] == "hello-00001-private"
    assert service["metadata"]["labels"]["serving.knative.dev/revision"] == "hello-00001"
    assert is_controlled_by(service, revision)
    assert service["spec"] == {
        "clusterIP": "None",
        "selector": {"serving.knative.dev/revisionUID": "uid-of-revision-hello-00001"},
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8012}],
    }


def test_guarded_annotation_is_set_by_controller_only() -> None:
    revision = a_revision(metadata={"annotations": {"serving.dev/guarded": "true"}})
    template = desired_deployment(revision, replica_count=1, progress_deadline_s=1.0)["spec"]["template"]
    assert "serving.dev/guarded" not in template["metadata"]["annotations"]
    guarded = desired_deployment(revision, replica_count=1, progress_deadline_s=1.0, sidecar=SIDECAR, is_guarded=True)
    assert guarded["spec"]["template"]["metadata"]["annotations"]["serving.dev/guarded"] == "true"
    assert {"name": "SERVING_POD_GUARDED", "value": "true"} in container_of(guarded, 0)["env"]


def test_template_patch_changes_only_the_guard() -> None:
    revision = a_revision()
    plain, guarded = (
        desired_deployment(revision, replica_count=1, progress_deadline_s=1.0, is_guarded=is_guarded)
        for is_guarded in (False, True)
    )
    assert template_patch(plain, is_guarded=False, sidecar=None) == ()
    assert template_patch(guarded, is_guarded=True, sidecar=None) == ()
    (on,) = template_patch(plain, is_guarded=True, sidecar=None)
    assert on.patch == {"spec": {"template": {"metadata": {"annotations": {"serving.dev/guarded": "true"}}}}}
    (off,) = template_patch(guarded, is_guarded=False, sidecar=SIDECAR)
    assert off.patch["spec"]["template"] == {
        "metadata": {"annotations": {"serving.dev/guarded": None}},
        "spec": {"containers": [{"name": "queue-proxy", "env": [{"name": "SERVING_POD_GUARDED", "$patch": "delete"}]}]},
    }


def in_mode(mode: str) -> Sidecar:
    return msgspec.structs.replace(SIDECAR, inner_tls=InnerTlsSettings(mode=mode), authority="PEM")


@pytest.mark.parametrize(
    ("deployed_mode", "present", "is_changed"),
    [
        *(("Disabled", "Enabled", True), ("Permissive", "Enabled", True), ("Enabled", "Enabled", False)),
        *(("Enabled", "Permissive", True), ("Enabled", "Disabled", True)),
        # Activators can connect to these pods in both modes.
        *(("Disabled", "Permissive", False), ("Permissive", "Disabled", False)),
    ],
)
def test_template_patch_follows_inner_tls_mode(deployed_mode: str, present: str, *, is_changed: bool) -> None:
    deployment = desired_deployment(
        a_revision(), replica_count=1, progress_deadline_s=1.0, sidecar=in_mode(deployed_mode)
    )
    patches = template_patch(deployment, is_guarded=False, sidecar=in_mode(present))
    assert bool(patches) is is_changed
    for patch in patches:
        (proxy,) = patch.patch["spec"]["template"]["spec"]["containers"]
        assert proxy["name"] == container_of(deployment)["name"]
        set_values = {variable["name"]: variable.get("value", variable.get("$patch")) for variable in proxy["env"]}
        is_off = present == "Disabled"
        assert set_values == {
            "SERVING_QUEUEPROXY_INNER_TLS_MODE": "delete" if is_off else present,
            "SERVING_POD_AUTHORITY": "delete" if is_off else "PEM",
        }


def test_deployment_without_sidecar_is_not_patched() -> None:
    assert template_patch(new_deployment(), is_guarded=False, sidecar=None) == ()


def test_guard_and_inner_tls_change_in_one_patch() -> None:
    """Two patches would replace all pods twice."""
    deployment = desired_deployment(a_revision(), replica_count=1, progress_deadline_s=1.0, sidecar=in_mode("Disabled"))
    (patch,) = template_patch(deployment, is_guarded=True, sidecar=in_mode("Enabled"))
    template = patch.patch["spec"]["template"]
    assert template["metadata"]["annotations"] == {"serving.dev/guarded": "true"}
    (proxy,) = template["spec"]["containers"]
    assert {variable["name"]: variable["value"] for variable in proxy["env"]} == {
        "SERVING_POD_AUTHORITY": "PEM",
        "SERVING_QUEUEPROXY_INNER_TLS_MODE": "Enabled",
        "SERVING_POD_GUARDED": "true",
    }


def test_runtime_class_is_selected_by_labels_unless_specified() -> None:
    settings = msgspec.structs.replace(SIDECAR.settings, runtime_classes="kata: {selector: {use: kata}}")
    sidecar = msgspec.structs.replace(SIDECAR, settings=settings)

    def runtime_class(revision: Object) -> object:
        deployment = desired_deployment(revision, replica_count=1, progress_deadline_s=1.0, sidecar=sidecar)
        return deployment["spec"]["template"]["spec"].get("runtimeClassName")

    labelled = a_revision(metadata={"labels": {"use": "kata"}})
    assert runtime_class(labelled) == "kata"
    assert runtime_class(a_revision()) is None
    assert runtime_class({**labelled, "spec": {**labelled["spec"], "runtimeClassName": "own"}}) == "own"


def test_images_are_pinned_to_their_digests() -> None:
    deployment = desired_deployment(
        a_revision(), replica_count=1, progress_deadline_s=1.0, images={"app": "docker.io/app@d"}
    )
    assert container_of(deployment)["image"] == "docker.io/app@d"
