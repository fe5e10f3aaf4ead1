"""Pods of one machine that sleep: real processes, a template and a kubelet."""

import asyncio
import contextlib
import fcntl
import json
import os
import resource
import signal
import sys
import termios
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.core.model.knative import CONDITION_DORMANT, DORMANT_ANNOTATION
from serving.core.model.objects import Object
from serving.home.apiserver.podstreams import ExecOptions
from serving.home.kubelet.podstreams import FilePodLogs, LocalPodStreams
from serving.home.processes.process_lifetime import start_ticks
from serving.home.state import StateFolder
from serving.net.cluster.kinds import POD, REVISION
from serving.queueproxy.io.processes import read_processes
from serving.queueproxy.io.readiness import PUSH_AGAIN
from tests.eventually import until
from tests.integration.local_stage import HELLO, Machine, Template, controlled, manifest, template_process

# An app that writes when it gets SIGTERM, and serves by a child.
APP = f"exec {sys.executable} {HELLO}"
NEVER_S = 3600


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Allows as many open files as this user may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[tuple[Template, Machine]]:
    with template_process(folder) as template:
        async with controlled(StateFolder(folder)) as machine:
            yield template, machine


def sleeper(after: str = "after=100ms", **fields: Any) -> Object:  # noqa: ANN401 - fields of the API
    pod = manifest(**fields)
    pod["metadata"]["annotations"][DORMANT_ANNOTATION] = after
    return pod


def is_dormant(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any((condition["type"], condition["status"]) == (CONDITION_DORMANT, "True") for condition in conditions)


def records(machine: Machine, name: str) -> dict[str, Any]:
    """The record of a process of the only pod."""
    documents = [json.loads(path.read_bytes()) for path in machine.state.processes.glob(f"*.{name}.process")]
    (alive,) = (entry for entry in documents if entry.get("exit_code") is None)
    return alive  # type: ignore[no-any-return] # JSON


def cgroups_of(system: int) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"*/serving-dormant-{system}-*"))


def app_ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))


async def test_an_idle_pod_sleeps_and_a_request_wakes_it(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(sleeper())
        pod = await machine.until(is_dormant)
        ready = {condition["type"]: condition["status"] for condition in pod["status"]["conditions"]}
        assert ready["Ready"] == "True"
        # One that ends at once may leave no trace in the conditions.
        asking = asyncio.create_task(machine.get(pod, "/sleep/60"))
        await machine.until(lambda fields: not is_dormant(fields))
        asking.cancel()
        assert (await machine.get(pod))[0] == 200
        await machine.until(is_dormant)


async def test_a_pod_that_does_not_ask_has_no_such_condition(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(manifest())
        pod = await machine.ready()
        assert all(condition["type"] != CONDITION_DORMANT for condition in pod["status"]["conditions"])


async def test_a_probe_of_the_kubelet_does_not_end_a_pod_that_sleeps(tmp_path: Path) -> None:
    probe = {"httpGet": {"path": "/"}, "periodSeconds": 1, "failureThreshold": 1}
    async with staged(tmp_path) as (_, machine):
        await machine.start(sleeper(livenessProbe=probe))
        pod = await machine.until(is_dormant)
        ticks = app_ticks(records(machine, "user-container")["pid"])
        await asyncio.sleep(2.5)
        assert app_ticks(records(machine, "user-container")["pid"]) == ticks
        (entry,) = (await machine.cluster.list(POD)).items
        assert entry["status"]["containerStatuses"][0]["restartCount"] == 0
        assert (await machine.get(pod))[0] == 200


async def test_a_deleted_pod_that_sleeps_ends_in_order(tmp_path: Path) -> None:
    message = "trap 'echo in order; exit 0' TERM; " + f"{sys.executable} {HELLO} & wait"
    async with staged(tmp_path) as (_, machine):
        await machine.start(sleeper(command=message))
        await machine.until(is_dormant)
        await machine.cluster.delete(POD, "default", "p")
        await machine.until_gone()
        assert "in order" in machine.log("p")


async def test_the_end_of_the_system_leaves_nothing_asleep(tmp_path: Path) -> None:
    async with staged(tmp_path) as (template, machine):
        await machine.start(sleeper())
        await machine.until(is_dormant)
        app = records(machine, "user-container")
        system = template.supervisor.pid
        template.supervisor.terminate()
        await until(lambda: template.supervisor.poll() is not None)
        assert start_ticks(app["pid"]) != app["start_ticks"]
        assert cgroups_of(system) == []


@pytest.mark.parametrize("sleeps_again", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_killed_app_that_sleeps_is_started_again(tmp_path: Path, sleeps_again: bool) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(sleeper())
        await machine.until(is_dormant)
        os.kill(records(machine, "user-container")["pid"], signal.SIGKILL)
        restarted = await machine.until(
            lambda entry: entry["status"]["containerStatuses"][0]["restartCount"] == 1 and is_ready_again(entry)
        )
        assert (await machine.get(restarted))[0] == 200
        if sleeps_again:
            # After the half minute for which the end of a process keeps a pod awake.
            restarted = await machine.until(is_dormant, within_s=120)
            assert (await machine.get(restarted))[0] == 200


def is_ready_again(pod: Object) -> bool:
    return any(
        (condition["type"], condition["status"]) == ("Ready", "True") for condition in pod["status"]["conditions"]
    )


async def test_a_killed_queue_proxy_leaves_no_app_asleep(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(sleeper())
        await machine.until(is_dormant)
        os.kill(records(machine, "queue-proxy")["pid"], signal.SIGKILL)
        pod = await machine.until(lambda fields: not is_dormant(fields))
        pod = await machine.ready()
        assert (await machine.get(pod))[0] == 200
        await machine.until(is_dormant)


async def test_a_new_template_and_a_new_control_continue_with_a_pod_that_sleeps(tmp_path: Path) -> None:
    with template_process(tmp_path) as template:
        async with controlled(StateFolder(tmp_path)) as machine:
            await machine.start(sleeper())
            before = await machine.until(is_dormant)
        template.reload()
        async with controlled(StateFolder(tmp_path)) as machine:
            pod = await machine.until(is_dormant)
            assert pod["status"]["podIP"] == before["status"]["podIP"]
            assert (await machine.get(pod))[0] == 200


async def test_the_template_outlives_a_control_that_ends_while_a_pod_reports(tmp_path: Path) -> None:
    with template_process(tmp_path) as template:
        async with controlled(StateFolder(tmp_path)) as machine:
            await machine.start(manifest())
            await machine.ready()
            pid = template.pid
            assert pid is not None
            # Both wait for the same turn of the template, the report first: passing it on finds that control has gone.
            os.kill(pid, signal.SIGSTOP)
            os.kill(records(machine, "queue-proxy")["pid"], PUSH_AGAIN)
            await until(lambda: has_unread_pipe(pid))
        os.kill(pid, signal.SIGCONT)
        async with controlled(StateFolder(tmp_path)) as machine:
            await machine.ready()
        assert template.pid == pid


def has_unread_pipe(pid: int) -> bool:
    """Whether a pipe of a process has bytes that were not read."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        if str(path.readlink()).startswith("pipe:"):
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    waiting = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4)
                finally:
                    os.close(descriptor)
                if any(waiting):
                    return True
    return False


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("is_asleep", [True, False], ids=["dormant", "running"])
async def test_a_thousand_requests_at_once_are_answered(tmp_path: Path, is_asleep: bool) -> None:
    """A few seconds: the app of the standard library has an accept queue of five, and starts a thread a request."""
    async with staged(tmp_path) as (_, machine):
        metadata = {"name": "wide-00001", "namespace": "default"}
        await machine.cluster.create(REVISION, {"metadata": metadata, "spec": {"containerConcurrency": 0}})
        pod = sleeper() if is_asleep else manifest()
        pod["metadata"]["labels"]["serving.knative.dev/revision"] = "wide-00001"
        await machine.start(pod)
        pod = await (machine.until(is_dormant) if is_asleep else machine.ready())
        replies = await asyncio.gather(*(machine.get(pod) for _ in range(1000)), return_exceptions=True)
        assert Counter(reply if isinstance(reply, BaseException) else reply[0] for reply in replies) == {200: 1000}


async def test_exec_and_port_forward_wake_a_pod_and_keep_it_awake(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(sleeper())
        await machine.until(is_dormant)
        streams = LocalPodStreams(machine.kubelet, FilePodLogs(machine.state.logs / "pods"))
        options = ExecOptions(container="user-container", command=("sleep", "1000"))
        session = await streams.execute("default", "p", options)
        await machine.until(lambda fields: not is_dormant(fields))
        await asyncio.sleep(0.5)
        (pod,) = (await machine.cluster.list(POD)).items
        assert not is_dormant(pod)
        await session.close()


async def test_a_port_of_a_pod_that_sleeps_is_answered(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(sleeper(ports=[{"containerPort": 8080}]))
        await machine.until(is_dormant)
        streams = LocalPodStreams(machine.kubelet, FilePodLogs(machine.state.logs / "pods"))
        reader, writer = await streams.connect("default", "p", 8080)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.")
        writer.close()


async def test_a_daemon_that_the_app_has_detached_sleeps_too(tmp_path: Path) -> None:
    spinning = f"(setsid sh -c 'while :; do :; done' &) ; exec {sys.executable} {HELLO}"
    async with staged(tmp_path) as (_, machine):
        await machine.start(sleeper(command=spinning))
        await machine.until(is_dormant)
        spinners = [pid for pid in read_processes() if _command_of(pid) == b"sh\0-c\0while :; do :; done\0"]
        ticks = {pid: app_ticks(pid) for pid in spinners if _is_of(pid, machine)}
        assert len(ticks) == 1
        time.sleep(0.3)  # noqa: ASYNC251 - nothing else is to happen meanwhile
        assert {pid: app_ticks(pid) for pid in ticks} == ticks


def _command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _is_of(pid: int, machine: Machine) -> bool:
    port = records(machine, "user-container")["mark"]
    with contextlib.suppress(OSError):
        return port.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


@pytest.mark.parametrize("after", ["soon", "after=1ms"])
async def test_a_wrong_annotation_of_a_bare_pod_has_no_effect(tmp_path: Path, after: str) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(sleeper(after))
        pod = await machine.ready()
        assert all(condition["type"] != CONDITION_DORMANT for condition in pod["status"]["conditions"])
