"""Deployments that exist, scaled by their requests: by KEDA's routes, beside other writers, and through faults.

Pods are servers of this process, which answer with their name.
"""

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from serving.core.model.objects import Object, condition_of, name_of, nested
from serving.net.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    HTTP_SCALED_OBJECT,
    INTERCEPTOR_ROUTE,
    KEDA_SCALED_OBJECT,
    SCALED_WORKLOAD,
    SERVICE,
    Kind,
)
from serving.tools.cli.client.api import ApiCall, ApiClient
from serving.tools.cli.client.resources import path_of
from tests.cluster_e2e.app_kubelet import OVERRIDE, AppKubelet
from tests.cluster_e2e.server import SPACE, only_here
from tests.cluster_e2e.stage import Stage, staged
from tests.cluster_e2e.with_pods import asked

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]
_APPLY = "application/apply-patch+yaml"
_CONFLICT = 409
_AWAY_S = 3.0
# Requests of each client: short ones, and one that is inside while things end.
_CLIENTS = ("/", "/", "/sleep/1", "/sleep/1")
_SOON = {"autoscaling.knative.dev/window": "6s"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Stage, AppKubelet]]:
    async with staged(tmp_path_factory.mktemp("workloads"), runs_nothing=False, settings=OVERRIDE) as result:
        kubelet = AppKubelet(result, start_s=0.1)
        node = asyncio.create_task(kubelet.run())
        try:
            yield result, kubelet
        finally:
            await result.clear()
            node.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await node


async def deploy(stage: Stage, name: str, *, replicas: int = 0) -> None:
    """A Deployment with its Service, as users have them."""
    labels = {"app": name}
    container = {"name": "app", "image": "registry.example/app", "ports": [{"name": "web", "containerPort": 8080}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], **only_here()}}
    body = {
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }
    await stage.cluster.create(DEPLOYMENT, body)
    ports = [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "admin", "port": 81, "targetPort": "web"}]
    await stage.cluster.create(
        SERVICE, {"metadata": {"name": name, "namespace": SPACE}, "spec": {"selector": labels, "ports": ports}}
    )


def http_scaled_object(name: str, **spec: object) -> Object:
    backend = {"name": name, "service": name, "port": 80}
    own = {"hosts": [f"{name}.example.com"], "scaleTargetRef": backend, "scaledownPeriod": 60, **spec}
    return {"metadata": {"name": name, "namespace": SPACE, "annotations": {}}, "spec": own}


def interceptor_route(name: str, **spec: object) -> Object:
    own = {
        "target": {"service": name, "portName": "http"},
        "rules": [{"hosts": [f"{name}.example.com"]}],
        "scalingMetric": {"concurrency": {"targetValue": 10}},
        **spec,
    }
    return {"metadata": {"name": name, "namespace": SPACE}, "spec": own}


def scaled_object(name: str) -> Object:
    trigger = {"type": "external-push", "metadata": {"interceptorRoute": name}}
    spec = {"scaleTargetRef": {"name": name}, "minReplicaCount": 0, "maxReplicaCount": 3, "triggers": [trigger]}
    return {"metadata": {"name": name, "namespace": SPACE}, "spec": spec}


async def ask(stage: Stage, name: str, path: str = "/") -> tuple[int, str]:
    """One request, repeated until the activator knows the host."""
    async with asyncio.timeout(240):
        while (response := await asked(stage.port("public"), f"{name}.example.com", path))[0] == 404:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.05)
    return response


async def until_condition(stage: Stage, kind: Kind, name: str, wanted: str, status: str = "True") -> Object:
    return await stage.until(kind, name, lambda resource: condition_of(resource, wanted).get("status") == status)


async def until_scale(stage: Stage, name: str, count: int) -> None:
    await stage.until(DEPLOYMENT, name, lambda deployment: deployment["spec"].get("replicas", 1) == count)


async def test_an_http_scaled_object_scales_from_zero_and_goes_with_what_was_made_of_it(
    stage: tuple[Stage, AppKubelet],
) -> None:
    result, _ = stage
    await deploy(result, "old")
    await result.cluster.create(HTTP_SCALED_OBJECT, http_scaled_object("old"))
    status, pod = await ask(result, "old")
    assert (status, pod.rpartition("-")[0].startswith("old")) == (200, True)
    route = await until_condition(result, HTTP_SCALED_OBJECT, "old", "Ready")
    assert condition_of(route, "Converted")["status"] == "True"
    assert nested(route, "status", "targetService") == "old:80"
    await result.cluster.delete(HTTP_SCALED_OBJECT, SPACE, "old")
    await result.until_gone(SCALED_WORKLOAD, "old")
    async with asyncio.timeout(60):
        while (await asked(result.port("public"), "old.example.com"))[0] != 404:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.05)


async def test_an_interceptor_route_waits_for_its_scaled_object_and_then_serves(
    stage: tuple[Stage, AppKubelet],
) -> None:
    result, _ = stage
    await deploy(result, "new")
    await result.cluster.create(INTERCEPTOR_ROUTE, interceptor_route("new"))
    route = await until_condition(result, INTERCEPTOR_ROUTE, "new", "Ready", "False")
    assert condition_of(route, "Ready")["reason"] == "NotConverted"
    await result.cluster.create(KEDA_SCALED_OBJECT, scaled_object("new"))
    await until_condition(result, INTERCEPTOR_ROUTE, "new", "Ready")
    assert (await ask(result, "new"))[0] == 200
    workload = await result.cluster.get(SCALED_WORKLOAD, SPACE, "new")
    assert nested(workload, "status", "portName") == "http"
    assert workload["spec"]["scaling"]["max"] == 3


async def test_the_cold_start_of_a_route_has_its_placeholder_and_its_fallback(stage: tuple[Stage, AppKubelet]) -> None:
    result, kubelet = stage
    kubelet.stuck.add("late")
    await deploy(result, "late")
    await deploy(result, "maintenance", replicas=1)
    fallback = {"service": {"name": "maintenance", "port": 81}}
    page = {"name": "pages", "namespace": SPACE, "labels": {"http.keda.sh/response-body": "true"}}
    await result.cluster.create(CONFIG_MAP, {"metadata": page, "data": {"wait.html": "soon"}})
    response = {"statusCode": 202, "bodyFromConfigMap": {"name": "pages", "key": "wait.html"}}
    cold_start = {"fallback": fallback, "placeholder": {"response": response}, "overflow": "Placeholder"}
    route = interceptor_route("late", coldStart={**cold_start, "maxPendingRequests": 1}, timeouts={"readiness": "2s"})
    await result.cluster.create(INTERCEPTOR_ROUTE, route)
    await result.cluster.create(KEDA_SCALED_OBJECT, scaled_object("late"))
    await until_condition(result, SCALED_WORKLOAD, "late", "Ready")
    # The ConfigMap may be seen after the route.
    body = ("spec", "coldStart", "placeholder", "body")
    await result.until(SCALED_WORKLOAD, "late", lambda workload: nested(workload, *body) == "soon")
    await result.until(
        SCALED_WORKLOAD, "late", lambda workload: nested(workload, "status", "fallbackPortName") == "admin"
    )
    first, second = await asyncio.gather(ask(result, "late"), ask(result, "late"))
    assert {first[0], second[0]} == {200, 202}
    assert sorted(text.partition("-")[0] for _, text in (first, second)) == ["maintenance", "soon"]
    # The pod that never came was wanted.
    await until_scale(result, "late", 1)


def applied(stage: Stage, kind: Kind, body: Object, *, manager: str, force: bool = False) -> tuple[int, Object]:
    """Apply an object on the server as a field manager; status and response."""
    whole = {"apiVersion": kind.api_version, "kind": kind.name, **body}
    query = {"fieldManager": manager, "force": "true" if force else ""}
    path = path_of(kind, SPACE, name_of(body))
    call = ApiCall(method="PATCH", path=path, query=query, body=whole, media=_APPLY)
    return ApiClient(kubeconfig=Path(stage.server.kubeconfig)).send(call)


def raw(stage: Stage, name: str) -> Object:
    """A Deployment with its field managers, which the client of the daemons drops."""
    api = ApiClient(kubeconfig=Path(stage.server.kubeconfig))
    deployment: Object = api.done("GET", path_of(DEPLOYMENT, SPACE, name))
    return deployment


def managers_of(resource: Object, *path: str) -> set[str]:
    """The field managers that own a field."""
    fields = [f"f:{name}" for name in path]
    entries = nested(resource, "metadata", "managedFields") or ()
    return {entry["manager"] for entry in entries if nested(entry, "fieldsV1", *fields) is not None}


async def test_each_writer_owns_its_fields_and_a_second_one_is_refused(stage: tuple[Stage, AppKubelet]) -> None:
    result, _ = stage
    await deploy(result, "shared", replicas=1)
    spec = {
        "target": {"name": "shared"},
        "service": {"name": "shared", "port": 80},
        "hosts": ["shared.example.com"],
        "scaling": {"max": 3, "target": 5},
    }
    body: Object = {"metadata": {"name": "shared", "namespace": SPACE, "annotations": _SOON}, "spec": spec}
    status, _ = await asyncio.to_thread(applied, result, SCALED_WORKLOAD, body, manager="team")
    assert status == 201
    # What our daemons write is none of the team's: applied again, nothing conflicts.
    await until_condition(result, SCALED_WORKLOAD, "shared", "Ready")
    assert (await ask(result, "shared"))[0] == 200
    await until_scale(result, "shared", 0)
    status, again = await asyncio.to_thread(applied, result, SCALED_WORKLOAD, body, manager="team")
    assert status == 200
    assert again["spec"]["scaling"] == spec["scaling"]
    # A second manager may add a field, and may not change another's.
    tag = {"name": "shared", "namespace": SPACE}
    other: Object = {"metadata": tag, "spec": {"target": {"name": "shared"}, "service": {"name": "shared"}}}
    other["spec"]["scaling"] = {"scaleDownDelay": "0s"}
    status, reply = await asyncio.to_thread(applied, result, SCALED_WORKLOAD, other, manager="platform")
    assert status == 200, reply
    other["spec"]["scaling"] = {"max": 1}
    status, reply = await asyncio.to_thread(applied, result, SCALED_WORKLOAD, other, manager="platform")
    assert (status, "team" in str(reply)) == (_CONFLICT, True)
    # Of the Deployment the autoscaler owns the replicas alone.
    assert (await ask(result, "shared"))[0] == 200
    scaled = await asyncio.to_thread(raw, result, "shared")
    assert managers_of(scaled, "spec", "replicas") == {"serving-autoscaler"}
    assert "serving-autoscaler" not in managers_of(scaled, "spec", "template")
    without = {
        "metadata": tag,
        "spec": {"selector": scaled["spec"]["selector"], "template": scaled["spec"]["template"]},
    }
    await until_scale(result, "shared", 0)
    status, reply = await asyncio.to_thread(applied, result, DEPLOYMENT, without, manager="gitops", force=True)
    assert (status, reply["spec"]["replicas"]) == (200, 0)
    without["spec"]["replicas"] = 7
    status, _ = await asyncio.to_thread(applied, result, DEPLOYMENT, without, manager="gitops")
    assert status == _CONFLICT


async def test_through_each_fault_a_workload_is_served_by_the_pods_that_it_has(stage: tuple[Stage, AppKubelet]) -> None:
    result, _ = stage
    # It takes some seconds, in which an idle workload would go to zero.
    await result.start("activator", instance="activator-b")
    await deploy(result, "steady", replicas=1)
    await result.cluster.create(HTTP_SCALED_OBJECT, http_scaled_object("steady"))
    await until_condition(result, HTTP_SCALED_OBJECT, "steady", "Ready")
    assert (await ask(result, "steady"))[0] == 200
    statuses: Counter[int] = Counter()
    scales: set[int] = set()
    is_over = asyncio.Event()

    async def client(path: str) -> None:
        while not is_over.is_set():
            statuses[(await asked(result.port("public"), "steady.example.com", path))[0]] += 1
            await asyncio.sleep(0.02)

    async def look() -> None:
        while not is_over.is_set():
            scales.add((await result.cluster.get(DEPLOYMENT, SPACE, "steady"))["spec"]["replicas"])
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as group:
        for path in _CLIENTS:
            group.create_task(client(path))
        group.create_task(look())
        for name in ("controller", "autoscaler"):
            # A leader that is frozen, then killed, and one that comes in its place.
            result.daemons[name].process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(_AWAY_S)
            result.daemons[name].process.send_signal(signal.SIGCONT)
            result.daemons[name].process.kill()
            await result.daemons[name].process.wait()
            await asyncio.sleep(_AWAY_S)
            await result.start(name)
        await result.gate.shut()
        await asyncio.sleep(_AWAY_S)
        await result.gate.open()
        await asyncio.sleep(_AWAY_S)
        # The activators share their sockets: one leaves them to the other.
        result.daemons["activator-b"].process.send_signal(signal.SIGHUP)
        await result.daemons["activator-b"].process.wait()
        await asyncio.sleep(_AWAY_S)
        is_over.set()
    assert set(statuses) == {200}, statuses
    assert scales == {1}
