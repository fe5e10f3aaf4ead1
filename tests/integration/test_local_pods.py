"""Pods as real processes: started from the template, served by their queue-proxy, restarted, drained, adopted."""

import asyncio
import gc
import os
import re
import shlex
import signal
import sys
import weakref
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from serving.core.model.objects import Object, nested
from serving.home.controllers.workloads import is_ready
from serving.home.supervisor.reloading import read_reload
from serving.net.cluster.kinds import DEPLOYMENT, POD
from serving.net.cluster.port import EventType
from tests.eventually import until
from tests.integration.local_stage import (
    HELLO,
    Machine,
    Template,
    controlled,
    deployment,
    manifest,
    secret_line,
    status_of,
    template_process,
)

CHAT = """
import asyncio, os, signal
from websockets.asyncio.server import serve
async def chat(socket):
    await socket.send("hello")
    await socket.wait_closed()
async def main():
    server = await serve(chat, "127.0.0.1", int(os.environ["PORT"]))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.close)
    await server.wait_closed()
asyncio.run(main())
"""


def python(program: str) -> str:
    return f"{sys.executable} -u -c {shlex.quote(program)}"


def process_of(body: str) -> int:
    return int(body.rsplit(maxsplit=1)[-1])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until_dead(pid: int) -> None:
    await until(lambda: not is_alive(pid))


async def test_deleted_pod_writes_no_end_status_within_lag(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.home.kubelet.pod._END_STATUS_LAG_S", 3600.0)
    await machine.start(manifest())
    await machine.ready()
    version, types = (await machine.cluster.list(POD)).resource_version, list[EventType]()
    async with machine.cluster.watch(POD, resource_version=version) as events:
        await machine.cluster.delete(POD, "default", "p")
        while EventType.DELETED not in types:
            types.append((await anext(events)).type)
    assert types == [EventType.MODIFIED, EventType.DELETED]


async def test_start_of_pod_with_queue_proxy_is_one_status_write(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.home.kubelet.pod._STARTING_LAG_S", 3600.0)
    version = (await machine.cluster.list(POD)).resource_version
    async with machine.cluster.watch(POD, resource_version=version) as events:
        await machine.start(manifest())
        pods = [(await anext(events)).object for _ in range(2)]
    assert [is_ready(pod) for pod in pods] == [False, True]


async def test_killed_queue_proxy_is_restarted(machine: Machine) -> None:
    await machine.start(manifest())
    pod = await machine.ready()
    keeper = next(iter(machine.kubelet._running.values())).keepers["queue-proxy"]
    assert keeper.process is not None
    keeper.process.send(signal.SIGKILL)
    await machine.until(lambda fields: not is_ready(fields))
    assert (await machine.get(await machine.ready()))[0] == 200
    assert status_of(pod)["restartCount"] == 0


async def test_app_closes_its_websockets_when_its_pod_is_deleted(machine: Machine) -> None:
    await machine.start(manifest(command=python(CHAT)))
    pod = await machine.ready()
    async with connect(f"ws://{pod['status']['podIP']}:8012/", proxy=None) as socket:
        assert await socket.recv() == "hello"
        await machine.cluster.delete(POD, "default", "p")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == CloseCode.GOING_AWAY
    await machine.until_gone()


async def until_busy(address: str) -> None:
    """Wait until the queue-proxy has a request in flight."""
    while "queueproxy_requests_inside 1" not in await admin(address, "/metrics"):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


async def until_draining(address: str) -> None:
    """Wait until the queue-proxy drains."""
    while "503" not in await admin(address, "/readyz"):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


async def admin(address: str, path: str) -> str:
    reader, writer = await asyncio.open_connection(address, 8022)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\n{secret_line('p')}Connection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    return text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/no/such/command", "/no/such/command: No such file or directory"),
        ("no-such-command", "no-such-command: no such command in the pod's PATH /usr/local/sbin"),
        ("", "annotation serving.dev/command"),
    ],
)
async def test_pod_with_missing_command_is_reported(machine: Machine, command: str, message: str) -> None:
    await machine.start(manifest(command=command))
    pod = await machine.until(lambda resource: message in str(status_of(resource).get("state")))
    assert not is_ready(pod)


async def test_app_is_ready_without_waiting_for_second_startup_probe(machine: Machine) -> None:
    await machine.start(manifest(startupProbe={"tcpSocket": {"port": 8080}, "periodSeconds": 3600}))
    await machine.ready()


async def ready_pods(machine: Machine, count: int) -> list[Object]:
    """The pods by name, once `count` of them are ready."""
    result: dict[str, Object] = {}
    async with asyncio.timeout(60), machine.cluster.watch(POD, resource_version="0") as events:
        async for event in events:
            result[event.object["metadata"]["name"]] = event.object
            if sum(map(is_ready, result.values())) >= count:
                break
    return [result[name] for name in sorted(result)]


async def apps_of(machine: Machine, pods: list[Object]) -> list[int]:
    return [process_of((await machine.get(pod))[1]) for pod in pods]


async def test_pods_survive_control_restart_and_are_adopted_by_their_deployment(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.cluster.create(DEPLOYMENT, deployment(2))
            pods = await ready_pods(machine, 2)
            apps = await apps_of(machine, pods)
        async with controlled(template.state) as machine:
            # The controller recreates Deployments with their initial scale.
            await machine.cluster.create(DEPLOYMENT, deployment(1))
            again = await ready_pods(machine, 2)
            for pod in again:
                await machine.until(
                    lambda resource: resource["metadata"].get("ownerReferences"), pod["metadata"]["name"]
                )
            assert await apps_of(machine, again) == apps
            assert [pod["status"]["podIP"] for pod in again] == [pod["status"]["podIP"] for pod in pods]
            assert (await machine.cluster.get(DEPLOYMENT, "default", "hello"))["spec"]["replicas"] == 2


async def test_app_that_exited_during_control_restart_is_restarted(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(manifest())
            (app,) = await apps_of(machine, [await machine.ready()])
        os.kill(app, signal.SIGKILL)
        async with controlled(template.state) as machine:
            pod = await machine.until(lambda resource: is_ready(resource) and status_of(resource)["restartCount"] == 1)
            assert (await machine.get(pod))[0] == 200


async def test_pod_without_revision_has_no_queue_proxy_and_ends_with_control(tmp_path: Path) -> None:
    pod_without_revision = manifest(command="sleep 600")
    del pod_without_revision["metadata"]["labels"]
    with template_process(tmp_path) as template:
        async with controlled(template.state) as machine:
            await machine.start(pod_without_revision)
            pod = await machine.ready()
            assert status_of(pod)["ready"] is True
            assert set(machine.kubelet.find("default", "p").keepers) == {"user-container"}
        async with controlled(template.state) as machine:
            assert (await machine.cluster.list(POD)).items == []


async def test_pod_of_deleted_revision_is_terminated_at_start(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            pod = manifest()
            pod["metadata"]["labels"]["serving.knative.dev/revision"] = "gone"
            await machine.start(pod)
            (app,) = await apps_of(machine, [await machine.ready()])
        async with controlled(template.state) as machine:
            assert (await machine.cluster.list(POD)).items == []
            await until_dead(app)


async def until_replaced(template: Template) -> None:
    """Kill the template, and wait for its replacement."""
    killed = template.pid
    template.kill()
    await until(lambda: template.pid not in (None, killed))


async def test_pods_survive_killed_template(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(manifest())
            pod = await machine.ready()
            (app,) = await apps_of(machine, [pod])
            task = asyncio.create_task(machine.get(pod, "/sleep/2"))
            await until_busy(pod["status"]["podIP"])
            await until_replaced(template)
            assert (await task)[0] == 200
            # The next template is notified of exits like its predecessor.
            os.kill(app, signal.SIGKILL)
            again = await machine.until(
                lambda resource: is_ready(resource) and status_of(resource)["restartCount"] == 1
            )
            assert status_of(again)["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL
            await machine.cluster.delete(POD, "default", "p")
            await machine.until_gone()
            await until(lambda: not list(template.state.processes.iterdir()))


async def test_pods_survive_template_reload(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(manifest())
            pod = await machine.ready()
            apps, before = await apps_of(machine, [pod]), template.pid
            template.reload()
            await until(lambda: read_reload(template.state.reload)["ended_count"] == 1)
            reload = read_reload(template.state.reload)
            assert reload["error"] is None
            match = re.match(r"template: process (\d+) -> (\d+) in ", reload["replaced"][0])
            assert match
            assert (int(match[1]), is_alive(int(match[2]))) == (before, True)
            assert match[1] != match[2]
            assert await apps_of(machine, [pod]) == apps
            os.kill(apps[0], signal.SIGKILL)
            await machine.until(lambda resource: is_ready(resource) and status_of(resource)["restartCount"] == 1)


async def test_pod_created_without_template_starts_with_the_next_template(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            template.kill()
            await machine.start(manifest())
            assert (await machine.get(await machine.ready()))[0] == 200


async def test_pods_survive_simultaneous_loss_of_template_and_control(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(manifest())
            before = await machine.ready()
            apps = await apps_of(machine, [before])
        template.kill()
        async with controlled(template.state) as machine:
            pod = await machine.ready()
            assert (pod["status"]["podIP"], await apps_of(machine, [pod])) == (before["status"]["podIP"], apps)


async def test_app_that_exits_without_template_is_restarted(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(manifest())
            (app,) = await apps_of(machine, [await machine.ready()])
            template.kill()
            os.kill(app, signal.SIGKILL)
            pod = await machine.until(lambda resource: is_ready(resource) and status_of(resource)["restartCount"] == 1)
            assert (await machine.get(pod))[0] == 200


async def test_pods_end_with_the_supervisor(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(manifest())
            (app,) = await apps_of(machine, [await machine.ready()])
            template.kill()
            template.supervisor.kill()
            await until_dead(app)


async def test_draining_pod_continues_draining_after_control_restart(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(manifest())
            pod = await machine.ready()
            task = asyncio.create_task(machine.get(pod, "/sleep/2"))
            await until_busy(pod["status"]["podIP"])
            await machine.cluster.delete(POD, "default", "p")
            await until_draining(pod["status"]["podIP"])
        async with controlled(template.state) as machine:
            assert (await task)[0] == 200
            await machine.until_gone()


async def test_concurrently_starting_pods_are_niced_until_they_have_started(machine: Machine) -> None:
    program = (
        "import os, time; print('nice', os.nice(0), flush=True)\n"
        f"import runpy; runpy.run_path({str(HELLO)!r}, run_name='__main__')"
    )
    for name in ("p", "q"):
        await machine.start(manifest(name, command=python(program)))
    pods = [await machine.ready(name) for name in ("p", "q")]
    # The test may itself run with a higher nice value.
    own = os.getpriority(os.PRIO_PROCESS, 0)
    began = {int(machine.log(name).split()[1]) for name in ("p", "q")}
    assert began == ({own, 10} if os.geteuid() == 0 else {own})
    apps = await apps_of(machine, pods)
    await until(lambda: {os.getpriority(os.PRIO_PROCESS, app) for app in apps} <= {0, own})


async def test_start_turn_of_pod_lasts_until_it_is_ready(machine: Machine) -> None:
    program = (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "print('starts', flush=True); signal.sigwait([signal.SIGUSR1])\n"
        f"import runpy; runpy.run_path({str(HELLO)!r}, run_name='__main__')"
    )
    await machine.start(manifest(command=python(program)))
    await until(lambda: machine.kubelet._running)
    [run] = machine.kubelet._running.values()
    await until(lambda: "user-container" in run.keepers and run.keepers["user-container"].state.is_running)
    await until(lambda: "starts" in machine.log("p"))
    assert not run.turn._settled.is_set()
    os.kill(run.sessions["user-container"], signal.SIGUSR1)
    await machine.ready()
    assert run.turn._settled.is_set()


def second_init_container_runs(pod: Object) -> bool:
    """Whether the second init container of a pod runs."""
    return "running" in (nested(pod, "status", "initContainerStatuses", 1, "state") or {})


async def test_initializing_pod_continues_after_control_restart(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    pod = manifest()
    # A pod with its own user can write only to this folder.
    pod["metadata"]["annotations"]["serving.dev/dir"] = str(shared)
    pod["spec"]["initContainers"] = [
        {"name": "one", "image": "i", "command": ["/bin/sh", "-c", f"echo one >> {shared}/words"]},
        {"name": "two", "image": "i", "command": ["/bin/sh", "-c", f"until test -e {shared}/go; do sleep 0.05; done"]},
    ]
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(pod)
            await machine.until(second_init_container_runs)
            two = machine.kubelet.find("default", "p").sessions["two"]
        async with controlled(template.state) as machine:
            await machine.until(second_init_container_runs)
            assert machine.kubelet.find("default", "p").sessions == {"two": two}
            (shared / "go").touch()
            await machine.ready()
    assert (shared / "words").read_text() == "one\n"


async def test_adopted_pod_retains_start_time_of_its_container(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            await machine.start(manifest())
            before = status_of(await machine.ready())
        async with controlled(template.state) as machine:
            assert status_of(await machine.ready())["state"] == before["state"]
    assert before["state"]["running"]["startedAt"]


async def test_deleted_pod_is_freed_without_garbage_collection(machine: Machine) -> None:
    await machine.start(manifest())
    await machine.ready()
    freed = weakref.ref(machine.kubelet.find("default", "p"))
    # The control process does not run full garbage collections (``serving.net.aio.daemon``).
    gc.disable()
    try:
        await machine.cluster.delete(POD, "default", "p")
        await machine.until_gone()
        await until(lambda: freed() is None)
    finally:
        gc.enable()


async def test_pods_do_not_inherit_ignored_signals(tmp_path: Path) -> None:
    ignored = (signal.SIGINT, signal.SIGQUIT)
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        with template_process(tmp_path / "state") as template:
            async with controlled(template.state) as machine:
                await machine.start(manifest(command="sh -c 'grep SigIgn /proc/self/status; exec sleep 1000'"))
                log = template.state.logs / "pods" / "default" / "p" / "user-container.log"
                await until(lambda: log.exists() and log.read_text().endswith("\n"))
                mask = int(log.read_text().split()[1], 16)
                assert [number.name for number in ignored if mask >> (number - 1) & 1] == []
                await machine.cluster.delete(POD, "default", "p", grace_s=0)
                await machine.until_gone()
    finally:
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)


async def test_hanging_template_is_replaced_and_its_pods_continue(tmp_path: Path) -> None:
    with template_process(tmp_path) as template:
        async with controlled(template.state) as machine:
            await machine.start(manifest())
            pod = await machine.ready()
            before = template.pid
            assert before is not None
            os.kill(before, signal.SIGSTOP)
            await until(lambda: template.pid not in {None, before})
            assert (await machine.get(pod))[0] == 200
            # The next template starts the next pod.
            await machine.start(manifest("q"))
            await machine.ready("q")
