"""A template process, and a kubelet with a store in this process: real pods without the rest of ``serving up``."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from serving.core.model.objects import Object
from serving.home.containers.cgroups import find_cgroups
from serving.home.containers.network import cgroup_name_of
from serving.home.containers.podsandbox import ContainerHost
from serving.home.controllers.manager import Manager
from serving.home.controllers.workloads import is_ready
from serving.home.kubelet.kubelet import Kubelet
from serving.home.kubelet.nodecontext import NodeContext
from serving.home.kubelet.virtualnodes import VirtualNodes
from serving.home.processes.isolation import isolation_of
from serving.home.processes.process_lifetime import children_of
from serving.home.processes.processruntime import ProcessRuntime
from serving.home.state import StateFolder
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import POD, REVISION
from serving.net.cluster.port import EventType
from serving.net.wire.tokens import pod_secret
from tests.eventually import until
from tests.tidy.sources import ROOT

KEY = bytes(range(32))
HELLO = ROOT / "serving" / "tools" / "samples" / "hello.py"
_GRACE_S = 5


# A supervisor with the template as its only child.
_SUPERVISOR = """
import sys
from pathlib import Path
from serving.home.state import StateFolder
from serving.home.supervisor.children import CHILDREN
from serving.home.supervisor.supervisor import Supervisor
state = StateFolder(Path(sys.argv[1]))
state.lock()
environment = {"SERVING_ISOLATION": sys.argv[2]}
supervisor = Supervisor(state, {"template": state.listen_template()}, CHILDREN()[:1], environment=environment)
sys.exit(supervisor.run(lambda: print(flush=True)))
"""


class Template:
    """The template process, with a supervisor that restarts it."""

    def __init__(self, state: StateFolder, isolation: str) -> None:
        self.state = state
        command = [sys.executable, "-c", _SUPERVISOR, str(state.path), isolation]
        self.supervisor = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.supervisor.stdout is not None
        assert self.supervisor.stdout.readline(), "the supervisor did not start"

    @property
    def pid(self) -> int | None:
        """The PID of the template; None while it is replaced."""
        children = children_of(self.supervisor.pid)
        return next((pid for pid in children if b"serving.home.processes.template" in _command_line(pid)), None)

    def kill(self) -> None:
        """Kill the template; the supervisor restarts it."""
        pid = self.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def reload(self) -> None:
        """Let the supervisor replace the template."""
        self.supervisor.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """Stop the supervisor and the template gracefully."""
        self.supervisor.terminate()
        self.supervisor.wait()
        assert self.supervisor.stdout is not None
        self.supervisor.stdout.close()


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextlib.contextmanager
def template_process(folder: Path, *, isolation: str = "default") -> Iterator[Template]:
    """A template process with its own state folder."""
    template = Template(StateFolder(folder), isolation)
    try:
        yield template
    finally:
        template.stop()


class Machine:
    """The store, the kubelet, and queries about their pods."""

    def __init__(self, cluster: MemoryCluster, state: StateFolder, kubelet: Kubelet) -> None:
        self.cluster, self.state, self.kubelet = cluster, state, kubelet

    async def start(self, pod: Object) -> Object:
        """Create a pod."""
        return await self.cluster.create(POD, pod)

    async def until(self, holds: Callable[[Object], object], name: str = "p", *, within_s: float = 60) -> Object:
        """Wait until a pod satisfies a condition; return the pod."""
        async with asyncio.timeout(within_s), self.cluster.watch(POD, resource_version="0") as events:
            async for event in events:
                is_it = event.type is not EventType.DELETED and event.object["metadata"]["name"] == name
                if is_it and holds(event.object):
                    return event.object
        raise AssertionError("the watch ended")

    async def until_gone(self, name: str = "p", *, within_s: float = 60) -> None:
        """Wait until a pod's object has been removed."""
        async with asyncio.timeout(within_s):
            listing = await self.cluster.list(POD)
            if all(item["metadata"]["name"] != name for item in listing.items):
                return
            async with self.cluster.watch(POD, resource_version=listing.resource_version) as events:
                async for event in events:
                    if event.type is EventType.DELETED and event.object["metadata"]["name"] == name:
                        return

    async def ready(self, name: str = "p") -> Object:
        """Wait until the pod is ready; return it."""
        return await self.until(is_ready, name)

    async def get(self, pod: Object, path: str = "/") -> tuple[int, str]:
        """Send a request to a pod's queue-proxy; return the status and the body."""
        reader, writer = await asyncio.open_connection(pod["status"]["podIP"], 8012)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
            async with asyncio.timeout(60):
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        return int(head.split(b" ")[1]), body.decode()

    async def clear(self) -> None:
        """Delete all pods with their logs, and wait until they have ended, because the next test uses the same template."""
        for pod in (await self.cluster.list(POD)).items:
            await self.cluster.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"], grace_s=0)
        for pod in (await self.cluster.list(POD)).items:
            await self.until_gone(pod["metadata"]["name"])
        # Wait until the template has no records of them, which the next control process would adopt.
        await until(lambda: not self.kubelet.pod_count and not list(self.state.processes.glob("*.note")))
        shutil.rmtree(self.state.logs / "pods", ignore_errors=True)

    def log(self, name: str, container: str = "user-container") -> str:
        """The log of a container."""
        return (self.state.logs / "pods" / "default" / name / f"{container}.log").read_text()


@contextlib.asynccontextmanager
async def controlled(
    state: StateFolder,
    *,
    containers: ContainerHost | None = None,
    virtual: VirtualNodes | None = None,
    isolation: str = "default",
    gap: str = "",
) -> AsyncIterator[Machine]:
    """A kubelet and a manager, as in the control process; the end of the block is the end of that process."""
    cluster = MemoryCluster()
    metadata = {"name": "hello-00001", "namespace": "default"}
    await cluster.create(REVISION, {"metadata": metadata, "spec": {"containerConcurrency": 1}})
    runtime = ProcessRuntime(state.template)
    cgroups = find_cgroups(cgroup_name_of(state.path)) if os.geteuid() == 0 else None
    node = NodeContext(
        cluster=cluster,
        runtime=runtime,
        pods=state.pods,
        logs=state.logs / "pods",
        snapshots=state.snapshots,
        stats_url="ws://127.0.0.1:1/stats",
        key=KEY,
        containers=containers,
        cgroups=cgroups,
        virtual=virtual,
        isolation=isolation_of(isolation, state.path),
        isolation_gap=gap,
    )
    kubelet = Kubelet(node)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(runtime.run())]
        await kubelet.adopt()
        await kubelet.sweep()
        tasks += [group.create_task(kubelet.run()), group.create_task(Manager(cluster).run())]
        yield Machine(cluster, state, kubelet)
        for task in tasks:
            task.cancel()
    await cluster.close()
    for folder in set(cgroups.folders.values()) if cgroups else ():
        # A runtime with pods stays for the next kubelet.
        with contextlib.suppress(OSError):
            folder.rmdir()


def manifest(name: str = "p", command: str = f"{sys.executable} {HELLO}", **container: Any) -> Object:  # noqa: ANN401 - fields of the API
    """A pod with one container."""
    labels = {"serving.knative.dev/revision": "hello-00001", "app": "hello"}
    metadata = {"name": name, "namespace": "default", "labels": labels, "annotations": {"serving.dev/command": command}}
    spec = {
        "nodeName": "local",
        "terminationGracePeriodSeconds": _GRACE_S,
        "containers": [{"name": "user-container", "image": "hello", **container}],
    }
    return {"metadata": metadata, "spec": spec}


def deployment(replicas: int, command: str = f"{sys.executable} {HELLO}") -> Object:
    """A Deployment of these pods."""
    pod = manifest(command=command)
    template = {"metadata": {key: pod["metadata"][key] for key in ("labels", "annotations")}, "spec": pod["spec"]}
    return {
        "metadata": {"name": "hello", "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "hello"}}, "template": template},
    }


def secret_line(pod: str) -> str:
    """The header line that the activator sends to a pod."""
    return f"K-Pod-Secret: {pod_secret(KEY, namespace='default', pod=pod)}\r\n"


def status_of(pod: Object) -> Object:
    """The status of the pod's first container; empty if there is none yet."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    status: Object = statuses[0]
    return status
