"""Pods as containers of images: started, served through their queue-proxy, limited, probed, taken over, removed."""

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
    # The object is gone before its namespace: a mount that stays could not be deleted with the folder.
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


def boxed(**container: Any) -> Object:  # noqa: ANN401 - fields of the API
    resource = manifest()
    resource["metadata"]["annotations"] = {}
    resource["spec"]["containers"] = [{"name": "user-container", "image": IMAGE, **container}]
    return resource


def network_of(process: str) -> str:
    return str(Path(f"/proc/{process}/ns/net").readlink())


async def test_processes_with_a_network_of_their_own_listen_on_one_port_side_by_side(machine: Machine) -> None:
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


async def test_an_image_answers_with_its_own_environment_at_the_default_port(machine: Machine) -> None:
    await machine.start(boxed())
    pod = await machine.ready()
    status, page = await machine.get(pod, "/me")
    assert (status, page.strip()) == (200, "TARGET=image PORT=8080 user=0:0 host=p pid=1 home=/root")
    assert "started" in machine.log("p")


async def test_a_pod_pulls_its_image_with_the_credentials_of_its_secrets(machine: Machine, tmp_path: Path) -> None:
    app_image(tmp_path / "pulled.tar", Env=["TARGET=pulled"])
    async with a_registry(tmp_path, is_open=False) as registry:
        push(tmp_path / "pulled.tar", f"{registry}/web:1")
        await machine.cluster.create(SECRET, login(registry))
        resource = boxed(image=f"{registry}/web:1")
        resource["spec"]["imagePullSecrets"] = [{"name": "absent"}, {"name": "login"}]
        await machine.start(resource)
        pod = await machine.ready()
    assert "TARGET=pulled" in (await machine.get(pod, "/me"))[1]
    assert status_of(pod)["imageID"].startswith(f"{registry}/web@sha256:")
    events = [
        event for event in (await machine.cluster.list(EVENT)).items if event["reason"].endswith("ImagePullSecret")
    ]
    assert ["absent" in event["message"] for event in events] == [True]


async def test_a_pod_with_a_long_name_has_its_beginning_as_hostname(machine: Machine) -> None:
    resource, name = boxed(), "p" * 62 + "-and-more"
    resource["metadata"]["name"] = name
    await machine.start(resource)
    assert f"host={'p' * 62} " in (await machine.get(await machine.ready(name), "/me"))[1]


async def test_two_pods_have_the_same_port(machine: Machine) -> None:
    for name in ("p", "q"):
        resource = boxed()
        resource["metadata"]["name"] = name
        await machine.start(resource)
    pages = [(await machine.get(await machine.ready(name), "/me"))[1] for name in ("p", "q")]
    assert ["host=p" in pages[0], "host=q" in pages[1]] == [True, True]


async def test_a_container_that_ends_starts_again_with_the_files_of_its_image(machine: Machine) -> None:
    await machine.start(boxed(command=["/bin/sh", "-c", "test -e /left && echo dirty; touch /left; sleep 0.2; exit 3"]))
    pod = await machine.until(lambda resource: status_of(resource).get("restartCount", 0) >= 2)
    assert status_of(pod)["lastState"]["terminated"]["exitCode"] == 3
    assert "dirty" not in machine.log("p")


async def test_pods_of_two_virtual_nodes_run_images(tmp_path: Path) -> None:
    host = host_of(tmp_path / "state")
    app_image(tmp_path / "image.tar")
    host.images.store.add(tmp_path / "image.tar", is_kept=True)
    nodes = VirtualNodes(
        count=2, count_max=2, cpu="1", memory="1Gi", boot_s=0.0, policy="resource-efficient", anticipates=False
    )
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state, containers=host, virtual=nodes) as machine:
            for number in (1, 2):
                resource = boxed()
                resource["metadata"]["name"], resource["spec"]["nodeName"] = f"p{number}", f"node-{number}"
                await machine.start(resource)
            pods = [await machine.ready(name) for name in ("p1", "p2")]
            pages = [(await machine.get(pod, "/me"))[1] for pod in pods]
            assert ["host=p1 " in pages[0], "host=p2 " in pages[1]] == [True, True]
            for name in ("p1", "p2"):
                await machine.cluster.delete(POD, "default", name, grace_s=0)
                await machine.until_gone(name)
    remove_leftovers(tmp_path / "state")


async def test_an_image_that_is_not_here_is_said(machine: Machine) -> None:
    await machine.start(boxed(image="test.local/none:1"))
    pod = await machine.until(
        lambda resource: "waiting" in status_of(resource).get("state", {}) and "none:1" in str(resource["status"])
    )
    assert status_of(pod)["state"]["waiting"]["reason"] == "ErrImagePull"


async def test_a_container_continues_under_the_next_control_process(tmp_path: Path) -> None:
    host = host_of(tmp_path / "state")
    app_image(tmp_path / "image.tar")
    host.images.store.add(tmp_path / "image.tar", is_kept=True)
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state, containers=host) as machine:
            await machine.start(boxed())
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


async def test_later_containers_find_their_network_ready(machine: Machine) -> None:
    await machine.start(boxed())
    await machine.ready()
    folder = machine.state.path / "networks"
    await until(lambda: len(machine.kubelet._ahead._ready) == 2)
    ahead = {path.stat().st_ino for path in folder.glob("ahead-*")}
    second = boxed()
    second["metadata"]["name"] = "q"
    resource = await machine.start(second)
    page = (await machine.get(await machine.ready("q"), "/me"))[1]
    assert "host=q" in page
    assert (folder / resource["metadata"]["uid"]).stat().st_ino in ahead
    assert (await machine.get(await machine.ready("p"), "/me"))[0] == 200


async def test_a_pod_that_goes_while_its_container_is_started_leaves_nothing(machine: Machine) -> None:
    for _ in range(3):
        await machine.start(boxed())
        await machine.cluster.delete(POD, "default", "p", grace_s=0)
        await machine.until_gone()
    await until(lambda: not list((machine.state.path / "pods").iterdir()))
    remaining = [path.name for path in (machine.state.path / "networks").iterdir()]
    assert [name for name in remaining if not name.startswith("ahead-")] == []


async def test_a_container_is_the_user_of_its_image_or_of_its_manifest(machine: Machine) -> None:
    await machine.start(boxed(securityContext={"runAsUser": 1000}))
    page = (await machine.get(await machine.ready(), "/me"))[1]
    assert "user=1000:1001" in page
    assert "home=/srv/web" in page


async def test_a_container_is_not_given_a_device_of_the_machine(machine: Machine) -> None:
    script = "cat; stat -L -c %F /proc/self/fd/0; exec /server"
    await machine.start(boxed(command=["/bin/sh", "-c", script], securityContext={"runAsUser": 1000}))
    await machine.ready()
    # A runtime gives the streams of a container to its user, who could close the machine's /dev/null to all others.
    assert machine.log("p").startswith("fifo\n")


async def test_root_of_a_container_has_few_rights(machine: Machine) -> None:
    await machine.start(boxed(command=["/bin/sh", "-c", "cat /proc/self/status; exec /server"]))
    await machine.ready()
    bound = next(line for line in machine.log("p").splitlines() if line.startswith("CapEff:"))
    # Neither SYS_ADMIN (21), nor NET_ADMIN (12), nor MKNOD (27), nor SYS_PTRACE (19).
    assert not any(int(bound.split()[1], 16) >> number & 1 for number in (21, 12, 27, 19))


async def test_a_profile_of_the_machine_filters_calls(machine: Machine) -> None:
    profiles = machine.state.path / "seccomp"
    profiles.mkdir(exist_ok=True)
    rules = [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}]
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}
    (profiles / "no-folders.json").write_text(json.dumps(profile))
    context = {"seccompProfile": {"type": "Localhost", "localhostProfile": "no-folders.json"}}
    # 95 is EOPNOTSUPP, which no folder gives by itself.
    command = ["/bin/sh", "-c", "mkdir /tmp/x; exec httpd -f -p 8080 -h /"]
    await machine.start(boxed(command=command, securityContext=context))
    await machine.ready()
    await until(lambda: "Operation not supported" in machine.log("p"))


async def test_the_default_profile_filters_calls(machine: Machine) -> None:
    command = ["/bin/sh", "-c", "unshare -U true && echo made || echo refused; exec /server"]
    for name, kind in (("p", "RuntimeDefault"), ("q", "Unconfined")):
        pod = boxed(command=command, securityContext={"seccompProfile": {"type": kind}})
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
async def test_isolation_that_cannot_be_had_is_refused(machine: Machine, spec: Object, message: str) -> None:
    pod = boxed()
    pod["spec"] |= spec
    await machine.start(pod)
    state = await machine.until(lambda resource: (nested(status_of(resource), "state", "waiting") or {}).get("message"))
    waiting = status_of(state)["state"]["waiting"]
    assert waiting["reason"] == "CreateContainerConfigError"
    assert message in waiting["message"]


async def test_a_link_by_a_container_is_not_mounted_in_the_next(machine: Machine) -> None:
    volume = {"name": "v", "emptyDir": {}}
    out = ["/bin/sh", "-c", "/bin/busybox ln -s /etc /data/out; /bin/busybox mkdir /data/in; echo own > /data/in/file"]
    for sub_path, name in (("out", "p"), ("in", "q")):
        resource = boxed(
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


async def test_limits_of_cpu_and_memory_are_in_the_cgroups(machine: Machine) -> None:
    await machine.start(boxed(resources={"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}}))
    await machine.ready()
    process = next(iter(machine.kubelet._running.values())).sessions["user-container"]
    read = await asyncio.to_thread(limits_of, process)
    assert read == (str(64 * 2**20), "50000")


async def test_the_start_of_a_container_is_no_use_of_its_cpu_limit(machine: Machine) -> None:
    await machine.start(boxed(resources={"limits": {"cpu": "10m"}}))
    await machine.ready()
    process = next(iter(machine.kubelet._running.values())).sessions["user-container"]
    folder = cgroup_of(process, "cpu")
    stat = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    throttled_s = int(stat["throttled_time"]) / 1e9 if "throttled_time" in stat else int(stat["throttled_usec"]) / 1e6
    # The runtime needs 30 ms of a core: 3 s of waiting at 1 ms in each 100.
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


def test_a_system_that_has_ended_leaves_no_network_and_no_cgroup(tmp_path: Path) -> None:
    host = host_of(tmp_path)
    assert host.networks is not None
    host.networks.make("pod", "127.64.9.9")
    assert host.cgroups is not None
    host.cgroups.make("pod/c", Limits(memory_bytes=2**26))
    remove_leftovers(tmp_path)
    assert not list((tmp_path / "networks").iterdir())
    assert not any(folder.exists() for folder in host.cgroups.folders.values())
    # Where there were no containers there is nothing to do.
    remove_leftovers(tmp_path / "none")
