"""The queue-proxy in the process of the app: one container with the configuration of a queue-proxy."""

from typing import Any

import msgspec
import pytest

from serving.controller.revisions.deployment import desired_deployment, template_patch
from serving.controller.revisions.sidecar import proxy_container
from serving.core.model.objects import Object
from serving.core.settings.innertls import InnerTlsSettings
from serving.core.settings.sidecar import SidecarSettings
from serving.queueproxy.podspec import PodSpec, Probe, spec_from_environment
from tests.unit.config.strict import faults
from tests.unit.controller.builders import a_revision
from tests.unit.controller.revisions.test_sidecar import SECRET, SIDECAR, environment_of, pod_of

INSIDE = {"annotations": {"serving.dev/queue-proxy": "in-process"}}
STRICT = msgspec.structs.replace(SIDECAR, inner_tls=InnerTlsSettings(mode="Enabled"), authority="PEM")
MARKS = [{"name": "K-Pod-Secret", "value": SECRET}, {"name": "K-Network-Probe", "value": "app"}]


def inside(**container: Any) -> Object:  # noqa: ANN401 - JSON
    return pod_of(metadata=INSIDE, spec={"containers": [{"image": "a", **container}], "timeoutSeconds": 7})


def spec_of(pod: Object) -> PodSpec:
    return spec_from_environment(environment_of(pod))


def new_deployment(sidecar: Any = SIDECAR, **template: Any) -> Object:  # noqa: ANN401 - JSON
    revision = a_revision(metadata=INSIDE, **template)
    return desired_deployment(revision, replica_count=1, progress_deadline_s=600.0, sidecar=sidecar)


def test_in_process_pod_has_only_user_containers() -> None:
    pod = inside(command=["python", "-m", "serving.asgi", "app:app"], securityContext={"runAsUser": 7})
    (app,) = pod["containers"]
    assert (app["name"], app["image"], app["command"][2]) == ("user-container", "a", "serving.asgi")
    assert app["securityContext"] == {"runAsUser": 7}
    assert app["resources"] == {}
    assert "volumes" not in pod
    assert pod["terminationGracePeriodSeconds"] == 17


def test_in_process_app_gets_queue_proxy_port_and_environment() -> None:
    pod = inside(ports=[{"containerPort": 9000}], env=[{"name": "MINE", "value": "1"}])
    environment = environment_of(pod)
    assert (environment["HOST"], environment["PORT"], environment["MINE"]) == ("0.0.0.0", "8012", "1")  # noqa: S104 - what a pod listens on
    spec = spec_of(pod)
    assert (spec.namespace, spec.revision, spec.pod) == ("default", "hello-00001", "hello-00001-abc")
    assert (spec.app, spec.listen[1], spec.admin[1]) == (("127.0.0.1", 8012), 8012, 8022)
    assert (spec.secret, spec.stats_token) == (SECRET, "token of default/hello-00001")
    assert (spec.settings.request_timeout_s, spec.settings.drain_grace_s) == (7, 12)
    ports = [(port["name"], port["containerPort"]) for port in pod["containers"][0]["ports"]]
    assert ports == [("user-port", 8012), ("http-queueadm", 8022)]


def test_in_process_app_has_no_pre_stop_hook() -> None:
    assert "lifecycle" not in inside()["containers"][0]


def test_readiness_probe_is_moved_to_in_process_queue_proxy() -> None:
    pod = inside(readinessProbe={"httpGet": {"path": "/x"}, "periodSeconds": 3, "failureThreshold": 2})
    assert spec_of(pod).readiness == Probe(path="/x", port=8012, period_s=3, failure_max=2)
    probe = pod["containers"][0]["readinessProbe"]
    assert probe["httpGet"] == {"path": "/readyz?wait=8", "port": 8022}


def test_app_without_readiness_probe_is_probed_through_queue_proxy() -> None:
    revision = a_revision(metadata=INSIDE)
    del revision["spec"]["containers"][0]["readinessProbe"]
    deployment = desired_deployment(revision, replica_count=1, progress_deadline_s=1.0, sidecar=SIDECAR)
    (app,) = deployment["spec"]["template"]["spec"]["containers"]
    assert app["readinessProbe"]["httpGet"]["port"] == 8022
    assert "SERVING_POD_READINESS" not in {variable["name"] for variable in app["env"]}


def test_exec_readiness_probe_remains_with_kubelet() -> None:
    pod = inside(readinessProbe={"exec": {"command": ["true"]}})
    assert pod["containers"][0]["readinessProbe"]["exec"] == {"command": ["true"]}


def test_http_probes_use_queue_proxy_port_with_probe_headers() -> None:
    own = [{"name": "X-Own", "value": "1"}]
    app = inside(
        livenessProbe={"httpGet": {"path": "/l", "httpHeaders": own}},
        startupProbe={"httpGet": {"path": "/s", "port": 8080}},
    )["containers"][0]
    assert app["livenessProbe"]["httpGet"] == {"path": "/l", "port": 8012, "httpHeaders": [*own, *MARKS]}
    assert app["startupProbe"]["httpGet"] == {"path": "/s", "port": 8012, "httpHeaders": MARKS}


def test_probes_of_other_ports_and_kinds_are_unchanged() -> None:
    app = inside(livenessProbe={"tcpSocket": {"port": 9}}, startupProbe={"exec": {"command": ["a"]}})["containers"][0]
    assert app["livenessProbe"]["tcpSocket"] == {"port": 9}
    assert app["startupProbe"] == {"exec": {"command": ["a"]}}


def test_side_container_waits_for_drain() -> None:
    containers = [{"name": "side", "image": "b"}, {"name": "app", "image": "a", "ports": [{"containerPort": 80}]}]
    app, side = pod_of(metadata=INSIDE, spec={"containers": containers})["containers"]
    assert (app["name"], side["name"]) == ("app", "side")
    assert side["lifecycle"]["preStop"]["httpGet"]["path"] == "/wait-for-drain"
    assert not any(variable["name"].startswith("SERVING_") for variable in side["env"])


def test_stats_audience_mounts_token_in_app() -> None:
    sidecar = msgspec.structs.replace(SIDECAR, settings=SidecarSettings(stats_audience="serving-stats"))
    own = {"image": "a", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    pod = pod_of(sidecar, metadata=INSIDE, spec={"containers": [own], "volumes": [{"name": "v", "emptyDir": {}}]})
    assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == ["v", "serving-stats-token"]
    assert "SERVING_POD_STATS_TOKEN" not in environment_of(pod)


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"ports": [{"name": "h2c", "containerPort": 9}], "readinessProbe": {"exec": {"command": ["true"]}}},
        {"livenessProbe": {"httpGet": {"path": "/l"}}, "startupProbe": {"grpc": {}}},
    ],
)
def test_in_process_deployment_is_valid_for_kubernetes(own: Object) -> None:
    assert faults(new_deployment(spec={"containers": [{"image": "a", **own}]})) == []


def test_inner_tls_and_guard_patch_the_app_container() -> None:
    plain, strict = new_deployment(), new_deployment(STRICT)
    assert proxy_container(plain)["name"] == "user-container"
    assert spec_of(strict["spec"]["template"]["spec"]).settings.inner_tls.is_strict
    assert template_patch(strict, is_guarded=False, sidecar=STRICT) == ()
    for deployment, sidecar in ((plain, STRICT), (strict, SIDECAR)):
        (patch,) = template_patch(deployment, is_guarded=True, sidecar=sidecar)
        (changed,) = patch.patch["spec"]["template"]["spec"]["containers"]
        assert changed["name"] == "user-container"
        assert {"name": "SERVING_POD_GUARDED", "value": "true"} in changed["env"]
        assert "SERVING_QUEUEPROXY_INNER_TLS_MODE" in {variable["name"] for variable in changed["env"]}


def test_proxy_container_is_found_only_as_sidecar() -> None:
    beside = desired_deployment(a_revision(), replica_count=1, progress_deadline_s=1.0, sidecar=SIDECAR)
    alone = desired_deployment(a_revision(metadata=INSIDE), replica_count=1, progress_deadline_s=1.0)
    assert proxy_container(beside)["name"] == "queue-proxy"
    # On one machine the kubelet starts the queue-proxy.
    assert proxy_container(alone) == proxy_container({}) == {}


def test_queue_proxy_annotation_beside_adds_sidecar() -> None:
    pod = pod_of(metadata={"annotations": {"serving.dev/queue-proxy": "beside"}})
    assert [container["name"] for container in pod["containers"]] == ["queue-proxy", "user-container"]
