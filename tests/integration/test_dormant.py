"""Dormant pods of the local kubelet: real processes, a template and a control process."""

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

# An app that replaces its shell.
APP = f"exec {sys.executable} {HELLO}"
NEVER_S = 3600


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Raise the limit of open files to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[tuple[Template, Machine]]:
    with template_process(folder) as template:
        async with controlled(StateFolder(folder)) as machine:
            yield template, machine


def dormant_pod(after: str = "after=100ms", **fields: Any) -> Object:  # noqa: ANN401 - fields of the API
    pod = manifest(**fields)
    pod["metadata"]["annotations"][DORMANT_ANNOTATION] = after
    return pod


def is_dormant(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any((condition["type"], condition["status"]) == (CONDITION_DORMANT, "True") for condition in conditions)


def records(machine: Machine, name: str) -> dict[str, Any]:
    """The record of a running process of the only pod."""
    documents = [json.loads(path.read_bytes()) for path in machine.state.processes.glob(f"*.{name}.process")]
    (alive,) = (entry for entry in documents if entry.get("exit_code") is None)
    return alive  # type: ignore[no-any-return] # JSON


def cgroups_of(system: int) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"*/serving-dormant-{system}-*"))


def app_ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))


async def test_idle_pod_becomes_dormant_and_a_request_wakes_it(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(dormant_pod())
        pod = await machine.until(is_dormant)
        ready = {condition["type"]: condition["status"] for condition in pod["status"]["conditions"]}
        assert ready["Ready"] == "True"
        # A short request could start and end between two writes of the conditions.
        request = asyncio.create_task(machine.get(pod, "/sleep/60"))
        await machine.until(lambda fields: not is_dormant(fields))
        request.cancel()
        assert (await machine.get(pod))[0] == 200
        await machine.until(is_dormant)


async def test_pod_without_annotation_has_no_dormant_condition(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(manifest())
        pod = await machine.ready()
        assert all(condition["type"] != CONDITION_DORMANT for condition in pod["status"]["conditions"])


async def test_liveness_probe_neither_wakes_nor_restarts_dormant_pod(tmp_path: Path) -> None:
    probe = {"httpGet": {"path": "/"}, "periodSeconds": 1, "failureThreshold": 1}
    async with staged(tmp_path) as (_, machine):
        await machine.start(dormant_pod(livenessProbe=probe))
        pod = await machine.until(is_dormant)
        ticks = app_ticks(records(machine, "user-container")["pid"])
        await asyncio.sleep(2.5)
        assert app_ticks(records(machine, "user-container")["pid"]) == ticks
        (entry,) = (await machine.cluster.list(POD)).items
        assert entry["status"]["containerStatuses"][0]["restartCount"] == 0
        assert (await machine.get(pod))[0] == 200


async def test_deleted_dormant_pod_is_terminated_gracefully(tmp_path: Path) -> None:
    message = "trap 'echo in order; exit 0' TERM; " + f"{sys.executable} {HELLO} & wait"
    async with staged(tmp_path) as (_, machine):
        await machine.start(dormant_pod(command=message))
        await machine.until(is_dormant)
        await machine.cluster.delete(POD, "default", "p")
        await machine.until_gone()
        assert "in order" in machine.log("p")


async def test_stopping_supervisor_leaves_no_frozen_app_or_cgroup(tmp_path: Path) -> None:
    async with staged(tmp_path) as (template, machine):
        await machine.start(dormant_pod())
        await machine.until(is_dormant)
        app = records(machine, "user-container")
        system = template.supervisor.pid
        template.supervisor.terminate()
        await until(lambda: template.supervisor.poll() is not None)
        assert start_ticks(app["pid"]) != app["start_ticks"]
        assert cgroups_of(system) == []


@pytest.mark.parametrize("sleeps_again", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_killed_dormant_app_is_restarted(tmp_path: Path, sleeps_again: bool) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(dormant_pod())
        await machine.until(is_dormant)
        os.kill(records(machine, "user-container")["pid"], signal.SIGKILL)
        restarted = await machine.until(
            lambda entry: entry["status"]["containerStatuses"][0]["restartCount"] == 1 and is_ready_again(entry)
        )
        assert (await machine.get(restarted))[0] == 200
        if sleeps_again:
            # An exited process keeps the pod awake for half a minute.
            restarted = await machine.until(is_dormant, within_s=120)
            assert (await machine.get(restarted))[0] == 200


def is_ready_again(pod: Object) -> bool:
    return any(
        (condition["type"], condition["status"]) == ("Ready", "True") for condition in pod["status"]["conditions"]
    )


async def test_app_is_woken_when_its_queue_proxy_is_killed(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(dormant_pod())
        await machine.until(is_dormant)
        os.kill(records(machine, "queue-proxy")["pid"], signal.SIGKILL)
        pod = await machine.until(lambda fields: not is_dormant(fields))
        pod = await machine.ready()
        assert (await machine.get(pod))[0] == 200
        await machine.until(is_dormant)


async def test_dormant_pod_survives_reload_of_template_and_control(tmp_path: Path) -> None:
    with template_process(tmp_path) as template:
        async with controlled(StateFolder(tmp_path)) as machine:
            await machine.start(dormant_pod())
            before = await machine.until(is_dormant)
        template.reload()
        async with controlled(StateFolder(tmp_path)) as machine:
            pod = await machine.until(is_dormant)
            assert pod["status"]["podIP"] == before["status"]["podIP"]
            assert (await machine.get(pod))[0] == 200


async def test_template_survives_control_that_exits_while_a_pod_reports(tmp_path: Path) -> None:
    with template_process(tmp_path) as template:
        async with controlled(StateFolder(tmp_path)) as machine:
            await machine.start(manifest())
            await machine.ready()
            pid = template.pid
            assert pid is not None
            # The stopped template first reads the report, and then finds the connection to control closed.
            os.kill(pid, signal.SIGSTOP)
            os.kill(records(machine, "queue-proxy")["pid"], PUSH_AGAIN)
            await until(lambda: has_unread_pipe(pid))
        os.kill(pid, signal.SIGCONT)
        async with controlled(StateFolder(tmp_path)) as machine:
            await machine.ready()
        assert template.pid == pid


def has_unread_pipe(pid: int) -> bool:
    """Whether a pipe of a process has unread bytes."""
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
async def test_thousand_concurrent_requests_to_a_pod_succeed(tmp_path: Path, is_asleep: bool) -> None:
    """Takes a few seconds: the app's accept queue has five entries, and each request starts a thread."""
    async with staged(tmp_path) as (_, machine):
        metadata = {"name": "wide-00001", "namespace": "default"}
        await machine.cluster.create(REVISION, {"metadata": metadata, "spec": {"containerConcurrency": 0}})
        pod = dormant_pod() if is_asleep else manifest()
        pod["metadata"]["labels"]["serving.knative.dev/revision"] = "wide-00001"
        await machine.start(pod)
        pod = await (machine.until(is_dormant) if is_asleep else machine.ready())
        replies = await asyncio.gather(*(machine.get(pod) for _ in range(1000)), return_exceptions=True)
        assert Counter(reply if isinstance(reply, BaseException) else reply[0] for reply in replies) == {200: 1000}


async def test_exec_wakes_dormant_pod_and_keeps_it_awake(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(dormant_pod())
        await machine.until(is_dormant)
        streams = LocalPodStreams(machine.kubelet, FilePodLogs(machine.state.logs / "pods"))
        options = ExecOptions(container="user-container", command=("sleep", "1000"))
        session = await streams.execute("default", "p", options)
        await machine.until(lambda fields: not is_dormant(fields))
        await asyncio.sleep(0.5)
        (pod,) = (await machine.cluster.list(POD)).items
        assert not is_dormant(pod)
        await session.close()


async def test_port_forward_to_dormant_pod_receives_a_response(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(dormant_pod(ports=[{"containerPort": 8080}]))
        await machine.until(is_dormant)
        streams = LocalPodStreams(machine.kubelet, FilePodLogs(machine.state.logs / "pods"))
        reader, writer = await streams.connect("default", "p", 8080)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.")
        writer.close()


async def test_detached_process_of_app_is_frozen_too(tmp_path: Path) -> None:
    spinning = f"(setsid sh -c 'while :; do :; done' &) ; exec {sys.executable} {HELLO}"
    async with staged(tmp_path) as (_, machine):
        await machine.start(dormant_pod(command=spinning))
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
async def test_invalid_dormant_annotation_of_bare_pod_is_ignored(tmp_path: Path, after: str) -> None:
    async with staged(tmp_path) as (_, machine):
        await machine.start(dormant_pod(after))
        pod = await machine.ready()
        assert all(condition["type"] != CONDITION_DORMANT for condition in pod["status"]["conditions"])
