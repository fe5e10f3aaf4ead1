import json

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import Object
from serving.core.settings.queueproxy import QueueProxySettings, RequestLogSettings
from serving.home.pods.podplan import (
    AppPlan,
    ContainerState,
    app_plan,
    command_words,
    is_own_proxy,
    named_ports,
    proxy_environment,
)
from serving.queueproxy.podspec import spec_from_environment


def new_pod(container: Object, **annotations: str) -> Object:
    labels = {"serving.knative.dev/revision": "hello-00001"}
    # A template with the command annotation, even an empty one, runs as a process.
    values = {"serving.dev/command": "", **annotations}
    metadata = {"name": "p", "namespace": "default", "labels": labels, "annotations": values}
    return {"metadata": metadata, "spec": {"containers": [container]}}


def new_plan(container: Object, **annotations: str) -> AppPlan:
    value = {variable["name"]: variable["value"] for variable in container.get("env", ())}
    return app_plan(new_pod(container, **annotations), container, port=4711, home="/pods/1", variables=value)


def test_app_plan_has_command_environment_and_port() -> None:
    container = {
        "name": "c",
        "command": ["run"],
        "args": ["$(WHO)"],
        "env": [{"name": "WHO", "value": "me"}],
        "workingDir": "/w",
    }
    plan = new_plan(container)
    assert (plan.name, plan.arguments, plan.folder) == ("c", ("run", "me"), "/w")
    assert plan.environment == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/pods/1",
        "HOSTNAME": "p",
        "WHO": "me",
        "PORT": "4711",
    }


def test_command_annotation_is_run_without_container_command() -> None:
    plan = new_plan({"image": "hello"}, **{"serving.dev/command": "python 'my app.py'"})
    assert plan.arguments == ("python", "my app.py")
    assert plan.name == "user-container"


def test_args_are_appended_to_command_annotation() -> None:
    assert new_plan({"args": ["-v"]}, **{"serving.dev/command": "run"}).arguments == ("run", "-v")
    assert new_plan({"args": ["run", "-v"]}).arguments == ("run", "-v")


def test_missing_command_error_names_the_annotation() -> None:
    with pytest.raises(InvalidValue, match=r"annotation serving\.dev/command"):
        new_plan({"image": "hello"})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"hostUsers": False}, "hostUsers true, or none"),
        ({"securityContext": {"seccompProfile": {"type": "Localhost"}}}, "seccompProfile RuntimeDefault, or none"),
        ({"containers": [{"name": "c", "securityContext": {"privileged": True}}]}, "no privileged, or false"),
    ],
)
def test_unsupported_isolation_of_a_process_is_rejected(spec: Object, expected: str) -> None:
    pod = new_pod({"name": "c", "command": ["run"]})
    pod["spec"] |= spec
    with pytest.raises(InvalidValue) as raised:
        app_plan(pod, pod["spec"]["containers"][0], port=1, home="/", variables={})
    assert raised.value.expected.startswith(expected)


def test_images_only_pod_cannot_run_a_process() -> None:
    with pytest.raises(InvalidValue, match="may not run programs of this machine"):
        new_plan({"image": "hello", "command": ["sh"]}, **{"serving.dev/images-only": "true"})


def test_unparsable_command_annotation_is_rejected() -> None:
    with pytest.raises(InvalidValue, match="no closing quotation"):
        new_plan({"image": "hello"}, **{"serving.dev/command": "run 'it"})


def test_queue_proxy_environment_has_identity_and_revision_limits() -> None:
    revision = {"spec": {"containerConcurrency": 3, "timeoutSeconds": 60}}
    manifest = new_pod({"command": ["x"]})
    manifest["spec"]["terminationGracePeriodSeconds"] = 60
    result = proxy_environment(manifest, revision, app="127.0.0.1:4711", address="127.64.0.9")
    assert result == {
        "SERVING_POD_NAMESPACE": "default",
        "SERVING_POD_REVISION": "hello-00001",
        "SERVING_POD_NAME": "p",
        "SERVING_POD_APP": "127.0.0.1:4711",
        "SERVING_POD_LISTEN": "127.64.0.9:8012",
        "SERVING_POD_ADMIN_LISTEN": "127.64.0.9:8022",
        "SERVING_QUEUEPROXY_CONTAINER_CONCURRENCY": "3",
        "SERVING_QUEUEPROXY_REQUEST_TIMEOUT_S": "60",
        "SERVING_QUEUEPROXY_DRAIN_LAG_S": "1.0",
        "SERVING_QUEUEPROXY_DRAIN_GRACE_S": "60",
    }


def test_queue_proxy_environment_has_tcp_ports() -> None:
    entry = proxy_environment(new_pod({"command": ["x"]}), {}, app="127.0.0.1:1", address="a", tcp_ports={5432: 23411})
    assert json.loads(entry["SERVING_POD_TCP_PORTS"]) == {"5432": 23411}


def test_serving_container_hosts_in_process_queue_proxy_if_annotated() -> None:
    inside = {"serving.dev/queue-proxy": "in-process"}
    serving, other = {"name": "a", "ports": [{"containerPort": 8080}]}, {"name": "b"}
    manifest = new_pod(serving, **inside)
    manifest["spec"]["containers"].append(other)
    assert [is_own_proxy(manifest, container) for container in (serving, other)] == [True, False]
    assert not is_own_proxy(new_pod(serving, **{"serving.dev/queue-proxy": "beside"}), serving)
    # A pod without a revision receives no requests from activators.
    bare = new_pod(serving, **inside)
    del bare["metadata"]["labels"]
    assert not is_own_proxy(bare, serving)


def test_readiness_probe_is_passed_to_queue_proxy_at_app_port() -> None:
    probe = {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 3}
    container = {"command": ["x"], "ports": [{"containerPort": 8080}], "readinessProbe": probe}
    entry = proxy_environment(new_pod(container), {}, app="127.0.0.1:1", address="127.64.0.9")
    assert json.loads(entry["SERVING_POD_READINESS"]) == {"httpGet": {"path": "/ready", "port": 0}, "periodSeconds": 3}


@pytest.mark.parametrize("fields", [{}, {"args": ["-text=hello"]}, {"command": ["sh", "-c", "exec true"]}])
def test_image_command_does_not_run_as_a_process(fields: Object) -> None:
    pod = new_pod({"name": "c", "image": "i", **fields})
    pod["metadata"]["annotations"] = {}
    with pytest.raises(InvalidValue, match="an image that a container runtime runs: there is none here"):
        app_plan(pod, pod["spec"]["containers"][0], port=1, home="/", variables={})


def test_init_container_gets_no_port_and_no_template_command() -> None:
    pod = new_pod({"name": "c", "image": "i"}, **{"serving.dev/command": "run"})
    first: Object = {"name": "first", "image": "i"}
    pod["spec"]["initContainers"] = [first]
    assert app_plan(pod, pod["spec"]["containers"][0], port=1, home="/", variables={}).environment["PORT"] == "1"
    with pytest.raises(InvalidValue):
        app_plan(pod, first, port=1, home="/", variables={})
    assert "PORT" not in app_plan(pod, {**first, "command": ["x"]}, port=1, home="/", variables={}).environment


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python app.py", ["python", "app.py"]),
        ("python -c 'a; b($x)'", ["python", "-c", "a; b($x)"]),
        ('python -c "a; b(1)"', ["python", "-c", "a; b(1)"]),
        ("uvicorn app:app --port $PORT", ["/bin/sh", "-c", "exec uvicorn app:app --port $PORT"]),
        ("gunicorn -b [::]:${PORT} app", ["/bin/sh", "-c", "exec gunicorn -b [::]:${PORT} app"]),
        ("serve --port $(PORT)", ["/bin/sh", "-c", "exec serve --port ${PORT}"]),
        ('say "$PORT"', ["/bin/sh", "-c", 'exec say "$PORT"']),
        ("make && ./app", ["/bin/sh", "-c", "make && ./app"]),
        ("DEBUG=1 python app.py", ["/bin/sh", "-c", "DEBUG=1 python app.py"]),
        ("cd src; ./app", ["/bin/sh", "-c", "cd src; ./app"]),
        (r"say \$PORT", ["say", "$PORT"]),
    ],
)
def test_command_with_shell_syntax_runs_in_a_shell(text: str, words: list[str]) -> None:
    assert command_words(text) == tuple(words)


def test_command_runs_in_the_snapshot_folder() -> None:
    container = {"name": "c", "command": ["run"]}
    annotated = new_pod(container, **{"serving.dev/dir": "/src"})
    plan = app_plan(annotated, container, port=1, home="/pods/1", variables={}, snapshot="/snapshots/1")
    assert plan.folder == "/snapshots/1"


def test_queue_proxy_environment_has_global_and_request_log_settings() -> None:
    manifest = new_pod({"command": ["x"]})
    settings = QueueProxySettings(drain_grace_s=20.0, logging=RequestLogSettings(enable_request_log=True))
    entry = proxy_environment(manifest, {}, app="127.0.0.1:1", address="127.64.0.9", proxy_settings=settings)
    assert entry["SERVING_QUEUEPROXY_DRAIN_GRACE_S"] == "20.0"
    assert entry["SERVING_QUEUEPROXY_LOGGING_ENABLE_REQUEST_LOG"] == "true"
    spec = spec_from_environment(entry)
    assert spec.address == "127.64.0.9"
    assert spec.settings.logging.is_on


def test_named_ports_include_containers_probes_and_metrics() -> None:
    pod = new_pod(
        {
            "ports": [{"containerPort": 8080, "name": "http1"}],
            "readinessProbe": {"httpGet": {"port": "http1"}},
            "livenessProbe": {"tcpSocket": {"port": 9000}},
            "startupProbe": {"exec": {"command": ["true"]}},
        },
        **{"prometheus.io/port": "9090"},
    )
    pod["spec"]["containers"].append({"name": "b", "ports": [{"containerPort": 6379}]})
    pod["spec"]["initContainers"] = [{"name": "i", "livenessProbe": {"grpc": {"port": 70000}}}]
    assert named_ports(pod) == [6379, 8080, 9000, 9090]
    assert named_ports(new_pod({"command": ["x"]}, **{"prometheus.io/port": "many"})) == []


def test_start_has_failed_after_run_error_or_restart() -> None:
    assert not ContainerState().has_failed
    assert not ContainerState(is_running=True).has_failed
    assert ContainerState(waiting_reason="RunContainerError").has_failed
    assert not ContainerState(waiting_reason="RunContainerError", is_running=True).has_failed
    assert ContainerState(restart_count=1, is_running=True).has_failed
