"""The objects below a revision."""

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


def made(**template: Any) -> Object:  # noqa: ANN401 - JSON
    return desired_deployment(a_revision(**template), replica_count=2, progress_deadline_s=600.0)


def container_of(deployment: Object, index: int = 0) -> Object:
    container: Object = deployment["spec"]["template"]["spec"]["containers"][index]
    return container


def test_a_deployment_is_its_revisions() -> None:
    revision = a_revision()
    deployment = desired_deployment(revision, replica_count=2, progress_deadline_s=600.0)
    assert deployment["metadata"]["name"] == "hello-00001-deployment"
    assert is_controlled_by(deployment, revision)
    assert (deployment["spec"]["replicas"], deployment["spec"]["progressDeadlineSeconds"]) == (2, 600)


def test_pods_are_found_by_label() -> None:
    deployment = made()
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


def test_the_templates_own_labels_and_annotations_reach_the_pod() -> None:
    metadata = {"labels": {"app": "mine", "team": "a"}, "annotations": {"serving.dev/command": "python app.py"}}
    pod = made(metadata=metadata)["spec"]["template"]["metadata"]
    assert (pod["labels"]["app"], pod["labels"]["team"]) == ("mine", "a")
    assert pod["annotations"] == {"serving.dev/command": "python app.py"}


def test_a_container_learns_whose_it_is() -> None:
    template = {"containers": [{"image": "app", "env": [{"name": "A", "value": "1"}]}]}
    assert [(variable["name"], variable["value"]) for variable in container_of(made(spec=template))["env"]] == [
        ("A", "1"),
        ("K_REVISION", "hello-00001"),
        ("K_CONFIGURATION", "hello"),
        ("K_SERVICE", "hello"),
    ]


def test_a_container_without_a_port_is_expected_at_8080() -> None:
    container = container_of(made())
    assert container["ports"] == [{"name": "user-port", "containerPort": 8080, "protocol": "TCP"}]
    assert container["readinessProbe"]["tcpSocket"] == {"port": 8080}


def test_a_probe_without_a_port_is_for_the_containers_own() -> None:
    own = {
        "image": "app",
        "ports": [{"name": "h2c", "containerPort": 9000}],
        "readinessProbe": {"httpGet": {"path": "/x"}},
        "livenessProbe": {"tcpSocket": {"port": 0}},
    }
    container = container_of(made(spec={"containers": [own]}))
    assert container["ports"][0]["name"] == "h2c"
    assert container["readinessProbe"]["httpGet"] == {"path": "/x", "port": 9000}
    assert container["livenessProbe"]["tcpSocket"] == {"port": 9000}


def test_the_scheme_of_a_readiness_probe_is_spelt_as_kubernetes_takes_it() -> None:
    own = {"image": "app", "readinessProbe": {"httpGet": {"scheme": "http"}}}
    assert container_of(made(spec={"containers": [own]}))["readinessProbe"]["httpGet"]["scheme"] == "HTTP"


def test_a_probe_with_a_port_keeps_it() -> None:
    own = {"image": "app", "readinessProbe": {"grpc": {"port": 7}}}
    assert container_of(made(spec={"containers": [own]}))["readinessProbe"]["grpc"] == {"port": 7}


def test_a_container_beside_the_serving_one_gets_no_port() -> None:
    deployment = made(spec={"containers": [{"image": "a", "ports": [{}]}, {"image": "b"}]})
    assert ["ports" in container_of(deployment, index) for index in range(2)] == [True, False]


def test_a_serving_container_that_is_not_probed_stays_so() -> None:
    revision = a_revision()
    del revision["spec"]["containers"][0]["readinessProbe"]
    deployment = desired_deployment(revision, replica_count=1, progress_deadline_s=1)
    assert "readinessProbe" not in container_of(deployment)


def test_last_log_lines_come_with_the_status_of_a_container_that_failed() -> None:
    assert container_of(made())["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_a_pod_may_finish_what_it_took() -> None:
    pod = made(spec={"containers": [{"image": "app"}], "timeoutSeconds": 7})["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 7
    assert not {"servingState", "timeoutSeconds", "containerConcurrency"} & pod.keys()


def test_the_private_service_sends_to_queue_proxies() -> None:
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


def test_pods_of_a_guarded_revision_say_so_and_no_manifest_can() -> None:
    revision = a_revision(metadata={"annotations": {"serving.dev/guarded": "true"}})
    template = desired_deployment(revision, replica_count=1, progress_deadline_s=1.0)["spec"]["template"]
    assert "serving.dev/guarded" not in template["metadata"]["annotations"]
    guarded = desired_deployment(revision, replica_count=1, progress_deadline_s=1.0, sidecar=SIDECAR, is_guarded=True)
    assert guarded["spec"]["template"]["metadata"]["annotations"]["serving.dev/guarded"] == "true"
    assert {"name": "SERVING_POD_GUARDED", "value": "true"} in container_of(guarded, 0)["env"]


def test_a_deployment_changes_with_the_guard_only() -> None:
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
    ("made_in", "present", "is_changed"),
    [
        *(("Disabled", "Enabled", True), ("Permissive", "Enabled", True), ("Enabled", "Enabled", False)),
        *(("Enabled", "Permissive", True), ("Enabled", "Disabled", True)),
        # Activators reach these in either mode.
        *(("Disabled", "Permissive", False), ("Permissive", "Disabled", False)),
    ],
)
def test_pods_become_strict_with_the_controller_and_cease_to_be(
    made_in: str, present: str, *, is_changed: bool
) -> None:
    deployment = desired_deployment(a_revision(), replica_count=1, progress_deadline_s=1.0, sidecar=in_mode(made_in))
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


def test_pods_without_a_queue_proxy_of_their_own_stay() -> None:
    assert template_patch(made(), is_guarded=False, sidecar=None) == ()


def test_the_guard_and_inner_tls_change_together() -> None:
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


def test_a_runtime_class_is_chosen_by_labels_unless_the_spec_names_one() -> None:
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
