"""Eviction of pods that use more disk space than their limits, or when the disk is nearly full."""

import asyncio
import os
import shlex
from pathlib import Path

import pytest

from serving.core.model.objects import Object, nested
from serving.home.kubelet.container import RestartSettings
from serving.home.kubelet.diskwatch import disk_use
from serving.home.pods.diskbudget import EVICTED, is_evicted
from serving.net.cluster.kinds import DEPLOYMENT, EVENT, POD
from serving.net.cluster.port import EventType
from tests.integration.local_stage import HELLO, Machine, controlled, deployment, manifest, status_of, template_process
from tests.integration.test_isolation import PYTHON, command

LIMIT = {"limits": {"ephemeral-storage": "1Mi"}}


def writing(mebibytes: int, folder: str = "$HOME") -> str:
    """A command that writes a file and then starts the app."""
    text = f"head -c {mebibytes << 20} /dev/zero > {folder}/filled; exec {PYTHON} {HELLO}"
    return shlex.join(["sh", "-c", text])


async def reasons(machine: Machine, name: str) -> list[str]:
    events = (await machine.cluster.list(EVENT)).items
    return [
        event["message"] for event in events if event["reason"] == EVICTED and event["involvedObject"]["name"] == name
    ]


def has_ended_after_eviction(pod: Object) -> bool:
    """Whether an evicted pod has ended; its address is removed then."""
    return is_evicted(pod) and "podIP" not in pod["status"]


async def until_evicted(machine: Machine, name: str) -> Object:
    """Wait until the pod is evicted and has ended."""
    async with asyncio.timeout(60):
        listing = await machine.cluster.list(POD)
        items = [item for item in listing.items if item["metadata"]["name"] == name and has_ended_after_eviction(item)]
        if items:
            return items[0]
        async with machine.cluster.watch(POD, resource_version=listing.resource_version) as events:
            async for event in events:
                assert event.type is not EventType.DELETED
                if event.object["metadata"]["name"] == name and has_ended_after_eviction(event.object):
                    return event.object
    raise AssertionError("the watch ended")


async def test_pod_above_ephemeral_storage_limit_is_evicted_and_others_are_not(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(manifest("other", command(HELLO), resources=LIMIT))
            other = await machine.ready("other")
            await machine.start(manifest("p", writing(5), resources=LIMIT))
            await until_evicted(machine, "p")
            (message,) = await reasons(machine, "p")
            assert message.startswith("Pod ephemeral local storage usage exceeds the total limit of containers 1Mi")
            assert (await machine.get(other))[0] == 200
            assert await reasons(machine, "other") == []


async def test_volume_above_size_limit_evicts_its_pod(tmp_path: Path) -> None:
    pod = manifest("p", writing(5, "$HOME/data"), volumeMounts=[{"name": "v", "mountPath": "/data"}])
    pod["spec"]["volumes"] = [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(pod)
            status = (await until_evicted(machine, "p"))["status"]
            # The pod object stays; its files, including the volume, are deleted.
            assert not list(template.state.path.rglob("filled"))
            assert 'Usage of EmptyDir volume "v"' in status["message"]
            conditions = {condition["type"]: condition["status"] for condition in status["conditions"]}
            assert (conditions["Ready"], conditions["DisruptionTarget"]) == ("False", "True")
            await machine.cluster.delete(POD, "default", "p")
            await machine.until_gone("p")
            (message,) = await reasons(machine, "p")
            assert 'Usage of EmptyDir volume "v" exceeds the limit "1Mi"' in message


async def test_repeatedly_evicted_pods_are_replaced_after_a_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = RestartSettings(pause_first_s=3.0, pause_max_s=3.0)
    monkeypatch.setattr("serving.home.kubelet.kubelet._PATIENCE", patience)
    monkeypatch.setattr("serving.home.kubelet.diskwatch._PERIOD_S", 0.2)
    looping = deployment(1, writing(5))
    looping["spec"]["template"]["spec"]["containers"][0]["resources"] = LIMIT
    phases: dict[str, list[str]] = {}
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine, asyncio.timeout(60):
            await machine.cluster.create(DEPLOYMENT, looping)
            async with machine.cluster.watch(POD, resource_version="0") as events:
                async for event in events:
                    pod = event.object
                    why = nested(status_of(pod), "state", "waiting", "reason")
                    phase = EVICTED if is_evicted(pod) else why or "runs"
                    seen = phases.setdefault(pod["metadata"]["name"], [])
                    if event.type is not EventType.DELETED and phase not in seen:
                        seen.append(phase)
                    if sum(EVICTED in each_phases for each_phases in phases.values()) == 3:
                        break
    first, second, third, *_ = phases.values()
    # The first pod is replaced immediately, later ones after a backoff, during which the replacement waits.
    assert "CrashLoopBackOff" not in first + second
    assert third.index("CrashLoopBackOff") < third.index(EVICTED)


async def test_disk_pressure_evicts_pod_with_disk_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            for name, text in (("empty", command(HELLO)), ("full", writing(5))):
                await machine.start(manifest(name, text))
                await machine.ready(name)
            usage = os.statvfs(tmp_path)
            total = usage.f_blocks * usage.f_frsize
            monkeypatch.setattr(
                "shutil.disk_usage", lambda _: type("Usage", (), {"total": total, "free": total // 1000})
            )
            await until_evicted(machine, "full")
            (message,) = await reasons(machine, "full")
            assert "The node was low on resource: ephemeral-storage" in message
            assert await reasons(machine, "empty") == []


async def test_disk_usage_of_pod_includes_its_folder_and_logs(tmp_path: Path) -> None:
    folder, logs = tmp_path / "pod", tmp_path / "logs"
    layer = folder / "containers" / "app" / "upper"
    for path in (layer / "file", folder / ".volumes" / "v" / "file", logs / "app.log.1", logs / "queue-proxy.log"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(2**20))
    os.link(layer / "file", layer / "again")
    (folder / "link").symlink_to("/usr")
    new_disk_use = disk_use(folder, logs)
    assert 4 * 2**20 <= new_disk_use.total_bytes < 5 * 2**20
    assert 2 * 2**20 <= new_disk_use.containers["app"] < 3 * 2**20
    assert 2**20 <= new_disk_use.volumes["v"] < 2 * 2**20
    assert disk_use(tmp_path / "none", tmp_path / "none").total_bytes == 0
