"""Inner TLS on a node: strict where nothing else is set, no cleartext between pods, and no failed request while it changes."""

import asyncio
import base64
import functools
import json
import urllib.request
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from serving.core.model.objects import Object
from tests.node_e2e.capture import between, captured, may_capture
from tests.node_e2e.stage import SPACE, SYSTEM, Load, NodeStage, installed, is_named, service
from tests.node_e2e.test_node import available

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not is_named(), reason="needs a cluster with nodes: SERVING_TEST_NODE_KUBECONFIG names none"),
]
DAEMONS = ("activator", "autoscaler", "controller", "dashboard")
CLEARTEXT = (b"HTTP/1.", b"GET /", b"POST /", b"PRI * HTTP", b"Bearer ", b"K-Pod-Secret", b"version 1 pod")
QUEUE_PORT = 8012
PER_S = 50.0
# Requests of some seconds, before and after a change.
SOME = 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NodeStage]:
    """An installation without any setting of inner TLS."""
    async with installed(tmp_path_factory.mktemp("inner")) as node_stage:
        yield node_stage


async def restart(stage: NodeStage, *daemons: str) -> None:
    """Restart all pods of daemons, and wait for the new ones."""
    names = [f"deployment/{daemon}" for daemon in daemons]
    await asyncio.to_thread(stage.kubectl, "-n", SYSTEM, "rollout", "restart", *names)
    for name in names:
        await asyncio.to_thread(stage.kubectl, "-n", SYSTEM, "rollout", "status", name, "--timeout=5m")


def are_rolled(stage: NodeStage, mode: str) -> bool:
    """Whether all pods of services are strict if ``mode`` is Enabled, else none, and no older ones are left."""
    deployments = stage.get("deployments")["items"]
    status = [deployment.get("status") or {} for deployment in deployments]
    is_over = all(
        counts.get("observedGeneration") == deployment["metadata"]["generation"]
        and counts.get("replicas", 0) == counts.get("updatedReplicas", 0) == counts.get("availableReplicas", 0)
        for deployment, counts in zip(deployments, status, strict=True)
    )
    strict = {mode_of(deployment["spec"]["template"]) == "Enabled" for deployment in deployments}
    return is_over and strict == {mode == "Enabled"}


def mode_of(pod: Object) -> str:
    """The mode of inner TLS of a pod or a template; "" if it says none."""
    (proxy,) = (container for container in pod["spec"]["containers"] if container["name"] == "queue-proxy")
    values: dict[str, str] = {variable["name"]: variable.get("value", "") for variable in proxy["env"]}
    return values.get("SERVING_QUEUEPROXY_INNER_TLS_MODE", "")


async def change_mode(stage: NodeStage, mode: str) -> None:
    """Change the mode as docs/inner-tls.md says: the controller first, the others when the pods of services are new."""
    patch = json.dumps({"data": {"system-internal-tls": mode}})
    stage.kubectl("-n", SYSTEM, "patch", "configmap", "config-network", "--type=merge", "-p", patch)
    await restart(stage, "controller")
    await stage.until(functools.partial(are_rolled, stage, mode), f"the pods of services are not {mode}")
    await restart(stage, "activator", "autoscaler")


async def deployed(stage: NodeStage, name: str, **annotations: str) -> None:
    stage.apply(service(name, stage.image, **annotations))
    await stage.ready(name)


async def seen(stage: NodeStage, load: Load, count: int = SOME) -> None:
    """Wait for so many more requests."""
    goal = load.count + count
    await stage.until(lambda: load.count >= goal, "too few responses")


def assert_unharmed(load: Load, what: str) -> None:
    print(f"{what}: {load.count} requests, longest {load.longest_s:.1f} s, {len(load.failures)} failed")  # noqa: T201 - a figure
    assert load.failures == []


def addresses(stage: NodeStage) -> set[str]:
    """The addresses of all pods of daemons and services."""
    pods = [pod for space in (SYSTEM, SPACE) for pod in stage.get("pods", namespace=space)["items"]]
    return {pod["status"]["podIP"] for pod in pods if pod["status"].get("podIP")}


def query_token(stage: NodeStage) -> str:
    secret = stage.get("secret", "serving-query-token", namespace=SYSTEM)
    return base64.b64decode(secret["data"]["token"]).decode()


async def test_a_fresh_installation_is_strict(stage: NodeStage) -> None:
    assert "system-internal-tls" not in stage.get("configmap", "config-network", namespace=SYSTEM)["data"]
    await deployed(stage, "strict", min_scale="1")
    (pod,) = stage.pods("strict")
    assert mode_of(pod) == "Enabled"
    async with aiohttp.ClientSession() as session:
        assert (await stage.send("strict", session=session))[0] == 200
        async with session.get(f"http://{pod['status']['podIP']}:{QUEUE_PORT}/") as response:
            assert response.status == 403
    (activator, *_) = stage.get("pods", "-l", "app.kubernetes.io/name=activator", namespace=SYSTEM)["items"]
    log = stage.kubectl("-n", SYSTEM, "logs", activator["metadata"]["name"])
    assert "spiffe://serving.local/daemon/activator" in log


@pytest.mark.skipif(not may_capture(), reason="may not open a packet socket")
async def test_no_cleartext_passes_between_pods(stage: NodeStage) -> None:
    with captured() as segments:
        await deployed(stage, "captured", target="2")
        known = addresses(stage)
        async with stage.loaded("captured", per_s=20, path="/?ms=400") as load:
            await stage.until(lambda: stage.ready_count("captured") >= 2, "fewer than 2 pods")
            known |= addresses(stage)
        stage.apply(service("captured", stage.image, version="2"))
        await stage.ready("captured")
        known |= addresses(stage)
        await stage.at_zero("captured")
    assert_unharmed(load, "captured")
    inside = between(segments, known)
    assert sum(segment.is_tls for segment in inside) > 100
    ports = {segment.receiver[1] for segment in inside if segment.is_tls}
    assert ports >= {QUEUE_PORT, 6081}, "neither requests nor statistics were captured"
    assert [segment for segment in inside if any(word in segment.payload for word in CLEARTEXT)] == []


async def test_the_dashboard_shows_decisions(stage: NodeStage) -> None:
    await deployed(stage, "shown")
    dashboard = stage.get("service", "dashboard", namespace=SYSTEM)["spec"]
    url = f"http://{dashboard['clusterIP']}:{dashboard['ports'][0]['port']}/state"
    request = urllib.request.Request(
        url, headers={"Host": "localhost", "Authorization": f"Bearer {query_token(stage)}"}
    )

    def has_decisions() -> bool:
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - http
            decided = json.load(response)["decisions"]
        return f"{SPACE}/shown-00001" in decided

    await stage.until(has_decisions, "no decision in the dashboard")


async def test_metrics_of_all_daemons_need_the_query_token_and_no_certificate(stage: NodeStage) -> None:
    headers = {"Authorization": f"Bearer {query_token(stage)}"}
    async with aiohttp.ClientSession() as session:
        for daemon, port in (("activator", 9090), ("autoscaler", 6081), ("controller", 9090)):
            (pod, *_) = stage.get("pods", "-l", f"app.kubernetes.io/name={daemon}", namespace=SYSTEM)["items"]
            url = f"http://{pod['status']['podIP']}:{port}/metrics"
            for value, status in ((headers, 200), ({}, 401)):
                async with session.get(url, headers=value) as response:
                    assert response.status == status, (daemon, await response.text())


async def test_restarts_and_renewals_cost_no_request(stage: NodeStage) -> None:
    life = json.dumps({"data": {"system-internal-tls-certificate-life": "10s"}})
    stage.kubectl("-n", SYSTEM, "patch", "configmap", "config-network", "--type=merge", "-p", life)
    await restart(stage, *DAEMONS)
    await deployed(stage, "renewed", min_scale="2")
    async with stage.loaded("renewed", per_s=PER_S) as load:
        await seen(stage, load)
        for daemon in DAEMONS:
            await restart(stage, daemon)
            await seen(stage, load)
        # Three lives of a certificate.
        await seen(stage, load, int(30 * PER_S))
    assert_unharmed(load, "restarts and renewals")
    life = json.dumps({"data": {"system-internal-tls-certificate-life": None}})
    stage.kubectl("-n", SYSTEM, "patch", "configmap", "config-network", "--type=merge", "-p", life)
    assert all(available(stage, each_daemon) for each_daemon in DAEMONS)


async def test_the_mode_changes_under_load(stage: NodeStage) -> None:
    await deployed(stage, "asleep")
    await stage.at_zero("asleep")
    await deployed(stage, "awake", min_scale="2")
    async with stage.loaded("awake", per_s=PER_S) as load, aiohttp.ClientSession() as session:
        for mode in ("Permissive", "Disabled", "Permissive", "Enabled"):
            await seen(stage, load)
            await change_mode(stage, mode)
            await deployed(stage, f"made-{mode.lower()}")
            assert (await stage.send("asleep", session=session))[0] == 200
            await seen(stage, load)
            print(mode, load.count, load.failures)  # noqa: T201 - where it failed
    assert_unharmed(load, "changes of the mode")
    assert {mode_of(pod) for pod in stage.pods("awake")} == {"Enabled"}


async def test_an_older_installation_becomes_strict_under_load(stage: NodeStage) -> None:
    if not stage.previous_image:
        pytest.skip("SERVING_TEST_NODE_PREVIOUS_IMAGE names no image")
    await asyncio.to_thread(stage.install_previous)
    await deployed(stage, "older", min_scale="2")
    async with stage.loaded("older", per_s=PER_S) as load:
        await seen(stage, load)
        output = await asyncio.to_thread(stage.install_present)
        assert "inner TLS is Permissive" in output
        await seen(stage, load)
        assert {mode_of(pod) for pod in stage.pods("older")} == {""}, "pods stay with the upgrade"
        await change_mode(stage, "Enabled")
        await seen(stage, load)
    assert_unharmed(load, "an upgrade that ends strict")
    assert {mode_of(pod) for pod in stage.pods("older")} == {"Enabled"}
