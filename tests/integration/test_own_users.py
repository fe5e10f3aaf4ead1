"""Containers with their own user namespace (``hostUsers: false``), started by root."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serving.core.model.objects import Object, nested
from serving.home.containers.network import remove_leftovers
from serving.home.containers.podsandbox import ContainerHost, container_host
from serving.home.controllers.workloads import is_ready
from serving.home.pods.userranges import DEFAULT_RANGE, used_ranges
from serving.home.processes.ownusers import IDS_PER_POD
from serving.net.cluster.kinds import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, SECRET
from tests.eventually import until
from tests.integration.image_stage import BUSYBOX, app_image, needs_containers
from tests.integration.local_stage import Machine, Template, controlled, manifest, status_of, template_process

pytestmark = [needs_containers()]
IMAGE = "test.local/web:1"

# Each attack succeeds for root of the host with all capabilities.
ATTACKS = {
    "device": "/bin/busybox mknod /x c 1 3",
    "mount": "/bin/busybox mount -t tmpfs x /tmp",
    "system": "/bin/busybox mount -o remount,rw /sys",
    "null": "/bin/busybox chmod 666 /dev/null",
    "settings": "/bin/busybox mount -o remount,rw /proc/sys",
    "forwarding": "echo 1 > /proc/sys/net/ipv4/ip_forward",
    "larger map": "echo 0 0 4294967295 > /proc/self/uid_map",
    "kernel log": "/bin/busybox dmesg -n 8",
    "weight": "/bin/busybox nice -n -5 true",
}


def host_of(state: Path, runtime: str = "") -> ContainerHost:
    host, reason = container_host(state, runtime)
    assert host is not None, reason
    if host.no_users:
        pytest.skip(host.no_users)
    app_image(state.parent / "image.tar")
    host.images.store.add(state.parent / "image.tar", is_kept=True)
    return host


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("users") / "state"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(scope="module", params=["crun", pytest.param("runc", marks=pytest.mark.slow)])
def host(request: pytest.FixtureRequest, state: Path) -> Iterator[ContainerHost]:
    yield host_of(state, request.param)
    remove_leftovers(state)


@pytest.fixture(scope="module")
def template(state: Path) -> Iterator[Template]:
    with template_process(state) as new_template:
        yield new_template


@pytest.fixture
async def machine(host: ContainerHost, template: Template) -> AsyncIterator[Machine]:
    async with controlled(template.state, containers=host) as new_machine:
        yield new_machine
        await new_machine.clear()


def container_pod(name: str = "p", *, volumes: list[Object] | None = None, **container: Any) -> Object:  # noqa: ANN401 - fields of the API
    resource = manifest(name)
    resource["metadata"]["annotations"] = {}
    resource["spec"]["hostUsers"] = False
    resource["spec"]["volumes"] = volumes or []
    resource["spec"]["containers"] = [{"name": "user-container", "image": IMAGE, **container}]
    return resource


def shell(text: str) -> list[str]:
    return ["/bin/sh", "-c", f"{text}; exec /server"]


def process_of(machine: Machine, name: str = "p") -> Path:
    return Path("/proc", str(machine.kubelet.find("default", name).sessions["user-container"]))


def host_user_of_root(machine: Machine, name: str = "p") -> int:
    """The user ID on the host to which root of the container is mapped."""
    return process_of(machine, name).stat().st_uid


async def test_root_of_container_is_mapped_to_another_host_user(machine: Machine) -> None:
    await machine.start(container_pod(command=shell("echo mine > /file; echo said >> /dev/stdout")))
    status, page = await machine.get(await machine.ready(), "/me")
    assert (status, "user=0:0" in page) == (200, True)
    await until(lambda: "said" in machine.log("p"))
    mapped = (process_of(machine) / "uid_map").read_text().split()
    assert (mapped[0], mapped[2]) == ("0", str(IDS_PER_POD))
    first = int(mapped[1])
    assert DEFAULT_RANGE.first <= first < DEFAULT_RANGE.first + DEFAULT_RANGE.count
    assert host_user_of_root(machine) == first
    (file,) = (machine.state.path / "pods").glob("*/containers/*/upper/file")
    assert file.stat().st_uid == first
    # A runtime changes the owner of a container's streams to its user, who must not own a device of the host.
    assert str((process_of(machine) / "fd" / "0").readlink()).startswith("pipe:")


async def test_pods_with_own_users_have_disjoint_user_ranges(machine: Machine) -> None:
    for name in ("p", "q"):
        await machine.start(container_pod(name))
    for name in ("p", "q"):
        await machine.ready(name)
    firsts = {host_user_of_root(machine, name) for name in ("p", "q")}
    assert len(firsts) == 2
    assert {(first, IDS_PER_POD) for first in firsts} <= used_ranges()


async def test_volumes_have_the_same_owners_as_without_own_users(machine: Machine) -> None:
    for kind, data in ((CONFIG_MAP, "value"), (SECRET, "c2VjcmV0")):
        await machine.cluster.create(kind, {"metadata": {"name": "s", "namespace": "default"}, "data": {"key": data}})
    await machine.cluster.create(
        PERSISTENT_VOLUME_CLAIM, {"metadata": {"name": "c", "namespace": "default"}, "spec": {}}
    )
    volumes: list[Object] = [
        {"name": "config", "configMap": {"name": "s"}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "empty", "emptyDir": {}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    part = {"name": "empty", "mountPath": "/part", "subPath": "a/b"}
    script = (
        "cat /config/key /secret/key; touch /claim/mine /empty/mine /part/mine; touch /config/x || echo refused; "
        "/bin/busybox chown 1000:1000 /claim/mine; stat -c '%u %n' /claim/mine /empty/mine /empty/a/b/mine /config/key"
    )
    await machine.start(container_pod(volumes=volumes, volumeMounts=[*mounts, part], command=shell(script)))
    await machine.ready()
    await until(lambda: "/config/key" in machine.log("p"))
    lines = machine.log("p").splitlines()
    assert lines[0] == "valuesecrettouch: /config/x: Read-only file system"
    assert lines[1:6] == ["refused", "1000 /claim/mine", "0 /empty/mine", "0 /empty/a/b/mine", "0 /config/key"]
    # On disk, a claim stores the user IDs of the container, because the next pod has another mapping.
    assert (machine.state.path / "volumes" / "default" / "c" / "mine").stat().st_uid == 1000
    (file_in_volume,) = (machine.state.path / "pods").glob("*/.volumes/empty/mine")
    assert file_in_volume.stat().st_uid == host_user_of_root(machine)


async def test_non_root_user_of_container_runs_and_is_probed(machine: Machine) -> None:
    probe = {"exec": {"command": ["/bin/sh", "-c", "test $(id -u) = 1000 && echo probed >> /dev/stdout"]}}
    await machine.start(
        container_pod(
            readinessProbe={**probe, "periodSeconds": 1},
            securityContext={"runAsUser": 1000},
            command=shell("echo said >> /dev/stdout; echo erred >> /dev/stderr"),
        )
    )
    assert "user=1000:" in (await machine.get(await machine.ready(), "/me"))[1]
    assert {"said", "erred"} <= set(machine.log("p").split())
    assert "probed" in (machine.state.logs / "pods" / "default" / "p" / "user-container.probe.log").read_text()


async def test_container_with_own_users_restarts_and_listens_below_1024(machine: Machine) -> None:
    script = "test -e /left && echo dirty; touch /left; sleep 0.2; exit 3"
    await machine.start(container_pod(command=["/bin/sh", "-c", script]))
    await machine.until(lambda resource: status_of(resource).get("restartCount", 0) >= 2)
    assert "dirty" not in machine.log("p")
    low = container_pod("low", ports=[{"containerPort": 80}])
    await machine.start(low)
    assert "PORT=80 " in (await machine.get(await machine.ready("low"), "/me"))[1]


async def test_root_of_container_has_no_rights_on_the_host(machine: Machine) -> None:
    tried = "; ".join(f"({attack}) >/dev/null 2>&1 && echo 'done: {name}'" for name, attack in ATTACKS.items())
    await machine.start(container_pod(command=shell(f"{tried}; echo over")))
    await machine.ready()
    await until(lambda: "over" in machine.log("p"))
    assert [line for line in machine.log("p").splitlines() if line.startswith("done: ")] == []


async def test_host_files_are_inaccessible_to_users_of_a_container(machine: Machine) -> None:
    """As after an escape: a process as the host user of the container's root, in the host's mount namespace."""
    await machine.start(container_pod())
    await machine.ready()
    first, state = host_user_of_root(machine), machine.state.path
    (state / "secret").write_text("x")
    for tried in (
        ("ls", str(state)),
        ("cat", f"{state}/secret"),
        ("touch", "/etc/serving-escaped"),
        ("chmod", "666", "/dev/null"),
        ("cat", "/etc/shadow"),
        ("kill", str(os.getpid())),
    ):
        done = await asyncio.to_thread(
            subprocess.run,
            [str(BUSYBOX), *tried],
            user=first,
            group=first,
            extra_groups=[],
            capture_output=True,
            check=False,
        )
        assert b"ermi" in done.stderr, (tried, done)


async def test_user_outside_the_range_of_the_pod_is_rejected(machine: Machine) -> None:
    await machine.start(container_pod(securityContext={"runAsUser": IDS_PER_POD}))
    assert "users and groups below 65536 with hostUsers: false" in await refusal(machine)


async def refusal(machine: Machine) -> str:
    pod = await machine.until(lambda resource: (nested(status_of(resource), "state", "waiting") or {}).get("message"))
    waiting = status_of(pod)["state"]["waiting"]
    assert waiting["reason"] == "CreateContainerConfigError"
    return str(waiting["message"])


async def test_pod_with_own_users_does_not_run_if_host_cannot_map_users(
    host: ContainerHost, template: Template
) -> None:
    host_without_users = msgspec.structs.replace(host, users_place="", no_users="overlay: Invalid argument")
    async with controlled(template.state, containers=host_without_users) as machine:
        await machine.start(container_pod())
        why = "this machine cannot give containers separate users: overlay: Invalid argument"
        assert why in await refusal(machine)
        await machine.clear()


async def test_pod_retains_its_users_after_control_restart(host: ContainerHost, template: Template) -> None:
    async with controlled(template.state, containers=host) as machine:
        await machine.start(container_pod())
        await machine.ready()
        first, process = host_user_of_root(machine), process_of(machine)
    async with controlled(template.state, containers=host) as machine:
        await machine.ready()
        assert process_of(machine) == process
        os.kill(int(process.name), signal.SIGKILL)
        await machine.until(lambda resource: status_of(resource).get("restartCount", 0) == 1 and is_ready(resource))
        assert host_user_of_root(machine) == first
        await machine.start(container_pod("q"))
        await machine.ready("q")
        assert host_user_of_root(machine, "q") != first
        await machine.clear()
        # The folders of pods are removed, although other users own files in them.
        await until(lambda: not list(machine.state.pods.iterdir()))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its root")
def test_user_namespace_error_contains_the_reason_of_the_kernel(tmp_path: Path) -> None:
    # In a changed root, the kernel creates no user namespace (unshare(2)).
    code = "import os, sys; from serving.home.processes.confine import open_users; os.chroot(sys.argv[1]); open_users('0 0 1', '0 0 1')"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, text=True)
    assert "PermissionError: [Errno 1] no user namespace: Operation not permitted: 'unshare'" in done.stderr
