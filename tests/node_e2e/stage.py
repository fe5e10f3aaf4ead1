"""A real Kubernetes with nodes that run containers, named by the environment, and the tests' access to it.

============================================  ======================================================================
``SERVING_TEST_NODE_KUBECONFIG``              the cluster; the suite installs there and takes everything off again
``SERVING_TEST_NODE_IMAGE``                   image of the daemons, which the nodes have or can pull
``SERVING_TEST_NODE_QUEUE_PROXY_IMAGE``       image of the queue-proxy; empty: that of the daemons
``SERVING_TEST_NODE_PREVIOUS_IMAGE``          image of the version before, for the upgrade; empty: no such test
``SERVING_TEST_NODE_PREVIOUS_QUEUE_PROXY``    its image of the queue-proxy; empty: that of its daemons
``SERVING_TEST_NODE_PREVIOUS_TREE``           a checkout of that version, whose ``serving install`` installs it
``SERVING_TEST_NODE_INGRESS``                 HOST:PORT of the Service ``activator``; empty: its cluster address
``SERVING_TEST_NODE_SECOND``                  name of a node that may be lost; empty: no such tests
``SERVING_TEST_NODE_SECOND_COMMAND``          does ``up``, ``kill``, ``cut`` or ``join`` to it; ``second_node.sh`` is
one
============================================  ======================================================================
"""

import asyncio
import collections
import contextlib
import functools
import itertools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from serving.core.model.objects import Object, condition_of
from tests.tidy.sources import ROOT

SYSTEM = "knative-serving"
SPACE = "serving-node-e2e"
DOMAIN = "apps.example.org"
APP = (Path(__file__).parent / "app.py").read_text()
_PREFIX = "SERVING_TEST_NODE_"
# Waiting ends with what is waited for; this long only where something is broken.
_PATIENCE_S = 300.0
_PERIOD_S = 0.2
_REQUEST_TIMEOUT_S = 120.0
# Where a node may be lost, a client repeats a request as a proxy in front would: a connection may lead to a node that
# is gone.
_ATTEMPT_TIMEOUT_S = 5.0
# A lost node stays in the Service for 40 s: until then each attempt may meet it again.
_PATIENCE_OF_CLIENTS_S = 30.0
_PAUSE_S = 0.1
_BODY = b"order=1"
# A short window, so that a service is at zero soon. On a busy machine requests wait for pods that start, and each that
# waits asks for one more.
_ANNOTATIONS = {"autoscaling.knative.dev/window": "10s", "autoscaling.knative.dev/max-scale": "5"}


def is_named() -> bool:
    """Whether the environment names a cluster."""
    return bool(os.environ.get(f"{_PREFIX}KUBECONFIG"))


class Load(msgspec.Struct):
    """Results of a load: requests by response, and each failed one with its time."""

    responses: collections.Counter[str] = msgspec.field(default_factory=collections.Counter)
    failures: list[str] = []
    posts: int = 0
    repeated: int = 0
    lasted_s: float = 0.0
    longest_s: float = 0.0
    longest_until: str = ""

    def __str__(self) -> str:
        counts = f"{self.count} requests, {self.posts} of them POST, {self.count / (self.lasted_s or 1):.0f}/s"
        return f"{counts}, {len(self.failures)} failed, {self.repeated} repeated, longest {self.longest_s:.1f} s at {self.longest_until}"

    @property
    def count(self) -> int:
        """Requests with a response or a failure."""
        return self.responses.total() + len(self.failures)


class NodeStage:
    """The cluster and the system under test."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = os.environ[f"{_PREFIX}KUBECONFIG"]
        self.image = os.environ[f"{_PREFIX}IMAGE"]
        self.queue_proxy_image = os.environ.get(f"{_PREFIX}QUEUE_PROXY_IMAGE", "")
        self.previous_image = os.environ.get(f"{_PREFIX}PREVIOUS_IMAGE", "")
        self._previous_queue_proxy_image = os.environ.get(f"{_PREFIX}PREVIOUS_QUEUE_PROXY", "")
        self._previous_tree = os.environ.get(f"{_PREFIX}PREVIOUS_TREE", "")
        self._folder = folder
        self._ingress = os.environ.get(f"{_PREFIX}INGRESS", "")
        self.second = os.environ.get(f"{_PREFIX}SECOND", "")
        self._second_command = shlex.split(os.environ.get(f"{_PREFIX}SECOND_COMMAND", ""))

    def change_second(self, verb: str, **variables: str) -> None:
        """Bring the second node up or down, kill it, or cut its network and join it again."""
        # What it starts stays, and would hold a pipe open.
        with (self._folder / "second.log").open("ab") as log:
            command, environment = [*self._second_command, verb], {**os.environ, **variables}
            subprocess.run(command, check=True, stdout=log, stderr=log, env=environment)

    def install(self, *options: str, code: int = 0, tree: str = str(ROOT)) -> str:
        """``serving install`` of a checkout; its output."""
        command = [sys.executable, "-m", "serving", "install", "--kubeconfig", self.kubeconfig, *options]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def install_present(self, *options: str) -> str:
        """The version under test, with its daemons available."""
        images = ["--image", self.image]
        if self.queue_proxy_image:
            images += ["--queue-proxy-image", self.queue_proxy_image]
        return self.install("--wait", "--timeout", "10m", "--domain", DOMAIN, *images, *options)

    def install_previous(self) -> None:
        """Install the previous version alone and wait for its daemons; it may lack ``--wait``."""
        self.install("--uninstall", "--with-services", "--wait", "--timeout", "10m")
        images = ["--image", self.previous_image]
        if self._previous_queue_proxy_image:
            images += ["--queue-proxy-image", self._previous_queue_proxy_image]
        self.install("--domain", DOMAIN, *images, tree=self._previous_tree)
        # The Service is another one now, with another address.
        self._ingress = os.environ.get(f"{_PREFIX}INGRESS", "")
        for daemon in ("activator", "autoscaler", "controller"):
            self.kubectl("-n", SYSTEM, "rollout", "status", f"deployment/{daemon}", "--timeout=10m")

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl, which must succeed; its output."""
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def get(self, *arguments: str, namespace: str = SPACE) -> Any:  # noqa: ANN401 - JSON of the API
        """``kubectl get -o json``."""
        return json.loads(self.kubectl("-n", namespace, "get", *arguments, "-o", "json"))

    def apply(self, fields: Object) -> None:
        """``kubectl apply`` of one object."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps(fields))

    async def until(self, check: Callable[[], Any], what: str) -> Any:  # noqa: ANN401 - what was looked for
        """The first true result of a check. kubectl may fail on the way: a busy API server refuses connections."""
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                result = await asyncio.to_thread(check)
            except AssertionError:
                if time.monotonic() > until_s:
                    raise
                result = None
            if result:
                return result
            assert time.monotonic() < until_s, f"{what} after {_PATIENCE_S:g} s:\n{self._log_of()}"
            await asyncio.sleep(_PERIOD_S)

    def _log_of(self) -> str:
        return self.kubectl("get", "pods,ksvc,revisions,routes", "-A") + self.kubectl("-n", SPACE, "get", "events")

    async def ready(self, name: str) -> Object:
        """A service that is ready, of its latest generation."""

        def check() -> Object | None:
            ksvc: Object = self.get("ksvc", name)
            status = ksvc.get("status") or {}
            is_latest = status.get("observedGeneration") == ksvc["metadata"]["generation"]
            return ksvc if is_latest and condition_of(ksvc, "Ready").get("status") == "True" else None

        result: Object = await self.until(check, f"{name} is not ready")
        return result

    def pods(self, name: str) -> list[Object]:
        """Pods of a service that are not ending."""
        items = self.get("pods", "-l", f"serving.knative.dev/service={name}")["items"]
        return [resource for resource in items if not resource["metadata"].get("deletionTimestamp")]

    def ready_count(self, name: str) -> int:
        """The number of ready pods of a service."""
        return sum(condition_of(pod, "Ready").get("status") == "True" for pod in self.pods(name))

    async def at_zero(self, name: str) -> None:
        """Return when a service has no pod."""
        await self.until(
            lambda: not self.get("pods", "-l", f"serving.knative.dev/service={name}")["items"], "not at zero"
        )

    @property
    def ingress(self) -> str:
        """HOST:PORT of the public listener."""
        if not self._ingress:
            self._ingress = f"{self.get('svc', 'activator', namespace=SYSTEM)['spec']['clusterIP']}:80"
        return self._ingress

    @contextlib.asynccontextmanager
    async def loaded(
        self,
        name: str,
        *,
        per_s: float = 20.0,
        in_flight_max: int = 1_000,
        path: str = "/?ms=50",
        repeats: bool = False,
    ) -> AsyncIterator[Load]:
        """Requests at a steady pace during the context, on persistent connections; all are awaited.

        With ``in_flight_max`` requests in flight the next request waits: a slow machine lowers the pace.
        ``repeats``: for half a minute the client sends a request again whose connection failed. Each has an
        Idempotency-Key, as one in an app that dies is sent to another only then; every second one is a POST.
        """
        load = Load()
        stop = asyncio.Event()
        timeout = aiohttp.ClientTimeout(total=_ATTEMPT_TIMEOUT_S if repeats else _REQUEST_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            numbers = itertools.count()

            async def send() -> None:
                number = next(numbers)
                is_post = repeats and number % 2 == 1
                key = f"{name}-{number}" if repeats else ""
                request = functools.partial(self.send, name, path, session=session, key=key, is_post=is_post)
                load.posts += is_post
                await _answered(request, load, patience_s=_PATIENCE_OF_CLIENTS_S if repeats else 0.0)

            pace = _at_pace(send, stop, per_s=per_s, in_flight_max=in_flight_max)
            begun_s, sending = time.monotonic(), asyncio.create_task(pace)
            try:
                yield load
            finally:
                stop.set()
                await sending
                load.lasted_s = time.monotonic() - begun_s

    async def send(
        self, name: str, path: str = "/", *, session: aiohttp.ClientSession, key: str = "", is_post: bool = False
    ) -> tuple[int, str]:
        """A request, with an Idempotency-Key unless it is empty: status and body."""
        headers = {"Host": self.host(name), **({"Idempotency-Key": key} if key else {})}
        method, body = ("POST", _BODY) if is_post else ("GET", None)
        async with session.request(method, f"http://{self.ingress}{path}", headers=headers, data=body) as response:
            return response.status, await response.text()

    async def post(self, name: str, path: str) -> tuple[int, str]:
        """One POST without a body and without a retry: status and body."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://{self.ingress}{path}", headers={"Host": self.host(name)}) as response,
        ):
            return response.status, await response.text()

    def host(self, name: str) -> str:
        """The public host of a service or of a tag of it."""
        return f"{name}.{SPACE}.{DOMAIN}"


async def _answered(
    request: Callable[[], Coroutine[Any, Any, tuple[int, str]]], load: Load, *, patience_s: float
) -> None:
    """Send a request, again if its connection fails, and record the response."""
    begun_s, response = time.monotonic(), None
    while response is None:
        try:
            response = await request()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if time.monotonic() - begun_s >= patience_s:
                load.failures.append(f"{time.strftime('%T')} {error!r}")
                return
            load.repeated += 1
            await asyncio.sleep(_PAUSE_S)
    if (took_s := time.monotonic() - begun_s) > load.longest_s:
        load.longest_s, load.longest_until = took_s, time.strftime("%T")
    status, body = response
    if status == 200:
        load.responses[body.split(" pod ")[0]] += 1
    else:
        load.failures.append(f"{time.strftime('%T')} {status} {body[:200]}")


async def _at_pace(
    send: Callable[[], Coroutine[Any, Any, None]], stop: asyncio.Event, *, per_s: float, in_flight_max: int
) -> None:
    """Start requests at a steady pace until ``stop``, a late one at once; await them all."""
    due_s, slots = time.monotonic(), asyncio.Semaphore(in_flight_max)
    async with asyncio.TaskGroup() as group:
        while not stop.is_set():
            await slots.acquire()
            group.create_task(send()).add_done_callback(lambda _: slots.release())
            due_s = max(due_s + 1 / per_s, time.monotonic() - 1.0)
            await asyncio.sleep(due_s - time.monotonic())


def service(name: str, image: str, *, version: str = "1", port_name: str = "", **annotations: str) -> Object:
    """A manifest of the app; underscores of annotations stand for hyphens."""
    request_count = {f"autoscaling.knative.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    container = {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", APP],
        "env": [{"name": "VERSION", "value": version}],
        "ports": [{"containerPort": 8080, **({"name": port_name} if port_name else {})}],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
    }
    template = {
        "metadata": {"annotations": {**_ANNOTATIONS, **request_count}},
        "spec": {"containerConcurrency": 10, "timeoutSeconds": 60, "containers": [container]},
    }
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"template": template},
    }


@contextlib.asynccontextmanager
async def installed(folder: Path, *options: str) -> AsyncIterator[NodeStage]:
    """A fresh installation with a namespace for services. Both are removed at the end."""
    stage = NodeStage(folder)
    await asyncio.to_thread(stage.install_present, *options)
    with in_namespace(stage):
        yield stage
    await asyncio.to_thread(stage.install, "--uninstall", "--with-services", "--wait", "--timeout", "10m")


@contextlib.contextmanager
def in_namespace(stage: NodeStage) -> Iterator[None]:
    """A namespace for services, while the context lasts."""
    stage.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    try:
        yield
    finally:
        stage.kubectl("delete", "namespace", SPACE, "--ignore-not-found", "--timeout=300s")
