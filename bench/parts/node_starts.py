"""Cold starts on a real node, with the time of each step, beside bare pods in turns.

Steps come from watches of the API, from the app's own answer (``up=NNms``, the time since its start), and from
containerd's log where one is named. Each sample is a service at zero of its own; a bare pod of the same image starts
before it. Run it where pods are reached.
"""

import asyncio
import contextlib
import datetime as dt
import functools
import os
import random
import re
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from serving.core.model.objects import Object, condition_of, nested
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, ENDPOINT_SLICE, POD, SERVICE, SERVING_SERVICE, Kind
from serving.net.cluster.kube import KubeCluster
from tests.cluster_e2e import stage

SPACE = "default"
STEPS = (
    *("scale written", "pod bound", "sandbox begins", "sandbox up", "queue-proxy started", "app started", "app up"),
    *("address in the API", "pod in a slice", "answer", "Ready in the API"),
)
_BARE = ("bare, no volume", "bare, token volume")
_KINDS = (POD, DEPLOYMENT, ENDPOINT_SLICE, SERVING_SERVICE)
_PATIENCE_S = 120.0
_POLL_S = 0.004
# containerd writes its log a little later than it acts.
_LOG_LAG_S = 0.2
# For the kubelet to take the bare pod down.
_SETTLE_S = 0.5
_KUBELET_PERIOD_S = 1.0
_UP = re.compile(r"up=(\d+)ms")
_CRI_TIME = re.compile(r'time="([^"]{19,26})')


class Watched:
    """When each change of some kinds arrived, in seconds since the epoch, newest last."""

    def __init__(self, cluster: KubeCluster) -> None:
        self.events: list[tuple[float, Kind, Object]] = []
        self._cluster = cluster
        self._changed = asyncio.Event()

    async def watch(self, kind: Kind) -> None:
        """Record each change until cancelled."""
        while True:
            listing = await self._cluster.list(kind, SPACE)
            async with self._cluster.watch(kind, SPACE, resource_version=listing.resource_version) as events:
                async for event in stage.of_objects(events):
                    self.events.append((time.time(), kind, event.object))
                    self._changed.set()

    async def until(self, kind: Kind, holds: Any) -> tuple[float, Object]:  # noqa: ANN401 - a predicate
        """The first recorded change for which something holds."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                for at_s, other, result in self.events:
                    if other == kind and holds(result):
                        return at_s, result
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def watching(cluster: KubeCluster) -> AsyncIterator[Watched]:
    """Watch all that the steps are read from."""
    watched = Watched(cluster)
    tasks = [asyncio.create_task(watched.watch(kind)) for kind in _KINDS]
    try:
        yield watched
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def bare_start(
    cluster: KubeCluster, watched: Watched, http: aiohttp.ClientSession, *, image: str, name: str, volume: bool
) -> float:
    """Milliseconds from the create of a bare pod until its app was up, by its own count."""
    app = {"name": "app", "image": image, "imagePullPolicy": "IfNotPresent", "resources": {"requests": {"cpu": "10m"}}}
    spec = {
        "containers": [app],
        "terminationGracePeriodSeconds": 0,
        "enableServiceLinks": False,
        "automountServiceAccountToken": volume,
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SPACE}, "spec": spec}
    watched.events.clear()
    begun_s = time.time()
    await cluster.create(POD, pod)
    _, entry = await watched.until(
        POD, lambda current_pod: current_pod["metadata"]["name"] == name and nested(current_pod, "status", "podIP")
    )
    try:
        return 1000 * (await _up_s(http, f"http://{entry['status']['podIP']}:8080/", {}) - begun_s)
    finally:
        await cluster.delete(POD, SPACE, name, grace_s=0)
        await asyncio.sleep(_SETTLE_S)


async def _up_s(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> float:
    """When the app behind a URL was up, in seconds since the epoch."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(url, headers=headers) as response:
                    text = await response.text()
                    answered_s = time.time()
                match_ = _UP.search(text)
                return answered_s - int(match_[1]) / 1000 if match_ else answered_s
            await asyncio.sleep(_POLL_S)


async def cold_start(
    watched: Watched, http: aiohttp.ClientSession, *, ingress: str, host: str, revision: str
) -> dict[str, float]:
    """Seconds since the epoch of each step of one request to a service at zero; "begun" is the request."""
    watched.events.clear()
    entry = {"begun": time.time()}
    async with http.get(f"http://{ingress}/", headers={"Host": host}) as response:
        text = await response.text()
        entry["answer"] = time.time()
        assert response.status == 200, (response.status, text)
    if up := _UP.search(text):
        entry["app up"] = entry["answer"] - int(up[1]) / 1000

    def is_ready(revision_object: Object) -> bool:
        return (
            revision_object["metadata"]["name"].startswith(revision)
            and condition_of(revision_object, "Ready").get("status") == "True"
        )

    _, pod = await watched.until(POD, is_ready)
    pod_name = pod["metadata"]["name"]
    for at_s, kind, resource in watched.events:
        if (
            kind == DEPLOYMENT
            and resource["metadata"]["name"].startswith(revision)
            and resource["spec"].get("replicas")
        ):
            entry.setdefault("scale written", at_s)
        if kind == POD and resource["metadata"]["name"] == pod_name:
            if resource["spec"].get("nodeName"):
                entry.setdefault("pod bound", at_s)
            if nested(resource, "status", "podIP"):
                entry.setdefault("address in the API", at_s)
            if condition_of(resource, "Ready").get("status") == "True":
                entry.setdefault("Ready in the API", at_s)
        if kind == ENDPOINT_SLICE and any(
            nested(end, "targetRef", "name") == pod_name for end in resource.get("endpoints") or ()
        ):
            entry.setdefault("pod in a slice", at_s)
    return entry | {"pod": pod_name}


def _is_ready_service(name: str, service: Object) -> bool:
    return bool(service["metadata"]["name"] == name) and stage.is_ready(service)


def containerd_steps(log: Path, pod: str) -> dict[str, float]:
    """Steps of a pod in containerd's log, in seconds since the epoch."""
    result: dict[str, float] = {}
    sandbox, containers = "", {}
    for line in log.read_text(errors="replace").splitlines():
        stamp = _CRI_TIME.search(line)
        if stamp is None:
            continue
        at_s = dt.datetime.fromisoformat(f"{stamp[1].rstrip('Z')}+00:00").timestamp()
        if pod in line and "RunPodSandbox for" in line:
            is_end = "returns sandbox id" in line
            result.setdefault("sandbox up" if is_end else "sandbox begins", at_s)
            if is_end and (match_ := re.search(r'returns sandbox id \\?"([0-9a-f]+)', line)):
                sandbox = match_[1]
        if (
            sandbox
            and sandbox in line
            and (new_match_ := re.search(r'for name:\\?"([\w-]+).*returns container id \\?"([0-9a-f]+)', line))
        ):
            containers[new_match_[2]] = new_match_[1]
        if "StartContainer for" in line and "returns successfully" in line:
            name = next((name for key, name in containers.items() if key in line), None)
            if name is not None:
                result.setdefault("queue-proxy started" if name == "queue-proxy" else "app started", at_s)
    return result


def summary(rows: Sequence[dict[str, float]], name: str) -> str:
    """One line: median, 90th percentile and extremes of a step, in milliseconds."""
    values = sorted(row[name] for row in rows if name in row)
    if not values:
        return f"  {name:22} no sample"
    high = values[min(len(values) - 1, int(0.9 * len(values)))]
    return (
        f"  {name:22} {statistics.median(values):6.0f} {high:6.0f} {values[0]:6.0f} {values[-1]:6.0f}   n={len(values)}"
    )


async def measure(kubeconfig: str, *, samples: int, image: str, log: str, label: str) -> None:
    """Create services at zero and bare pods in turns, and print the steps."""
    rows: list[dict[str, float]] = []
    run = f"cold-{os.getpid()}"
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        KubeCluster(kubeconfig) as cluster,
        watching(cluster) as watched,
        aiohttp.ClientSession(connector=connector) as http,
    ):
        activator = await cluster.get(SERVICE, "knative-serving", "activator")
        settings = await cluster.get(CONFIG_MAP, "knative-serving", "config-controller")
        domain = settings["data"].get("domain", "example.com")
        ingress = f"{activator['spec']['clusterIP']}:80"
        try:
            for number in range(samples):
                name = f"{run}-{number}"
                await cluster.create(SERVING_SERVICE, at_zero(name, image))
                await watched.until(SERVING_SERVICE, functools.partial(_is_ready_service, name))
                row = {}
                for kind, volume in zip(_BARE, (False, True), strict=True):
                    row[kind] = await bare_start(
                        cluster, watched, http, image=image, name=f"{name}-b{int(volume)}", volume=volume
                    )
                # A kubelet that looks at its pods each second has reported the bare pod just now: begin at any time of
                # its period.
                await asyncio.sleep(random.uniform(0.0, _KUBELET_PERIOD_S))
                steps: dict[str, Any] = await cold_start(
                    watched, http, ingress=ingress, host=f"{name}.{SPACE}.{domain}", revision=f"{name}-00001"
                )
                pod, begun_s = steps.pop("pod"), steps.pop("begun")
                if log:
                    await asyncio.sleep(_LOG_LAG_S)
                    steps |= containerd_steps(Path(log), pod)
                row |= {step: 1000 * (at_s - begun_s) for step, at_s in steps.items()}
                rows.append(row)
                await cluster.delete(SERVING_SERVICE, SPACE, name)
                print(f"  {number + 1} of {samples}: {row['answer']:.0f} ms, load {os.getloadavg()[0]:.1f}", flush=True)
        finally:
            print(f"cold starts{f', {label}' if label else ''}: ms after the request (bare pods: after the create)")
            print(f"  {'step':22} {'p50':>6} {'p90':>6} {'min':>6} {'max':>6}")
            for name in (*_BARE, *STEPS):
                print(summary(rows, name))


def at_zero(name: str, image: str) -> Object:
    """A service that starts without a pod."""
    annotations = {"autoscaling.knative.dev/initial-scale": "0", "autoscaling.knative.dev/window": "10s"}
    app = {"image": image, "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [app]}}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"template": template},
    }
