"""Pods that cannot run: each reports a reason, is retried after a pause, and is removed completely."""

import asyncio
import contextlib
import copy
import random
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.core.model.objects import Object
from serving.home.containers.network import remove_leftovers
from serving.home.containers.podsandbox import container_host
from serving.home.kubelet.container import RestartSettings
from serving.home.pods.podfolder import LOG_BYTES_MAX
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import DEPLOYMENT, POD
from serving.net.cluster.port import EventType
from tests.eventually import until
from tests.integration.image_stage import app_image, needs_containers
from tests.integration.local_stage import Machine, controlled, manifest, status_of, template_process

IMAGE = "test.local/web:1"
_PROBE: Object = {
    "initialDelaySeconds": 1,
    "periodSeconds": 5,
    "timeoutSeconds": 1,
    "successThreshold": 1,
    "failureThreshold": 3,
    "terminationGracePeriodSeconds": 1,
    "exec": {"command": ["true"]},
}
_WRONG: tuple[object, ...] = (
    -3,
    -1,
    0,
    2**70,
    1.5,
    True,
    "",
    "x\0y",
    "../..",
    [],
    ["x"],
    {},
    {"name": "x"},
    [None],
    None,
)


@pytest.fixture(params=["processes", pytest.param("containers", marks=needs_containers())])
async def machine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Machine]:
    host = None
    if request.param == "containers":
        host, reason = container_host(tmp_path / "state")
        assert host is not None, reason
        app_image(tmp_path / "image.tar")
        host.images.store.add(tmp_path / "image.tar", is_kept=True)
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state, containers=host) as new_machine:
            yield new_machine
    remove_leftovers(tmp_path / "state")


def pod_template() -> Object:
    """A pod template with fields of all kinds."""
    container = {
        "name": "one",
        "image": IMAGE,
        "command": ["/bin/sleep", "1000"],
        "args": [],
        "env": [{"name": "A", "value": "b"}, {"name": "F", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "envFrom": [{"configMapRef": {"name": "none", "optional": True}}],
        "ports": [{"containerPort": 8080, "name": "http1"}],
        "workingDir": "/",
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "1m"}},
        "securityContext": {"runAsUser": 0, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "v", "mountPath": "/etc/v", "subPath": ""}],
        "readinessProbe": _PROBE,
        "livenessProbe": {**_PROBE, "exec": None, "httpGet": {"path": "/", "port": 1, "httpHeaders": []}},
        "startupProbe": {**_PROBE, "exec": None, "tcpSocket": {"port": 1}},
    }
    spec = {
        "initContainers": [{"name": "first", "image": IMAGE, "command": ["/bin/sleep", "0"]}],
        "containers": [container],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "downwardAPI": {"items": []}}],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 1,
        "securityContext": {},
        "imagePullSecrets": [],
        "nodeName": "local",
    }
    return {"metadata": {"labels": {}, "annotations": {}}, "spec": spec}


def paths(value: object, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all nested values."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*before, key)
        yield from paths(child, (*before, key))


def changed(template: Object, path: tuple[str | int, ...], value: object) -> Object:
    """A copy of a template with another value at a path."""
    result = copy.deepcopy(template)
    inner: Any = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return result


def fuzzed(count: int, *, seed: int) -> list[Object]:
    """Templates with one or two unexpected values."""
    dice, results = random.Random(seed), []
    for _ in range(count):
        template = pod_template()
        for _ in range(dice.choice((1, 1, 2))):
            places = [path for path in paths(template["spec"]) if path != ("nodeName",)]
            template["spec"] = changed(template["spec"], dice.choice(places), dice.choice(_WRONG))
        results.append(template)
    return results


def deployment_of(name: str, template: Object) -> Object:
    """A Deployment of one pod with this template."""
    template["metadata"]["labels"]["app"] = name
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def is_explained(pod: Object) -> bool:
    """Whether a pod runs, has ended, or reports the reason for its waiting."""
    status = pod.get("status") or {}
    states = [
        entry["state"] for key in ("containerStatuses", "initContainerStatuses") for entry in status.get(key) or ()
    ]
    return (
        status.get("phase") in ("Running", "Succeeded", "Failed")
        or bool(status.get("message"))
        or any(state.get("waiting", {}).get("reason") != "PodInitializing" for state in states)
    )


@contextlib.asynccontextmanager
async def counted(cluster: MemoryCluster) -> AsyncIterator[Counter[str]]:
    """The number of created pods by label "app"."""
    counts: Counter[str] = Counter()

    async def count() -> None:
        async with cluster.watch(POD, resource_version="0") as events:
            async for event in events:
                if event.type is EventType.ADDED:
                    counts[event.object["metadata"]["labels"]["app"]] += 1

    counting = asyncio.create_task(count())
    yield counts
    counting.cancel()


def mounts(folder: Path) -> list[str]:
    """Mounts below a folder, except networks created ahead."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if str(folder) in line and "/ahead-" not in line]


async def delete_all(machine: Machine) -> None:
    """Delete everything, and wait until no pod is left."""
    for kind in (DEPLOYMENT, POD):
        for item in (await machine.cluster.list(kind)).items:
            await machine.cluster.delete(kind, "default", item["metadata"]["name"], grace_s=0)
    await until(lambda: not machine.kubelet.pod_count, within_s=90)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_invalid_pod_specs_create_one_pod_each_and_leave_nothing_behind(machine: Machine, seed: int) -> None:
    templates = fuzzed(40, seed=seed)
    async with counted(machine.cluster) as counts:
        for number, template in enumerate(templates):
            await machine.cluster.create(DEPLOYMENT, deployment_of(f"d{number}", template))
        unexplained: list[Object] = []

        async def are_all_explained() -> bool:
            unexplained[:] = [pod for pod in (await machine.cluster.list(POD)).items if not is_explained(pod)]
            return not unexplained and len(counts) == len(templates)

        with contextlib.suppress(TimeoutError):
            await until(are_all_explained)
        assert [(resource["spec"], resource.get("status")) for resource in unexplained] == []
        assert set(counts.values()) == {1}
        await delete_all(machine)
    assert list(machine.state.pods.iterdir()) == []
    assert mounts(machine.state.path) == []


async def test_pod_that_cannot_run_reports_reason_and_is_retained(machine: Machine) -> None:
    resource = manifest(readinessProbe={"periodSeconds": -3})
    resource["metadata"]["annotations"]["serving.dev/command"] = "sleep 1000"
    await machine.start(resource)
    pod = await machine.until(
        lambda fields: "periodSeconds" in (status_of(fields).get("state") or {}).get("waiting", {}).get("message", "")
    )
    assert status_of(pod)["state"]["waiting"]["reason"] == "CreateContainerError"
    assert not list(machine.state.pods.iterdir())
    await delete_all(machine)


async def test_failed_pod_start_is_retried(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.home.kubelet.kubelet._PATIENCE", RestartSettings(pause_first_s=0.01, pause_max_s=0.05))
    folders = machine.state.pods
    folders.rename(folders.with_name("away"))
    folders.write_text("no folder")
    await machine.start(manifest())
    await machine.until(lambda entry: (entry.get("status") or {}).get("reason") == "CreateContainerError")
    folders.unlink()
    folders.with_name("away").rename(folders)
    pod = await machine.ready()
    assert "message" not in pod["status"]
    await delete_all(machine)


async def test_full_log_disk_does_not_stop_the_kubelet(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = machine.state.logs / "pods"
    logs.mkdir(parents=True, exist_ok=True)
    size = LOG_BYTES_MAX + 2**20
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(logs)], check=False).returncode:  # noqa: ASYNC221
        pytest.skip("a small file system cannot be mounted here")
    try:
        monkeypatch.setattr("serving.home.kubelet.kubelet._ROTATION_PERIOD_S", 0.05)
        writes = f"head -c {size} /dev/zero; while :; do echo alive; sleep 0.05; done"
        await machine.start(manifest(command=f"sh -c '{writes}'"))
        log = logs / "default" / "p" / "user-container.log"
        await until(
            lambda: (
                log.exists() and 0 < log.stat().st_size < LOG_BYTES_MAX and not log.with_name(log.name + ".1").exists()
            )
        )
        assert machine.kubelet.pod_count == 1
        await delete_all(machine)
    finally:
        subprocess.run(["umount", "--lazy", str(logs)], check=True)  # noqa: ASYNC221
