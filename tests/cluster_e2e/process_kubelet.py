"""A kubelet that runs the queue-proxy of a pod as a process: command, environment, probe, hooks.

There are no networks of pods here: a pod is said to be at 10.81.x.y and is at 127.81.x.y (82 where another test has 81,
and so on), so that what the template calls 127.0.0.1 or any address is that one. The app is a small server of the test
at the pod's address and the port of its container; it keeps the heads that it saw. Where no container is a queue-proxy,
the only one runs as the process. The token is where the template mounts it, below the pod's folder.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from serving.core.model.errors import Conflict, NotFound
from serving.core.model.objects import Key, Object
from serving.home.apiserver.reviews import KnownToken
from serving.net.cluster.port import Cluster
from serving.tools.cli.client.api import ApiClient
from tests.cluster_e2e.own_server import TOKENS
from tests.cluster_e2e.server import Server, is_real
from tests.cluster_e2e.status_kubelet import StatusKubelet
from tests.tidy.sources import ROOT

_QUEUE_PORT = 8012
_NETWORK_FIRST, _NETWORK_END = 81, 128
_SLOW = b"/slow"
_SLOW_S = 1.5


class RunningPod(msgspec.Struct, kw_only=True):
    """A running pod. ``exit_code`` is the queue-proxy's; ``app_ended_last`` says whether the app outlived it."""

    pod: Object
    address: str
    proxy: asyncio.subprocess.Process
    app: asyncio.Server | None
    environment: dict[str, str]
    heads: list[str]
    probing: "asyncio.Task[None] | None" = None
    exit_code: int | None = None
    hook_responses: list[tuple[int, str]] = []


class ProcessKubelet(StatusKubelet):
    """Runs until cancelled. ``running`` has its pods by name, also those that have ended."""

    def __init__(self, cluster: Cluster, server: Server, folder: Path) -> None:
        super().__init__(cluster, server.node)
        self.running: dict[str, RunningPod] = {}
        self._network, self._holder = _network()
        self._server = server
        self._folder = folder
        self._starts: dict[str, asyncio.Event] = {}

    def _started(self, name: str) -> asyncio.Event:
        return self._starts.setdefault(name, asyncio.Event())

    async def _start(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        number = next(self._numbers)
        address = f"127.{self._network}.{number // 250}.{number % 250 + 1}"
        containers = pod["spec"]["containers"]
        container = next((entry for entry in containers if entry["name"] == "queue-proxy"), containers[0])
        user = next((each_container for each_container in containers if each_container is not container), None)
        home = self._folder / name
        environment = {**self._environment(pod, container, home), **_at(address)}
        environment["SERVING_POD_APP"] = environment["SERVING_POD_APP"].replace("127.0.0.1", address)
        heads: list[str] = []
        app = None
        if user is not None:
            app = await asyncio.start_server(_app(heads), address, user["ports"][0]["containerPort"])
        await asyncio.to_thread(self._mount, pod, container, home)
        with (self._folder / f"{name}.log").open("ab") as log:
            proxy = await asyncio.create_subprocess_exec(
                sys.executable, *container["command"][1:], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        running_pod = RunningPod(pod=pod, address=address, proxy=proxy, app=app, environment=environment, heads=heads)
        self.running[name] = running_pod
        self._started(name).set()
        assert self._group is not None
        running_pod.probing = self._group.create_task(self._probe(running_pod, container["readinessProbe"]))

    def _environment(self, pod: Object, container: Object, home: Path) -> dict[str, str]:
        """As a kubelet makes it."""
        fields = {f"metadata.{name}": pod["metadata"][name] for name in ("name", "namespace")}
        values = {
            # A real server leaves out what is empty.
            variable["name"]: fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            if "valueFrom" in variable
            else variable.get("value", "").replace("$$(", "$(")
            for variable in container["env"]
        }
        for mount in container.get("volumeMounts", ()):
            values = {name: value.replace(mount["mountPath"], str(home)) for name, value in values.items()}
        return {"PATH": os.environ["PATH"]} | values

    def _mount(self, pod: Object, container: Object, home: Path) -> None:
        home.mkdir()
        for mount in container.get("volumeMounts", ()):
            volume = next(entry for entry in pod["spec"]["volumes"] if entry["name"] == mount["name"])
            service_account_token = volume["projected"]["sources"][0]["serviceAccountToken"]
            if "audience" not in service_account_token:
                # A real server adds a token for itself.
                continue
            (home / service_account_token["path"]).write_text(self._token(pod, service_account_token))
            (home / service_account_token["path"]).chmod(0o444)

    def _token(self, pod: Object, entry: dict[str, Any]) -> str:
        metadata = pod["metadata"]
        namespace, account = metadata["namespace"], pod["spec"].get("serviceAccountName", "default")
        if is_real():
            bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
            spec = {"audiences": [entry["audience"]], "expirationSeconds": entry["expirationSeconds"]}
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
            done = ApiClient(kubeconfig=self._server.kubeconfig).done(
                "POST", path, {"spec": {**spec, "boundObjectRef": bound}}
            )
            return str(done["status"]["token"])
        known = KnownToken(
            namespace=namespace,
            account=account,
            pod=metadata["name"],
            pod_uid=metadata["uid"],
            audiences=(entry["audience"],),
        )
        token = secrets.token_hex()
        with (self._folder / TOKENS).open("a") as file:
            file.write(f"{token} {msgspec.json.encode(known).decode()}\n")
        return token

    async def _probe(self, running_pod: RunningPod, probe: Object) -> None:
        """Ask as the template says, and tell of what changes."""
        get, was_ready = probe["httpGet"], None
        while True:
            try:
                async with asyncio.timeout(probe["timeoutSeconds"]):
                    status, _ = await got(running_pod.address, get["port"], get["path"])
            except (OSError, TimeoutError):
                status = 0
            is_ready = 200 <= status < 400
            if is_ready is not was_ready:
                was_ready = is_ready
                with contextlib.suppress(NotFound, Conflict):
                    await self._notify(
                        running_pod.pod, ready=is_ready, address=running_pod.address.replace("127.", "10.", 1)
                    )
            await asyncio.sleep(probe["periodSeconds"] if was_ready else 0.05)

    async def _end(self, key: Key, uid: str) -> None:
        # A pod may be deleted while it starts.
        await self._started(key[1]).wait()
        running_pod = self.running[key[1]]

        async def end_app(container: Object) -> None:
            hook = container["lifecycle"]["preStop"]["httpGet"]
            headers = {header["name"]: header["value"] for header in hook["httpHeaders"]}
            # A kubelet goes on where a hook fails.
            with contextlib.suppress(OSError):
                running_pod.hook_responses.append(
                    await got(running_pod.address, hook["port"], hook["path"], headers=headers)
                )

        apps = [container for container in running_pod.pod["spec"]["containers"] if "lifecycle" in container]
        ending = [asyncio.create_task(end_app(container)) for container in apps]
        await asyncio.sleep(0)
        with contextlib.suppress(ProcessLookupError):
            running_pod.proxy.send_signal(signal.SIGTERM)
        await asyncio.gather(*ending)
        if running_pod.app is not None:
            running_pod.app.close()
        running_pod.exit_code = await running_pod.proxy.wait()
        if running_pod.probing is not None:
            running_pod.probing.cancel()
        await super()._end(key, uid)

    async def kill_all(self) -> None:
        """Kill all processes."""
        for running_pod in self.running.values():
            if running_pod.app is not None:
                running_pod.app.close()
            if running_pod.probing is not None:
                running_pod.probing.cancel()
            if running_pod.proxy.returncode is None:
                running_pod.proxy.kill()
                await running_pod.proxy.wait()
        self._holder.close()


def _network() -> tuple[int, socket.socket]:
    """Reserve the second number of addresses for this test; tests run side by side."""
    for number in range(_NETWORK_FIRST, _NETWORK_END):
        with contextlib.suppress(OSError):
            return number, socket.create_server((f"127.{number}.255.254", _QUEUE_PORT))
    raise OSError(f"all of 127.{_NETWORK_FIRST} to 127.{_NETWORK_END - 1} are taken")


def _at(address: str) -> dict[str, str]:
    listen = {"SERVING_POD_LISTEN": f"{address}:{_QUEUE_PORT}", "SERVING_POD_ADMIN_LISTEN": f"{address}:8022"}
    return {**listen, "HOST": address}


def _app(heads: list[str]) -> Any:  # noqa: ANN401 - a callback of asyncio's
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head.decode())
                if _SLOW in head:
                    await asyncio.sleep(_SLOW_S)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
                await writer.drain()
        writer.close()

    return serve


async def got(host: str, port: int, path: str, *, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """One GET: status and body."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        lines = [f"{name}: {value}" for name, value in {"Host": host, **(headers or {})}.items()]
        writer.write("\r\n".join([f"GET {path} HTTP/1.1", *lines, "Connection: close", "", ""]).encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if not head:
        raise ConnectionResetError(f"nothing came from {host}:{port}{path}")
    return int(head.split(b" ")[1]), body.decode()
