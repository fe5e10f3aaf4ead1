"""Pods as containers of images: started, served through their queue-proxy, limited, isolated, adopted, removed."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.core.model.objects import Object, nested
from serving.home.containers.cgroups import Limits
from serving.home.containers.network import remove_leftovers
from serving.home.containers.podsandbox import ContainerHost, container_host
from serving.home.kubelet.virtualnodes import VirtualNodes
from serving.net.cluster.kinds import EVENT, POD, SECRET
from tests.eventually import until
from tests.integration.image_stage import BUSYBOX, app_image, needs_containers
from tests.integration.local_stage import Machine, Template, controlled, manifest, status_of, template_process
from tests.integration.registry_stage import a_registry, login, push

pytestmark = [needs_containers()]
IMAGE = "test.local/web:1"

_FIXED = "httpd -f -p 127.0.0.1:8000 -h ."


def host_of(state: Path) -> ContainerHost:
    host, reason = container_host(state)
    assert host is not None, reason
    return host


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("containers")


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[ContainerHost]:
    new_container_host = host_of(folder / "state")
    app_image(folder / "image.tar")
    new_container_host.images.store.add(folder / "image.tar", is_kept=True)
    yield new_container_host
    # Unmount everything, so that the folder can be deleted.
    remove_leftovers(folder / "state")


@pytest.fixture(scope="module")
def template(folder: Path) -> Iterator[Template]:
    with template_process(folder / "state") as new_template:
        yield new_template


@pytest.fixture
async def machine(host: ContainerHost, template: Template) -> AsyncIterator[Machine]:
    async with controlled(template.state, containers=host) as new_machine:
        yield new_machine
        await new_machine.clear()


def container_pod(**container: Any) -> Object:  # noqa: ANN401 - fields of the API
    resource = manifest()
    resource["metadata"]["annotations"] = {}
    resource["spec"]["containers"] = [{"name": "user-container", "image": IMAGE, **container}]
    return resource


def network_of(process: str) -> str:
    return str(Path(f"/proc/{process}/ns/net").readlink())


async def test_process_pods_with_own_network_listen_on_the_same_port(machine: Machine) -> None:
    for name in ("p", "q"):
        pod = manifest(name, command=f"{BUSYBOX} {_FIXED}", ports=[{"containerPort": 8000}])
        pod["metadata"]["annotations"]["serving.dev/network"] = "pod"
        await machine.start(pod)
    for name in ("p", "q"):
        status, _ = await machine.get(await machine.ready(name), "/nothing")
        assert status == 404
    namespaces = {
        network_of(str(pid))
        for name in ("p", "q")
        for container, pid in machine.kubelet.find("default", name).sessions.items()
        if container != "queue-proxy"
    }
    assert len(namespaces) == 2
    assert network_of("self") not in namespaces


async def test_container_uses_environment_of_image_and_default_port(machine: Machine) -> None:
    await machine.start(container_pod())
    pod = await machine.ready()
    status, page = await machine.get(pod, "/me")
    assert (status, page.strip()) == (200, "TARGET=image PORT=8080 user=0:0 host=p pid=1 home=/root")
    assert "started" in machine.log("p")


async def test_pod_pulls_image_with_its_image_pull_secrets(machine: Machine, tmp_path: Path) -> None:
    app_image(tmp_path / "pulled.tar", Env=["TARGET=pulled"])
    async with a_registry(tmp_path, is_open=False) as registry:
        push(tmp_path / "pulled.tar", f"{registry}/web:1")
        await machine.cluster.create(SECRET, login(registry))
        resource = container_pod(image=f"{registry}/web:1")
        resource["spec"]["imagePullSecrets"] = [{"name": "absent"}, {"name": "login"}]
        await machine.start(resource)
        pod = await machine.ready()
    assert "TARGET=pulled" in (await machine.get(pod, "/me"))[1]
    assert status_of(pod)["imageID"].startswith(f"{registry}/web@sha256:")
    events = [
        event for event in (await machine.cluster.list(EVENT)).items if event["reason"].endswith("ImagePullSecret")
    ]
    assert ["absent" in event["message"] for event in events] == [True]


async def test_long_pod_name_is_truncated_to_hostname(machine: Machine) -> None:
    resource, name = container_pod(), "p" * 62 + "-and-more"
    resource["metadata"]["name"] = name
    await machine.start(resource)
    assert f"host={'p' * 62} " in (await machine.get(await machine.ready(name), "/me"))[1]


async def test_two_container_pods_listen_on_the_same_port(machine: Machine) -> None:
    for name in ("p", "q"):
        resource = container_pod()
        resource["metadata"]["name"] = name
        await machine.start(resource)
    pages = [(await machine.get(await machine.ready(name), "/me"))[1] for name in ("p", "q")]
    assert ["host=p" in pages[0], "host=q" in pages[1]] == [True, True]


async def test_restarted_container_has_only_files_of_its_image(machine: Machine) -> None:
    await machine.start(
        container_pod(command=["/bin/sh", "-c", "test -e /left && echo dirty; touch /left; sleep 0.2; exit 3"])
    )
    pod = await machine.until(lambda resource: status_of(resource).get("restartCount", 0) >= 2)
    assert status_of(pod)["lastState"]["terminated"]["exitCode"] == 3
    assert "dirty" not in machine.log("p")


async def test_virtual_nodes_run_containers(tmp_path: Path) -> None:
    host = host_of(tmp_path / "state")
    app_image(tmp_path / "image.tar")
    host.images.store.add(tmp_path / "image.tar", is_kept=True)
    nodes = VirtualNodes(
        count=2, count_max=2, cpu="1", memory="1Gi", boot_s=0.0, policy="resource-efficient", anticipates=False
    )
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state, containers=host, virtual=nodes) as machine:
            for number in (1, 2):
                resource = container_pod()
                resource["metadata"]["name"], resource["spec"]["nodeName"] = f"p{number}", f"node-{number}"
                await machine.start(resource)
            pods = [await machine.ready(name) for name in ("p1", "p2")]
            pages = [(await machine.get(pod, "/me"))[1] for pod in pods]
            assert ["host=p1 " in pages[0], "host=p2 " in pages[1]] == [True, True]
            for name in ("p1", "p2"):
                await machine.cluster.delete(POD, "default", name, grace_s=0)
                await machine.until_gone(name)
    remove_leftovers(tmp_path / "state")


async def test_missing_image_is_reported_as_err_image_pull(machine: Machine) -> None:
    await machine.start(container_pod(image="test.local/none:1"))
    pod = await machine.until(
        lambda resource: "waiting" in status_of(resource).get("state", {}) and "none:1" in str(resource["status"])
    )
    assert status_of(pod)["state"]["waiting"]["reason"] == "ErrImagePull"


async def test_container_survives_control_restart(tmp_path: Path) -> None:
    host = host_of(tmp_path / "state")
    app_image(tmp_path / "image.tar")
    host.images.store.add(tmp_path / "image.tar", is_kept=True)
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state, containers=host) as machine:
            await machine.start(container_pod())
            pod = await machine.ready()
            process = next(iter(machine.kubelet._running.values())).sessions["user-container"]
        async with controlled(template.state, containers=host) as machine:
            again = await machine.ready()
            assert next(iter(machine.kubelet._running.values())).sessions["user-container"] == process
            assert (await machine.get(again, "/me"))[0] == 200
            assert again["status"]["podIP"] == pod["status"]["podIP"]
            await machine.cluster.delete(POD, "default", "p")
            await machine.until_gone()
        remaining = [path.name for path in (tmp_path / "state" / "networks").iterdir()]
        assert [name for name in remaining if not name.startswith("ahead-")] == []
    remove_leftovers(tmp_path / "state")


async def test_network_of_later_container_is_created_ahead(machine: Machine) -> None:
    await machine.start(container_pod())
    await machine.ready()
    folder = machine.state.path / "networks"
    await until(lambda: len(machine.kubelet._ahead._ready) == 2)
    ahead = {path.stat().st_ino for path in folder.glob("ahead-*")}
    second = container_pod()
    second["metadata"]["name"] = "q"
    resource = await machine.start(second)
    page = (await machine.get(await machine.ready("q"), "/me"))[1]
    assert "host=q" in page
    assert (folder / resource["metadata"]["uid"]).stat().st_ino in ahead
    assert (await machine.get(await machine.ready("p"), "/me"))[0] == 200


async def test_pod_deleted_during_start_leaves_nothing_behind(machine: Machine) -> None:
    for _ in range(3):
        await machine.start(container_pod())
        await machine.cluster.delete(POD, "default", "p", grace_s=0)
        await machine.until_gone()
    await until(lambda: not list((machine.state.path / "pods").iterdir()))
    remaining = [path.name for path in (machine.state.path / "networks").iterdir()]
    assert [name for name in remaining if not name.startswith("ahead-")] == []


async def test_container_runs_as_user_of_manifest_with_group_and_home_of_image(machine: Machine) -> None:
    await machine.start(container_pod(securityContext={"runAsUser": 1000}))
    page = (await machine.get(await machine.ready(), "/me"))[1]
    assert "user=1000:1001" in page
    assert "home=/srv/web" in page


async def test_container_stdin_is_not_a_device_of_the_host(machine: Machine) -> None:
    script = "cat; stat -L -c %F /proc/self/fd/0; exec /server"
    await machine.start(container_pod(command=["/bin/sh", "-c", script], securityContext={"runAsUser": 1000}))
    await machine.ready()
    # A runtime changes the owner of a container's streams to its user, who could then change the machine's /dev/null.
    assert machine.log("p").startswith("fifo\n")


async def test_root_in_container_has_few_capabilities(machine: Machine) -> None:
    await machine.start(container_pod(command=["/bin/sh", "-c", "cat /proc/self/status; exec /server"]))
    await machine.ready()
    bound = next(line for line in machine.log("p").splitlines() if line.startswith("CapEff:"))
    # Neither SYS_ADMIN (21), nor NET_ADMIN (12), nor MKNOD (27), nor SYS_PTRACE (19).
    assert not any(int(bound.split()[1], 16) >> number & 1 for number in (21, 12, 27, 19))


async def test_localhost_seccomp_profile_filters_system_calls(machine: Machine) -> None:
    profiles = machine.state.path / "seccomp"
    profiles.mkdir(exist_ok=True)
    rules = [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}]
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}
    (profiles / "no-folders.json").write_text(json.dumps(profile))
    context = {"seccompProfile": {"type": "Localhost", "localhostProfile": "no-folders.json"}}
    # 95 is EOPNOTSUPP, which mkdir does not return otherwise.
    command = ["/bin/sh", "-c", "mkdir /tmp/x; exec httpd -f -p 8080 -h /"]
    await machine.start(container_pod(command=command, securityContext=context))
    await machine.ready()
    await until(lambda: "Operation not supported" in machine.log("p"))


async def test_default_seccomp_profile_filters_system_calls(machine: Machine) -> None:
    command = ["/bin/sh", "-c", "unshare -U true && echo made || echo refused; exec /server"]
    for name, kind in (("p", "RuntimeDefault"), ("q", "Unconfined")):
        pod = container_pod(command=command, securityContext={"seccompProfile": {"type": kind}})
        pod["metadata"]["name"] = name
        await machine.start(pod)
        await machine.ready(name)
    await until(lambda: "refused" in machine.log("p"))
    await until(lambda: "made" in machine.log("q"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "none.json"}}},
            "'none.json' to be a profile below",
        ),
    ],
)
async def test_missing_seccomp_profile_is_reported(machine: Machine, spec: Object, message: str) -> None:
    pod = container_pod()
    pod["spec"] |= spec
    await machine.start(pod)
    state = await machine.until(lambda resource: (nested(status_of(resource), "state", "waiting") or {}).get("message"))
    waiting = status_of(state)["state"]["waiting"]
    assert waiting["reason"] == "CreateContainerConfigError"
    assert message in waiting["message"]


async def test_sub_path_that_is_a_link_is_rejected(machine: Machine) -> None:
    volume = {"name": "v", "emptyDir": {}}
    out = ["/bin/sh", "-c", "/bin/busybox ln -s /etc /data/out; /bin/busybox mkdir /data/in; echo own > /data/in/file"]
    for sub_path, name in (("out", "p"), ("in", "q")):
        resource = container_pod(
            volumeMounts=[{"name": "v", "mountPath": "/found", "subPath": sub_path}],
            command=["/bin/sh", "-c", "ls /found; exec /server"],
        )
        resource["metadata"]["name"] = name
        resource["spec"]["volumes"] = [volume]
        first = {"name": "first", "image": IMAGE, "command": out, "volumeMounts": [{"name": "v", "mountPath": "/data"}]}
        resource["spec"]["initContainers"] = [first]
        await machine.start(resource)
    await machine.ready("q")
    assert machine.log("q").startswith("file\n")
    state = await machine.until(
        lambda fields: "waiting" in status_of(fields).get("state", {}) and "link" in str(fields["status"])
    )
    assert "subPath out: out is a link" in status_of(state)["state"]["waiting"]["message"]


async def test_cpu_and_memory_limits_are_set_in_cgroups(machine: Machine) -> None:
    await machine.start(
        container_pod(resources={"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}})
    )
    await machine.ready()
    process = next(iter(machine.kubelet._running.values())).sessions["user-container"]
    read = await asyncio.to_thread(limits_of, process)
    assert read == (str(64 * 2**20), "50000")


async def test_container_start_is_not_throttled_by_its_cpu_limit(machine: Machine) -> None:
    await machine.start(container_pod(resources={"limits": {"cpu": "10m"}}))
    await machine.ready()
    process = next(iter(machine.kubelet._running.values())).sessions["user-container"]
    folder = cgroup_of(process, "cpu")
    stat = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    throttled_s = int(stat["throttled_time"]) / 1e9 if "throttled_time" in stat else int(stat["throttled_usec"]) / 1e6
    # The runtime needs 30 ms of a core, which would be throttled for 3 s at 1 ms per 100 ms.
    assert throttled_s < 1.0


def limits_of(process: int) -> tuple[str, str]:
    """The memory limit and the quota of cpu time in the kernel, for either version."""
    memory, cpu = cgroup_of(process, "memory"), cgroup_of(process, "cpu")
    if memory == cpu:
        return (memory / "memory.max").read_text().strip(), (cpu / "cpu.max").read_text().split()[0]
    return (memory / "memory.limit_in_bytes").read_text().strip(), (cpu / "cpu.cfs_quota_us").read_text().strip()


def cgroup_of(process: int, kind: str) -> Path:
    """The folder of a process in a controller's hierarchy, or in that of all controllers."""
    lines = [line.split(":", 2) for line in Path(f"/proc/{process}/cgroup").read_text().splitlines()]
    places = {text: path.strip("/") for _, kinds, path in lines for text in kinds.split(",")}
    root = Path("/sys/fs/cgroup")
    return root / kind / places[kind] if kind in places else root / places[""]


def test_ended_system_leaves_no_networks_or_cgroups(tmp_path: Path) -> None:
    host = host_of(tmp_path)
    assert host.networks is not None
    host.networks.make("pod", "127.64.9.9")
    assert host.cgroups is not None
    host.cgroups.make("pod/c", Limits(memory_bytes=2**26))
    remove_leftovers(tmp_path)
    assert not list((tmp_path / "networks").iterdir())
    assert not any(folder.exists() for folder in host.cgroups.folders.values())
    # Without containers there is nothing to remove.
    remove_leftovers(tmp_path / "none")
