"""Kinds of services in Knative's documentation and tests, run as images: each runs, or reports why not.

The manifests have the shapes that Knative documents. All are applied at once, and then each is checked.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli_stage import Stage, staged
from tests.integration.image_stage import app_image, needs_containers

IMAGE = "test.local/web:1"
_SCALING, _PUBLIC = "autoscaling.knative.dev", "networking.knative.dev/visibility"
_PATIENCE_S = 120.0
_PAGE = {"httpGet": {"path": "/me"}, "periodSeconds": 1}

BESIDE = [
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words"}, "data": {"WORD": "configured"}},
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hidden"}, "stringData": {"TOKEN": "hush"}},
]
pytestmark = [pytest.mark.slow, needs_containers()]


def service(name: str, *, annotations: Any = None, container: Any = None, spec: Any = None, **more: Any) -> Any:  # noqa: ANN401 - JSON
    """A Knative Service. ``spec`` is added to its template's spec, ``more`` to the Service's spec."""
    template = {
        "metadata": {"annotations": annotations or {}},
        "spec": {"containers": [{"image": IMAGE, **(container or {})}], **(spec or {})},
    }
    metadata = {"name": name, **more.pop("metadata", {})}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"template": template, **more},
    }


def volume(name: str, **source: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """A template spec with one volume."""
    return {"volumes": [{"name": name, **source}]}


def mounted(name: str, path: str) -> dict[str, Any]:
    return {"volumeMounts": [{"name": name, "mountPath": path, "readOnly": True}]}


RUNNING = [
    service("hello-env", container={"env": [{"name": "TARGET", "value": "sample"}]}),
    service("command-args", container={"command": ["/bin/sh"], "args": ["-c", "exec /server"]}),
    service("own-port", container={"ports": [{"containerPort": 9123}]}),
    service("named-port", container={"ports": [{"name": "http1", "containerPort": 8080}]}),
    service("concurrency", spec={"containerConcurrency": 50}),
    service("soft-target", annotations={f"{_SCALING}/target": "200"}),
    service("utilization", annotations={f"{_SCALING}/target-utilization-percentage": "80"}),
    service("rps", annotations={f"{_SCALING}/metric": "rps", f"{_SCALING}/target": "150"}),
    service("bounds", annotations={f"{_SCALING}/min-scale": "1", f"{_SCALING}/max-scale": "3"}),
    service("initial", annotations={f"{_SCALING}/initial-scale": "2"}),
    service("windows", annotations={f"{_SCALING}/window": "40s", f"{_SCALING}/panic-window-percentage": "20.0"}),
    service("delays", annotations={f"{_SCALING}/scale-down-delay": "15m"}),
    service("activation", annotations={f"{_SCALING}/activation-scale": "2"}),
    service("hpa", annotations={f"{_SCALING}/class": f"hpa.{_SCALING}", f"{_SCALING}/metric": "cpu"}),
    service("timeouts", spec={"timeoutSeconds": 100, "responseStartTimeoutSeconds": 50}),
    service(
        "resources",
        container={"resources": {"requests": {"cpu": "100m", "memory": "64M"}, "limits": {"cpu": 1, "memory": "128M"}}},
    ),
    service("probes", container={"readinessProbe": _PAGE, "livenessProbe": _PAGE, "startupProbe": _PAGE}),
    # An app that listens shortly after its start.
    service(
        "strict-liveness",
        container={
            "command": ["/bin/sh", "-c", "sleep 0.1; exec /server"],
            "livenessProbe": {"httpGet": {"path": "/me"}, "periodSeconds": 1, "failureThreshold": 1},
        },
    ),
    service("delayed-probe", container={"readinessProbe": {"httpGet": {"path": "/me"}, "initialDelaySeconds": 1}}),
    service(
        "one-long-probe",
        container={
            "startupProbe": {
                "tcpSocket": {"port": 8080},
                "timeoutSeconds": 240,
                "periodSeconds": 240,
                "failureThreshold": 1,
            }
        },
    ),
    service("redirected", metadata={"annotations": {"networking.knative.dev/http-protocol": "redirected"}}),
    service("secret-env", container={"envFrom": [{"secretRef": {"name": "hidden"}}]}),
    service("secret-file", container=mounted("s", "/etc/hidden"), spec=volume("s", secret={"secretName": "hidden"})),
    service("config-file", container=mounted("c", "/etc/words"), spec=volume("c", configMap={"name": "words"})),
    service(
        "projected",
        container=mounted("p", "/etc/both"),
        spec=volume("p", projected={"sources": [{"secret": {"name": "hidden"}}, {"configMap": {"name": "words"}}]}),
    ),
    service(
        "empty-dir", container={"volumeMounts": [{"name": "d", "mountPath": "/cache"}]}, spec=volume("d", emptyDir={})
    ),
    service(
        "downward", container={"env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}
    ),
    service(
        "two-containers",
        container={"ports": [{"containerPort": 8080}]},
        spec={
            "containers": [
                {"image": IMAGE, "ports": [{"containerPort": 8080}]},
                {"image": IMAGE, "name": "beside", "command": ["/bin/sleep", "100000"]},
            ]
        },
    ),
    service(
        "init",
        container={"command": ["/bin/sh", "-c", "test -e /data/made && exec /server"], **mounted("d", "/data")},
        spec={
            **volume("d", emptyDir={}),
            "initContainers": [
                {
                    "image": IMAGE,
                    "command": ["/bin/touch", "/data/made"],
                    "volumeMounts": [{"name": "d", "mountPath": "/data"}],
                }
            ],
        },
    ),
    service("cluster-local", metadata={"labels": {_PUBLIC: "cluster-local"}}),
    service("user", container={"securityContext": {"runAsUser": 1000, "readOnlyRootFilesystem": False}}),
    service(
        "restricted",
        container={
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            }
        },
    ),
    service("account", spec={"serviceAccountName": "default", "imagePullSecrets": [{"name": "absent"}]}),
    service("tagged", traffic=[{"latestRevision": True, "percent": 100, "tag": "current"}]),
    service("rollout", metadata={"annotations": {"serving.knative.dev/rollout-duration": "10s"}}),
    {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Configuration",
        "metadata": {"name": "apart"},
        "spec": {"template": {"spec": {"containers": [{"image": IMAGE}]}}},
    },
    {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Route",
        "metadata": {"name": "apart"},
        "spec": {"traffic": [{"configurationName": "apart", "percent": 100}]},
    },
]
# By name: the manifest, and the text that describe must print.
NOT_RUNNING = {
    "no-image": (service("no-image", container={"image": "dev.local/never-built:1"}), "never-built"),
    "crashing": (service("crashing", container={"command": ["/bin/sh", "-c", "echo broken; exit 9"]}), "broken"),
    "silent": (service("silent", container={"command": ["/bin/sleep", "100000"]}), "listen"),
    "no-secret": (service("no-secret", container={"envFrom": [{"secretRef": {"name": "absent"}}]}), "absent"),
}
# By name: the manifest, the text in the output of apply, and the exit code.
LIMITED = {
    "host-path": (
        service("host-path", container=mounted("v", "/data"), spec=volume("v", hostPath={"path": "/"})),
        "HostPath volume support is disabled, but found HostPath volume v",
        1,
    ),
    "init-port": (
        service("init-port", spec={"initContainers": [{"image": IMAGE, "ports": [{"containerPort": 80}]}]}),
        "initContainers[0].ports: Forbidden: field not allowed in an init container",
        1,
    ),
    "two-ports": (
        service("two-ports", container={"ports": [{"containerPort": 8080}, {"containerPort": 8081}]}),
        "ports",
        1,
    ),
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("manifests")
    app_image(folder / "image.tar")
    with staged(folder / "state") as stage:
        stage("image", "import", str(folder / "image.tar"))
        applied(stage, folder, [*BESIDE, *RUNNING, *(result for result, _ in NOT_RUNNING.values())])
        yield stage
    # Remaining networks would be mounts that prevent deletion of the folder.
    assert not list((folder / "state" / "networks").iterdir())


def applied(stage: Stage, folder: Path, manifests: list[Any]) -> str:
    path = folder / "manifests.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    return stage("apply", "-f", str(path)).output


def status_of(serving: Stage, kind: str, name: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads(serving("get", kind, name, "-o", "json").stdout).get("status", {})


def ready_condition(status: Any) -> Any:  # noqa: ANN401 - JSON
    return next((condition for condition in status.get("conditions", ()) if condition["type"] == "Ready"), {})


@pytest.mark.parametrize("manifest", RUNNING, ids=lambda resource: f"{resource['kind']}-{resource['metadata']['name']}")
def test_documented_manifest_becomes_ready(serving: Stage, manifest: Any) -> None:  # noqa: ANN401 - JSON
    kind, name = manifest["kind"].lower(), manifest["metadata"]["name"]
    until_s = time.monotonic() + _PATIENCE_S
    while (result := ready_condition(status_of(serving, kind, name))).get("status") != "True":
        assert time.monotonic() < until_s, result
        time.sleep(0.1)
    if kind == "service" and name != "cluster-local":
        assert f"PORT={9123 if name == 'own-port' else 8080} " in serving("invoke", name, "/me").stdout


@pytest.mark.parametrize("name", NOT_RUNNING)
def test_describe_reports_why_a_service_cannot_run(serving: Stage, name: str) -> None:
    message, until_s = NOT_RUNNING[name][1], time.monotonic() + _PATIENCE_S
    while message not in serving("describe", name).output:
        assert time.monotonic() < until_s, serving("describe", name).output
        time.sleep(0.1)


@pytest.mark.parametrize("name", LIMITED)
def test_unsupported_field_is_rejected_with_its_path(serving: Stage, tmp_path: Path, name: str) -> None:
    manifest, message, code = LIMITED[name]
    path = tmp_path / "one.json"
    path.write_text(json.dumps(manifest))
    assert message in serving("apply", "-f", str(path), code=code).output


@pytest.mark.parametrize(
    "host",
    [
        "cluster-local.default",
        "hello-env.default.svc",
        "hello-env.default.svc.cluster.local",
        "hello-env.default.localhost",
    ],
)
def test_container_reaches_services_by_cluster_names(serving: Stage, host: str) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while "PORT=8080 " not in (text := exec_in(serving, "bounds", "wget", "-qO-", f"http://{host}/me")):
        assert time.monotonic() < until_s, text
        time.sleep(0.1)


def exec_in(serving: Stage, name: str, *command: str) -> str:
    """Output of a command in a container of a service, or the error while the service has no ready pod."""
    done = subprocess.run(
        [sys.executable, "-m", "serving", "exec", name, "--state", str(serving.state), "--", *command],
        capture_output=True,
        check=False,
    )
    return (done.stdout or done.stderr).decode()


def test_image_in_use_is_removed_only_by_force(serving: Stage, tmp_path: Path) -> None:
    refused = serving("image", "rm", IMAGE, code=1).output
    assert f"image {IMAGE} is in use by " in refused
    assert "service default/own-port" in refused
    assert "--force" in refused
    assert IMAGE in serving("image", "list", "-o", "name").stdout
    app_image(tmp_path / "spare.tar", name="test.local/spare:1", Env=["TARGET=spare"])
    serving("image", "import", str(tmp_path / "spare.tar"))
    spare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "spare"}}
    spare["spec"] = {"containers": [{"name": "c", "image": "test.local/spare:1"}]}
    applied(serving, tmp_path, [spare])
    assert "in use by pod default/spare; " in serving("image", "rm", "test.local/spare:1", code=1).output
    assert serving("image", "rm", "--force", "test.local/spare:1").output == "test.local/spare:1 removed\n"
    serving("delete", "pod/spare")
    app_image(tmp_path / "free.tar", name="test.local/free:1", Env=["TARGET=free"])
    serving("image", "import", str(tmp_path / "free.tar"))
    assert serving("image", "rm", "test.local/free:1").output == "test.local/free:1 removed\n"
