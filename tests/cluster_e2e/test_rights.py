"""The Roles of ``config/rbac`` grant what the daemons use: nothing is missing, and nothing is unused."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from serving.core.model.errors import ClusterError, NotFound
from serving.core.model.knative import (
    ALLOW_FROM_ANNOTATION,
    GUARDED_ANNOTATION,
    SERVING_STATE_ANNOTATION,
    TCP_ANNOTATION,
    ServingState,
)
from serving.core.model.objects import Object, annotations_of, condition_of
from serving.core.model.tcpevents import TCP_UNAVAILABLE
from serving.net.cluster.kinds import (
    CLUSTER_DOMAIN_CLAIM,
    DEPLOYMENT,
    DOMAIN_MAPPING,
    ENDPOINT_SLICE,
    EVENT,
    HORIZONTAL_POD_AUTOSCALER,
    HTTP_SCALED_OBJECT,
    INTERCEPTOR_ROUTE,
    POD,
    REVISION,
    SCALED_WORKLOAD,
    SCALING_POLICY,
    SERVICE,
    SERVING_SERVICE,
)
from serving.net.cluster.kube import KubeCluster
from serving.tools.cli.client.tree import tree_folder
from tests.cluster_e2e.server import SPACE, is_real, only_here
from tests.cluster_e2e.stage import ACTIVATOR_ADDRESSES, Stage, service, staged
from tests.cluster_e2e.with_pods import asked
from tests.eventually import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

DAEMONS = ("controller", "autoscaler", "activator", "dashboard", "placement")
# The components that give a daemon more rights.
COMPONENTS = {"controller": "keda-http"}
HOST = "all.example.test"
# As in a cluster; and nothing is kept that has no traffic, and it is looked for often.
SETTINGS = {
    "SERVING_ELECTION_ENABLED": "true",
    "SERVING_AUTOSCALER_STATS_AUDIENCE": "serving-stats",
    "SERVING_CONTROLLER_SIDECAR_ENABLED": "true",
    "SERVING_CONTROLLER_SIDECAR_IMAGE": "queue-proxy",
    "SERVING_CONTROLLER_RETAIN_SINCE_CREATE_TIME_S": "0",
    "SERVING_CONTROLLER_RETAIN_SINCE_LAST_ACTIVE_TIME_S": "0",
    "SERVING_CONTROLLER_MIN_NON_ACTIVE_REVISIONS": "0",
    "SERVING_CONTROLLER_MAX_NON_ACTIVE_REVISIONS": "0",
    "SERVING_CONTROLLER_RESYNC_PERIOD_S": "1",
    "SERVING_CONTROLLER_AUTOCREATE_CLUSTER_DOMAIN_CLAIMS": "true",
}
# Used when two write one object at the same moment, or after a restart: no test can bring that about at will. Each has
# a test beside its code, which does.
ONLY_IN_A_RACE = {
    "activator": {"get events", "get revisions.serving.knative.dev", "get scaledworkloads.serving.dev"},
    "autoscaler": {
        "get revisions.serving.knative.dev",
        "get scaledworkloads.serving.dev",
        "update events",
        "get deployments.apps/scale",
        "get leases.coordination.k8s.io",
        # Pods that sleep, or that start with more cpu (``integration/test_podsizes.py``); the pods here do neither.
        "get pods",
        "patch pods/resize",
        "patch pods/status",
    },
    # Patched is an Event that is repeated, as of a service that fails again, and the authority in a second term.
    "controller": {
        *("get events", "patch events", "get leases.coordination.k8s.io", "patch secrets"),
        # No call: the server asks for it when a RoleBinding is created.
        "bind clusterroles.rbac.authorization.k8s.io",
    },
    # While a page shows the map (``integration/test_dashboard_map.py``).
    "dashboard": {"list routes.serving.knative.dev", "list domainmappings.serving.knative.dev"},
}


def granted(daemon: str) -> set[str]:
    """The permissions of a daemon's Roles: "patch deployments.apps/scale"."""
    results: set[str] = set()
    folder = tree_folder()
    component = COMPONENTS.get(daemon, daemon)
    paths = [folder / "rbac" / f"{daemon}.yaml", folder / "components" / component / "rbac.yaml"]
    for path in (each_path for each_path in paths if each_path.exists()):
        for role in yaml.safe_load_all(path.read_text()):
            # Others are for people.
            is_own = daemon.startswith(role["metadata"].get("labels", {}).get("app.kubernetes.io/name", "-"))
            for rule in role.get("rules", ()) if is_own else ():
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        plural, slash, part = resource.partition("/")
                        whole = (f"{plural}.{group}" if group else plural) + slash + part
                        results |= {f"{verb} {whole}" for verb in rule["verbs"]}
    return results


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("rights"), daemons=DAEMONS, settings=SETTINGS) as new_stage:
        yield new_stage


def policy(name: str) -> Object:
    trigger = {"type": "cpu", "usagePercent": 70, "timeSeconds": 20}
    return {
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"targetRef": {"kind": "Service", "name": name}, "max": 4, "up": {"triggers": [trigger]}},
    }


async def everything(stage: Stage) -> None:
    """Have every daemon do everything once."""
    await _claim(stage.port("stats"))
    await stage.apply(service("all"))
    await stage.ready("all")
    with contextlib.suppress(NotFound):
        await stage.cluster.delete(SCALING_POLICY, SPACE, "all")
    await stage.cluster.create(SCALING_POLICY, policy("all"))
    # An activator more is in all public slices.
    await stage.set_activators([*ACTIVATOR_ADDRESSES, "10.78.0.9"])
    await stage.until(
        ENDPOINT_SLICE, "all-public", lambda endpoint_slice: len(endpoint_slice["endpoints"]) > len(ACTIVATOR_ADDRESSES)
    )
    await stage.set_activators(ACTIVATOR_ADDRESSES)
    stage.load("all-00001", 4)
    await stage.scaled("all-00001", 4)
    stage.load("all-00001", 1)
    await stage.scaled("all-00001", 1)
    traffic = [{"revisionName": "all-00001", "percent": 50, "tag": "old"}, {"latestRevision": True, "percent": 50}]
    changed = await stage.apply(service("all", traffic=traffic))
    await stage.ready("all", generation=changed["metadata"]["generation"])
    await _mapped(stage)
    changed = await stage.apply(service("all", traffic=[{"latestRevision": True, "percent": 100}]))
    await stage.ready("all", generation=changed["metadata"]["generation"])
    # Two that go unused, of which none is to be kept.
    for version in ("2", "3"):
        changed = await stage.apply(service("all", version=version))
        await stage.ready("all", generation=changed["metadata"]["generation"])
    await stage.until_gone(REVISION, "all-00001")
    await stage.until_gone(SERVICE, "old-all")
    stage.load("all-00003", 0)
    await stage.until(REVISION, "all-00003", lambda revision: revision["spec"].get("servingState") == "Reserve")
    await _by_hpa(stage)
    await _by_workload(stage)
    await _with_port(stage)
    # A pod that is still there would get the request, and its address leads nowhere.
    await stage.scaled("all-00003", 0)
    await stage.until_none(POD, label_selector="app=all-00003")
    asking = asyncio.create_task(_call(stage.port("public"), "all"))
    await stage.until(REVISION, "all-00003", lambda revision: revision["spec"].get("servingState") == "Active")
    asking.cancel()
    # Last, because its pods are replaced.
    guarded = {"metadata": {"annotations": {ALLOW_FROM_ANNOTATION: "namespace/other"}}}
    await stage.cluster.patch(SERVING_SERVICE, SPACE, "all", patch=guarded)
    await stage.until(DEPLOYMENT, "all-00003-deployment", _is_guarded)


def _is_guarded(deployment: Object) -> bool:
    return GUARDED_ANNOTATION in annotations_of(deployment["spec"]["template"])


async def _mapped(stage: Stage) -> None:
    """A DomainMapping whose host is claimed for it, and released with it; labels that the public Services take over."""
    ref = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "all"}
    await stage.cluster.create(DOMAIN_MAPPING, {"metadata": {"name": HOST, "namespace": SPACE}, "spec": {"ref": ref}})
    await stage.until(
        DOMAIN_MAPPING, HOST, lambda domain_mapping: condition_of(domain_mapping, "Ready").get("status") == "True"
    )
    await stage.cluster.delete(DOMAIN_MAPPING, SPACE, HOST)
    await stage.until_gone(CLUSTER_DOMAIN_CLAIM, HOST, namespace="")
    await stage.cluster.patch(SERVING_SERVICE, SPACE, "all", patch={"metadata": {"labels": {"team": "a"}}})
    await stage.until(SERVICE, "all", lambda current_service: current_service["metadata"]["labels"].get("team") == "a")


async def _by_hpa(stage: Stage) -> None:
    """A revision of an hpa: it loses its route, and at last its class becomes ours."""
    own = {"autoscaling.knative.dev/class": "hpa.autoscaling.knative.dev", "autoscaling.knative.dev/min-scale": "2"}
    await stage.apply(service("hpa", annotations=own))
    await stage.ready("hpa")
    await stage.until(HORIZONTAL_POD_AUTOSCALER, "hpa-00001", lambda resource: resource["spec"]["minReplicas"] == 2)
    changed = await stage.apply(service("hpa", version="2", annotations=own))
    await stage.ready("hpa", generation=changed["metadata"]["generation"])
    ours = {"metadata": {"annotations": {"autoscaling.knative.dev/class": "kpa.autoscaling.knative.dev"}}}
    await stage.cluster.patch(REVISION, SPACE, "hpa-00002", patch=ours)
    await stage.until_none(HORIZONTAL_POD_AUTOSCALER)


async def _by_workload(stage: Stage) -> None:
    """A Deployment goes to zero by a route of KEDA's HTTP add-on, and wakes. Another route has nothing to scale."""
    name, labels = "shop", {"app": "shop"}
    metadata = {"name": name, "namespace": SPACE}
    container = {"name": "app", "image": "registry.example/shop", "ports": [{"containerPort": 8080}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], **only_here()}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    await stage.cluster.create(DEPLOYMENT, {"metadata": metadata, "spec": spec})
    ports = [{"port": 80, "targetPort": 8080}]
    await stage.cluster.create(SERVICE, {"metadata": metadata, "spec": {"selector": labels, "ports": ports}})
    target = {"name": name, "service": name, "port": 80}
    spec = {"hosts": [f"{name}.{SPACE}.localhost"], "scaleTargetRef": target, "scaledownPeriod": 1}
    await stage.cluster.create(HTTP_SCALED_OBJECT, {"metadata": metadata, "spec": spec})
    spec = {"target": {"service": name, "port": 80}, "scalingMetric": {"concurrency": {"targetValue": 1}}}
    await stage.cluster.create(INTERCEPTOR_ROUTE, {"metadata": {**metadata, "name": "alone"}, "spec": spec})
    await stage.until(
        INTERCEPTOR_ROUTE,
        "alone",
        lambda interceptor_route: condition_of(interceptor_route, "Ready").get("status") == "False",
    )
    await stage.until(
        HTTP_SCALED_OBJECT,
        name,
        lambda http_scaled_object: condition_of(http_scaled_object, "Ready").get("status") == "True",
    )
    await stage.cluster.patch(HTTP_SCALED_OBJECT, SPACE, name, patch={"spec": {"replicas": {"max": 2}}})
    await stage.until(SCALED_WORKLOAD, name, lambda scaled_workload: scaled_workload["spec"]["scaling"].get("max") == 2)
    await stage.until(SCALED_WORKLOAD, name, functools.partial(_has_state, ServingState.RESERVE))
    await stage.until_none(POD, label_selector=f"app={name}")
    asking = asyncio.create_task(_call(stage.port("public"), name))
    await stage.until(SCALED_WORKLOAD, name, functools.partial(_has_state, ServingState.ACTIVE))
    asking.cancel()
    for kind, text in ((HTTP_SCALED_OBJECT, name), (INTERCEPTOR_ROUTE, "alone"), (SERVICE, name), (DEPLOYMENT, name)):
        await stage.cluster.delete(kind, SPACE, text)


def _has_state(state: ServingState, workload: Object) -> bool:
    return annotations_of(workload).get(SERVING_STATE_ANNOTATION) == state


async def _with_port(stage: Stage) -> None:
    """Ports for TCP that another program has; one of them is asked for twice, and another in between."""
    with socket.create_server(("127.0.0.1", 0)) as sock, socket.create_server(("127.0.0.1", 0)) as other:
        for taken, count in ((sock, 1), (other, 1), (sock, 2)):
            port = str(taken.getsockname()[1])
            patch = {"metadata": {"annotations": {TCP_ANNOTATION: port}}}
            await stage.cluster.patch(SERVING_SERVICE, SPACE, "all", patch=patch)
            await until(functools.partial(_is_reported, stage, port, count), within_s=120)
            await stage.until(SERVICE, "all", functools.partial(_names_port, port))
            await stage.until(ENDPOINT_SLICE, "all-public", functools.partial(_names_port, port))


def _names_port(number: str, resource: Object) -> bool:
    """Whether a Service or slice has one port besides that for HTTP."""
    ports = resource["spec"]["ports"] if "spec" in resource else resource["ports"]
    return [(port["name"], str(port["port"])) for port in ports][1:] == [(f"tcp-{number}", number)]


async def _is_reported(stage: Stage, port: str, count: int) -> bool:
    events = (await stage.cluster.list(EVENT, SPACE)).items
    result = (event for event in events if annotations_of(event).get(TCP_ANNOTATION) == port)
    return any(event["reason"] == TCP_UNAVAILABLE and event["count"] >= count for event in result)


async def _claim(port: int) -> None:
    """A client that claims to be a pod; the autoscaler asks the server about its token."""
    url = f"ws://127.0.0.1:{port}/stats?namespace={SPACE}&revision=all-00001&pod=all-00001-deployment-0"
    with pytest.raises(InvalidStatus) as refused:
        await connect(url, additional_headers={"Authorization": "Bearer made-up"}, proxy=None, open_timeout=60)
    assert refused.value.response.status_code == 401


async def _call(port: int, name: str) -> None:
    """Send requests until one waits: the activator may still know a pod that is gone, whose address leads nowhere."""
    while True:
        await asked(port, f"{name}.{SPACE}.localhost")
        await asyncio.sleep(0.1)


async def test_daemons_call_what_their_roles_allow_and_their_roles_allow_what_they_call(stage: Stage) -> None:
    await everything(stage)
    assert {daemon: differences for daemon in DAEMONS if (differences := await _differences(stage, daemon))} == {}


@pytest.mark.skipif(not is_real(), reason="our own server has no Roles")
async def test_the_autoscaler_scales_deployments_of_revisions_and_where_it_is_bound(
    stage: Stage, tmp_path: Path
) -> None:
    kubeconfig = await stage.server.kubeconfig_of("autoscaler", tmp_path, port=stage.gate.port)
    refused: dict[str, str] = {}
    async with KubeCluster(kubeconfig) as cluster:
        for name, label in (("foreign", "app"), ("own", "serving.knative.dev/revisionUID")):
            labels = {label: name}
            pod = {"containers": [{"name": "app", "image": "registry.example/app"}]}
            template = {"metadata": {"labels": labels}, "spec": pod}
            spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
            await stage.cluster.create(DEPLOYMENT, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
            try:
                await cluster.patch(DEPLOYMENT, "default", name, patch={"spec": {"replicas": 0}}, subresource="scale")
            except ClusterError as error:
                refused[name] = str(error)
            await stage.cluster.delete(DEPLOYMENT, "default", name)
    assert list(refused) == ["foreign"]
    assert "the namespace has no RoleBinding serving-scaled-workloads" in refused["foreign"]


async def _differences(stage: Stage, daemon: str) -> tuple[set[str], set[str]] | None:
    """Calls of a daemon without a right, and rights without a call."""
    allowed, rare = granted(daemon), ONLY_IN_A_RACE.get(daemon, set())
    assert rare <= allowed, "what is rare is needed all the same"
    if not is_real():
        # It has no Roles.
        rights = (f"{verb} rolebindings.rbac.authorization.k8s.io" for verb in ("create", "delete", "watch"))
        rare = rare | {"list namespaces", "watch namespaces", *rights} & allowed
        if daemon == "activator":
            # The call that writes a revision's scale sets it Active first (``integration/test_activator_faults.py``).
            rare = rare | {"patch revisions.serving.knative.dev"}
    else:
        # The leases of an earlier run are still there, and a server may have no metrics.
        rare = rare | {"create leases.coordination.k8s.io", "list pods.metrics.k8s.io"} & allowed
    # Events, and what a lease needs, come when it is their turn: nothing of ``everything`` waits for them.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(240):
            while not allowed - rare <= stage.daemons[daemon].calls:  # noqa: ASYNC110 - a file is polled
                await asyncio.sleep(0.1)
    calls = stage.daemons[daemon].calls
    results = calls - allowed, allowed - calls - rare
    return results if any(results) else None
