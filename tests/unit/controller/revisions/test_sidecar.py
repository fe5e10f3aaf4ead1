"""The queue-proxy as a container of a revision's pods."""

from typing import Any

import msgspec
import pytest

from serving.controller.revisions.deployment import desired_deployment
from serving.controller.revisions.sidecar import Sidecar, grace_s
from serving.core.model.objects import Object
from serving.core.settings.http import HttpSettings
from serving.core.settings.innertls import InnerTlsSettings
from serving.core.settings.queueproxy import QueueProxySettings, RequestLogSettings
from serving.core.settings.sidecar import SidecarSettings
from serving.queueproxy.podspec import Probe, spec_from_environment
from tests.unit.config.strict import faults
from tests.unit.controller.builders import a_revision

SIDECAR = Sidecar(
    settings=SidecarSettings(),
    image="registry.example/serving:1",
    stats_url="ws://autoscaler:6081/stats",
    secret_of=lambda namespace, uid: f"secret of {namespace}/{uid}",
    token_of=lambda namespace, name: f"token of {namespace}/{name}",
)
SECRET = "secret of default/uid-of-revision-hello-00001"  # noqa: S105 - of this test


def pod_of(sidecar: Sidecar = SIDECAR, **template: Any) -> Object:  # noqa: ANN401 - JSON
    revision = a_revision(**template)
    deployment = desired_deployment(revision, replica_count=1, progress_deadline_s=600.0, sidecar=sidecar)
    spec: Object = deployment["spec"]["template"]["spec"]
    return spec


def proxy_of(pod: Object) -> Object:
    container: Object = pod["containers"][0]
    return container


def environment_of(pod: Object) -> dict[str, str]:
    """The environment of the process, with the values of the kubelet."""
    fields = {"metadata.namespace": "default", "metadata.name": "hello-00001-abc"}
    return {
        variable["name"]: variable["value"]
        if "value" in variable
        else fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable in proxy_of(pod)["env"]
    }


def test_sidecar_image_is_setting_or_controller_image() -> None:
    named = msgspec.structs.replace(SIDECAR, settings=SidecarSettings(image="registry.example/mine:2"))
    assert proxy_of(pod_of(named))["image"] == "registry.example/mine:2"
    assert proxy_of(pod_of())["image"] == "registry.example/serving:1"


def test_sidecar_is_first_container_with_queue_proxy_ports() -> None:
    proxy = proxy_of(pod_of())
    assert proxy["name"] == "queue-proxy"
    assert proxy["image"] == "registry.example/serving:1"
    assert proxy["command"] == ["python", "-m", "serving.queueproxy.main"]
    assert [(port["name"], port["containerPort"]) for port in proxy["ports"]] == [
        ("queue-port", 8012),
        ("http-queueadm", 8022),
    ]


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"ports": [{"name": "h2c", "containerPort": 9}], "readinessProbe": {"exec": {"command": ["true"]}}},
        {
            "livenessProbe": {"httpGet": {"path": "/l"}},
            "startupProbe": {"grpc": {}},
            "env": [{"name": "A", "value": "b"}],
        },
    ],
)
def test_deployment_with_sidecar_is_valid_for_kubernetes(own: Object) -> None:
    revision = a_revision(spec={"containers": [{"image": "a", **own}], "initContainers": [{"name": "i", "image": "b"}]})
    deployment = desired_deployment(revision, replica_count=1, progress_deadline_s=600.0, sidecar=SIDECAR)
    assert faults(deployment) == []


def test_deployment_without_sidecar_has_app_container_only() -> None:
    deployment = desired_deployment(a_revision(), replica_count=1, progress_deadline_s=1.0)
    assert [container["name"] for container in deployment["spec"]["template"]["spec"]["containers"]] == [
        "user-container"
    ]


def test_queue_proxy_reads_its_environment() -> None:
    template = {"containers": [{"image": "a"}], "containerConcurrency": 3, "timeoutSeconds": 7, "idleTimeoutSeconds": 2}
    spec = spec_from_environment(environment_of(pod_of(spec=template)))
    assert (spec.namespace, spec.revision, spec.pod) == ("default", "hello-00001", "hello-00001-abc")
    assert (spec.app, spec.is_http2, spec.secret) == (("127.0.0.1", 8080), False, SECRET)
    assert (spec.stats_url, spec.stats_token) == ("ws://autoscaler:6081/stats", "token of default/hello-00001")
    settings = spec.settings
    assert (settings.container_concurrency, settings.request_timeout_s, settings.idle_timeout_s) == (3, 7, 2)
    assert (settings.drain_lag_s, settings.drain_grace_s) == (5, 12)


def test_queue_proxy_runs_readiness_probe_of_app() -> None:
    own: Object = {"image": "a", "ports": [{"name": "h2c", "containerPort": 9000}]}
    own["readinessProbe"] = {"httpGet": {"path": "/x"}, "periodSeconds": 3, "failureThreshold": 2}
    pod = pod_of(spec={"containers": [own]})
    spec = spec_from_environment(environment_of(pod))
    assert spec.readiness == Probe(path="/x", port=9000, period_s=3, failure_max=2)
    assert (spec.app, spec.is_http2) == (("127.0.0.1", 9000), True)
    assert "readinessProbe" not in pod["containers"][1]


@pytest.mark.parametrize(
    "probe",
    [
        {"exec": {"command": ["true"]}},
        {"grpc": {"port": 7}},
        {"httpGet": {"path": "/", "port": 1, "scheme": "HTTPS"}},
        {"httpGet": {"path": "/", "port": 1, "host": "elsewhere"}},
        {"tcpSocket": {"port": 1, "host": "elsewhere"}},
    ],
)
def test_unsupported_readiness_probe_remains_with_kubelet(probe: Object) -> None:
    pod = pod_of(spec={"containers": [{"image": "a", "readinessProbe": probe}]})
    assert pod["containers"][1]["readinessProbe"].items() >= probe.items()
    assert "SERVING_POD_READINESS" not in environment_of(pod)


def test_app_without_readiness_probe_gets_none() -> None:
    revision = a_revision()
    del revision["spec"]["containers"][0]["readinessProbe"]
    deployment = desired_deployment(revision, replica_count=1, progress_deadline_s=1.0, sidecar=SIDECAR)
    proxy, app = deployment["spec"]["template"]["spec"]["containers"]
    assert "readinessProbe" not in app
    assert "SERVING_POD_READINESS" not in {variable["name"] for variable in proxy["env"]}


def test_only_serving_container_gets_port_variable() -> None:
    pod = pod_of(spec={"containers": [{"image": "a", "ports": [{"containerPort": 9000}]}, {"image": "b"}]})
    ports = [
        [variable["value"] for variable in app["env"] if variable["name"] == "PORT"] for app in pod["containers"][1:3]
    ]
    assert ports == [["9000"], []]


def test_additional_ports_are_tcp_ports() -> None:
    ports = [{"containerPort": 9000}, {"name": "tcp-5432", "containerPort": 5432, "protocol": "TCP"}]
    pod = pod_of(spec={"containers": [{"image": "a", "ports": ports}]})
    assert spec_from_environment(environment_of(pod)).tcp_ports == {5432: 5432}
    app = pod["containers"][1]
    assert [port["name"] for port in app["ports"]] == ["user-port", "tcp-5432"]
    entry = {variable["name"]: variable.get("value") for variable in app["env"]}
    assert (entry["PORT"], entry["PORT_5432"]) == ("9000", "5432")


def test_probes_without_port_use_container_port() -> None:
    liveness = {"httpGet": {"path": "/l"}, "periodSeconds": 1}
    own = {"image": "a", "livenessProbe": liveness, "startupProbe": {"tcpSocket": {"port": 5}}}
    app = pod_of(spec={"containers": [own]})["containers"][1]
    assert app["livenessProbe"] == {"httpGet": {"path": "/l", "port": 8080}, "periodSeconds": 1}
    assert app["startupProbe"]["tcpSocket"] == {"port": 5}


def test_pod_readiness_probe_is_queue_proxy_readyz() -> None:
    probe = proxy_of(pod_of())["readinessProbe"]
    assert probe["httpGet"] == {"path": "/readyz?wait=8", "port": 8022}
    assert probe["timeoutSeconds"] > 8
    assert (probe["periodSeconds"], probe["failureThreshold"]) == (1, 1)


def test_app_containers_wait_for_drain_in_pre_stop() -> None:
    pod = pod_of(spec={"containers": [{"image": "a", "ports": [{}]}, {"image": "b"}]})
    order = {"path": "/wait-for-drain", "port": 8022, "httpHeaders": [{"name": "K-Pod-Secret", "value": SECRET}]}
    for app in pod["containers"][1:3]:
        assert app["lifecycle"] == {"preStop": {"httpGet": order}}
    assert "lifecycle" not in proxy_of(pod)


def test_non_serving_container_keeps_its_readiness_probe() -> None:
    probe = {"tcpSocket": {"port": 9}}
    pod = pod_of(spec={"containers": [{"image": "a", "ports": [{}]}, {"image": "b", "readinessProbe": probe}]})
    assert pod["containers"][2]["readinessProbe"]["tcpSocket"] == {"port": 9}


@pytest.mark.parametrize(("lag_s", "grace"), [(5.0, 17), (0.5, 13), (0.0, 12)])
def test_grace_period_is_drain_lag_plus_timeout_plus_margin(lag_s: float, grace: int) -> None:
    sidecar = msgspec.structs.replace(SIDECAR, proxy=QueueProxySettings(drain_lag_s=lag_s))
    revision = a_revision(spec={"containers": [{"image": "a"}], "timeoutSeconds": 7})
    assert grace_s(revision, sidecar) == grace
    template = {"containers": [{"image": "a"}], "timeoutSeconds": 7}
    assert pod_of(sidecar, spec=template)["terminationGracePeriodSeconds"] == grace


def test_sidecar_has_restricted_security_context() -> None:
    assert proxy_of(pod_of())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_sidecar_runs_as_its_own_user_in_root_pod() -> None:
    pod = pod_of(spec={"containers": [{"image": "a"}], "securityContext": {"runAsUser": 0}})
    assert proxy_of(pod)["securityContext"]["runAsUser"] == 65532


def test_pod_has_no_serving_volume_and_revision_token_in_environment() -> None:
    pod = pod_of()
    assert "volumes" not in pod
    assert "volumeMounts" not in proxy_of(pod)
    spec = spec_from_environment(environment_of(pod))
    assert (spec.stats_token, spec.stats_token_file) == ("token of default/hello-00001", "")
    own = [{"name": "v", "emptyDir": {}}]
    assert pod_of(spec={"containers": [{"image": "a"}], "volumes": own})["volumes"] == own


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, False),
        ({"serviceAccountName": "own"}, True),
        ({"automountServiceAccountToken": True}, True),
        ({"serviceAccountName": "own", "automountServiceAccountToken": False}, False),
    ],
)
def test_service_account_token_is_mounted_only_on_request(more: Object, expected: bool) -> None:
    assert pod_of(spec={"containers": [{"image": "a"}], **more})["automountServiceAccountToken"] is expected


def test_default_container_annotation_names_serving_container() -> None:
    containers = [{"name": "side", "image": "a"}, {"name": "app", "image": "a", "ports": [{"containerPort": 80}]}]
    revision = a_revision(spec={"containers": containers})
    deployment = desired_deployment(revision, replica_count=1, progress_deadline_s=600.0, sidecar=SIDECAR)
    annotation = "kubectl.kubernetes.io/default-container"
    assert deployment["spec"]["template"]["metadata"]["annotations"][annotation] == "app"
    assert annotation not in deployment["metadata"]["annotations"]


def test_stats_audience_mounts_projected_token_in_sidecar_only() -> None:
    own = {"image": "a", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    sidecar = msgspec.structs.replace(SIDECAR, settings=SidecarSettings(stats_audience="serving-stats"))
    pod = pod_of(sidecar, spec={"containers": [own], "volumes": [{"name": "v", "emptyDir": {}}]})
    assert spec_from_environment(environment_of(pod)).stats_token_file == "/var/run/secrets/serving/token"  # noqa: S105 - where it is
    assert pod["volumes"] == [
        {"name": "v", "emptyDir": {}},
        {
            "name": "serving-stats-token",
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"audience": "serving-stats", "expirationSeconds": 3600, "path": "token"}}
                ]
            },
        },
    ]
    assert pod["containers"][1]["volumeMounts"] == own["volumeMounts"]
    assert [mount["name"] for mount in proxy_of(pod)["volumeMounts"]] == ["serving-stats-token"]


def test_sidecar_resources_are_read_from_settings() -> None:
    assert proxy_of(pod_of())["resources"] == {"requests": {"cpu": "25m", "memory": "64Mi"}}
    settings = SidecarSettings(
        cpu_request="", memory_request="", cpu_limit="1", memory_limit="1Gi", storage_request="1Mi", storage_limit="2Mi"
    )
    resources = proxy_of(pod_of(msgspec.structs.replace(SIDECAR, settings=settings)))["resources"]
    assert resources == {
        "requests": {"ephemeral-storage": "1Mi"},
        "limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "2Mi"},
    }


def test_queue_proxy_settings_apply_with_precedence_of_revision() -> None:
    proxy = QueueProxySettings(
        request_timeout_s=9.0,
        drain_lag_s=0.5,
        http=HttpSettings(head_bytes_max=32768),
    )
    settings = spec_from_environment(environment_of(pod_of(msgspec.structs.replace(SIDECAR, proxy=proxy)))).settings
    assert settings.drain_lag_s == 0.5
    assert (settings.http.head_bytes_max, settings.request_timeout_s) == (32768, 300)


def test_request_log_adds_pod_ip_and_service_variables() -> None:
    proxy = QueueProxySettings(logging=RequestLogSettings(enable_request_log=True))
    container = proxy_of(pod_of(msgspec.structs.replace(SIDECAR, proxy=proxy)))
    (address,) = [variable for variable in container["env"] if variable["name"] == "SERVING_POD_IP"]
    assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert "SERVING_POD_IP" not in {variable["name"] for variable in proxy_of(pod_of())["env"]}
    assert "SERVING_POD_SERVICE" not in {variable["name"] for variable in container["env"]}
    own = RequestLogSettings(enable_request_log=True, request_log_template="{{.Revision.Service}}")
    container = proxy_of(pod_of(msgspec.structs.replace(SIDECAR, proxy=QueueProxySettings(logging=own))))
    assert "SERVING_POD_SERVICE" in {variable["name"] for variable in container["env"]}


def test_variable_syntax_in_probe_is_escaped() -> None:
    probe = {"httpGet": {"path": "/$(SERVING_POD_SECRET)"}}
    pod = pod_of(spec={"containers": [{"image": "a", "readinessProbe": probe}]})
    assert "/$$(SERVING_POD_SECRET)" in environment_of(pod)["SERVING_POD_READINESS"]


def test_other_pod_fields_are_preserved() -> None:
    rest = {
        "serviceAccountName": "mine",
        "securityContext": {"runAsUser": 1000},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "x"}],
        "affinity": {"nodeAffinity": {}},
        "imagePullSecrets": [{"name": "s"}],
        "schedulerName": "other",
        "dnsPolicy": "Default",
        "hostAliases": [{"ip": "1.2.3.4"}],
        "priorityClassName": "high",
        "initContainers": [{"name": "first", "image": "b"}],
    }
    own = {"image": "a", "envFrom": [{"secretRef": {"name": "s"}}], "securityContext": {"runAsUser": 7}}
    pod = pod_of(spec={"containers": [own], **rest})
    assert {name: pod[name] for name in rest} == rest
    assert pod["containers"][1].items() >= own.items()


def test_inner_tls_pod_gets_mode_and_authority_but_no_key() -> None:
    secured = msgspec.structs.replace(
        SIDECAR, inner_tls=InnerTlsSettings(mode="Enabled"), authority="PEM of the authority"
    )
    environment = environment_of(pod_of(secured))
    spec = spec_from_environment(environment)
    assert spec.settings.inner_tls.is_strict
    assert spec.authority == "PEM of the authority"
    assert not any("PRIVATE KEY" in value for value in environment.values())
    assert pod_of(secured).get("volumes") == pod_of().get("volumes")


def test_pod_without_inner_tls_has_no_tls_variables() -> None:
    environment = environment_of(pod_of())
    assert not any("INNER_TLS" in name or "AUTHORITY" in name for name in environment)


def annotated_environment(**annotations: str) -> dict[str, str]:
    """The environment of the queue-proxy for a template with these serving.dev annotations."""
    named = {f"serving.dev/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return environment_of(pod_of(metadata={"annotations": named}))


def test_dormant_call_annotation_is_passed_to_queue_proxy() -> None:
    entry = annotated_environment(dormant="after=5s", dormant_call="POST /sleep, POST /wake_up")
    assert entry["SERVING_POD_DORMANT_CALL"] == "POST /sleep, POST /wake_up"
    assert spec_from_environment(entry).dormant_after_s == 5.0
    assert not [name for name in annotated_environment() if "DORMANT" in name or "UNFROZEN" in name]


@pytest.mark.parametrize(
    ("spec", "unfrozen"),
    [
        ({}, "the pod does not share its process namespace"),
        ({"shareProcessNamespace": True}, ""),
        (
            {
                "shareProcessNamespace": True,
                "containers": [{"image": "a", "livenessProbe": {"httpGet": {"path": "/"}}}],
            },
            "the kubelet probes its liveness",
        ),
    ],
)
def test_app_is_frozen_only_with_shared_process_namespace_and_no_probe(spec: Object, unfrozen: str) -> None:
    annotations = {"annotations": {"serving.dev/dormant": "after=5s"}}
    pod_spec = spec_from_environment(
        environment_of(pod_of(metadata=annotations, spec={"containers": [{"image": "a"}], **spec}))
    )
    assert (pod_spec.dormant_after_s, pod_spec.unfrozen) == (5.0, unfrozen)


def test_start_cpu_stores_awake_resources_in_annotation() -> None:
    container = {"image": "a", "resources": {"requests": {"cpu": "100m"}}}
    annotations = {"serving.dev/start-cpu": "2"}
    revision = a_revision(metadata={"annotations": annotations}, spec={"containers": [container]})
    deployment = desired_deployment(revision, replica_count=1, progress_deadline_s=600.0, sidecar=SIDECAR)
    template = deployment["spec"]["template"]
    assert template["spec"]["containers"][1]["resources"] == {"requests": {"cpu": "2"}}
    name = template["spec"]["containers"][1]["name"]
    awake = msgspec.json.decode(template["metadata"]["annotations"]["serving.dev/awake-resources"])
    assert awake == {name: {"requests": {"cpu": "100m"}}}
    alone = desired_deployment(revision, replica_count=1, progress_deadline_s=600.0)["spec"]["template"]
    assert "serving.dev/awake-resources" not in alone["metadata"]["annotations"]
    assert alone["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "100m"}}
