"""The system of a user on a cluster: installed from its images, with apps in containers, under load.

Each test has a service of its own. Where no failure is allowed, requests come at a steady pace through all that
happens.
"""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import grpc.aio  # type: ignore[import-untyped]  # it has no types
import pytest
import pytest_asyncio
import websockets

from tests.node_e2e.stage import DOMAIN, SPACE, SYSTEM, Load, NodeStage, in_namespace, is_named, service

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not is_named(), reason="needs a cluster with nodes: SERVING_TEST_NODE_KUBECONFIG names none"),
]

UNIMPEDED = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NodeStage]:
    """The installed system. It is removed at the end, without a trace."""
    node_stage = NodeStage(tmp_path_factory.mktemp("node"))
    node_stage.install_present()
    with in_namespace(node_stage):
        yield node_stage
        install = node_stage.install("--uninstall", code=1)
        assert "--with-services" in install, "an installation with services is not taken off by accident"
    node_stage.install("--uninstall", "--with-services", "--wait", "--timeout", "10m")
    remaining = node_stage.kubectl(
        "get", "crd,clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/part-of=serving", "-o", "name"
    )
    assert remaining == ""


async def deployed(stage: NodeStage, name: str, *, version: str = "1", port_name: str = "", **annotations: str) -> None:
    """A service that is ready and responds."""
    stage.apply(service(name, stage.image, version=version, port_name=port_name, **annotations))
    await stage.ready(name)


def assert_unharmed(load: Load, at_least: int = UNIMPEDED) -> None:
    assert load.failures == []
    assert load.count >= at_least


async def test_a_second_installation_changes_nothing(stage: NodeStage) -> None:
    install_present = stage.install_present()
    results = {line.rpartition(" ")[2] for line in install_present.splitlines() if "/" in line.partition(" ")[0]}
    # The job that makes the key has ended and is gone: it is created again.
    assert results <= {"unchanged", "kept", "created"}
    assert f"{DOMAIN}" == stage.get("configmap", "config-controller", namespace=SYSTEM)["data"]["domain"]


async def test_kubectl_apply_over_an_installation_keeps_the_domain(stage: NodeStage) -> None:
    stage.kubectl("apply", "-f", "config/config-controller.yaml")
    assert stage.get("configmap", "config-controller", namespace=SYSTEM)["data"]["domain"] == DOMAIN


async def test_a_service_wakes_and_goes_back_to_zero(stage: NodeStage) -> None:
    await deployed(stage, "waking")
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            await stage.at_zero("waking")
            status, body = await stage.send("waking", session=session)
            assert (status, body.startswith("version 1 pod waking-00001-")) == (200, True)


async def test_load_brings_pods_and_they_go_with_it(stage: NodeStage) -> None:
    await deployed(stage, "scaling", target="2")
    async with stage.loaded("scaling", per_s=20, path="/?ms=400") as load:
        await stage.until(lambda: stage.ready_count("scaling") >= 3, "fewer than 3 pods")
    assert_unharmed(load)
    await stage.at_zero("scaling")


async def test_a_rollout_under_load_loses_nothing(stage: NodeStage) -> None:
    await deployed(stage, "rolling", min_scale="1")
    async with stage.loaded("rolling") as load:
        await stage.until(lambda: load.responses["version 1"] >= UNIMPEDED, "version 1 does not answer")
        await deployed(stage, "rolling", version="2", min_scale="1")
        await stage.until(lambda: load.responses["version 2"] >= UNIMPEDED, "version 2 does not answer")
    assert_unharmed(load)


async def test_traffic_is_split_and_a_tag_reaches_its_revision(stage: NodeStage) -> None:
    await deployed(stage, "split", min_scale="1")
    changed = service("split", stage.image, version="2", min_scale="1")
    changed["spec"]["traffic"] = [
        {"revisionName": "split-00001", "percent": 50, "tag": "old"},
        {"latestRevision": True, "percent": 50},
    ]
    stage.apply(changed)
    await stage.ready("split")
    async with stage.loaded("split", per_s=50, path="/") as load:
        await stage.until(lambda: load.count >= 200, "too few answers")
    assert_unharmed(load)
    assert min(load.responses["version 1"], load.responses["version 2"]) >= load.count / 4
    async with aiohttp.ClientSession() as session:
        responses = [await stage.send("old-split", session=session) for _ in range(10)]
    assert {(status, body.split(" pod")[0]) for status, body in responses} == {(200, "version 1")}


async def test_grpc_and_websocket_reach_the_app_from_zero(stage: NodeStage) -> None:
    await deployed(stage, "grpc", port_name="h2c")
    await deployed(stage, "socket")
    for name in ("grpc", "socket"):
        await stage.at_zero(name)
    options = [("grpc.default_authority", stage.host("grpc"))]
    async with grpc.aio.insecure_channel(stage.ingress, options=options) as channel:
        call = channel.unary_unary("/echo.Echo/Echo", lambda text: text, lambda text: text)
        assert await call(b"hello", timeout=120) == b"hello"
    address, port = stage.ingress.rsplit(":", 1)
    url = f"ws://{stage.host('socket')}/"
    async with websockets.connect(url, host=address, port=int(port), open_timeout=120, compression=None) as socket:
        for text in ("one", "two"):
            await socket.send(text)
            assert await socket.recv() == text


async def test_an_app_that_crashes_is_started_again_and_serves(stage: NodeStage) -> None:
    await deployed(stage, "crashing", min_scale="2")
    await stage.until(lambda: stage.ready_count("crashing") == 2, "two pods")
    async with stage.loaded("crashing", repeats=True) as load:
        # It is not marked as repeatable, so it does not end the other app too.
        assert (await stage.post("crashing", "/crash"))[0] == 502
        await stage.until(lambda: load.count >= 100, "too few answers")
    assert_unharmed(load)


async def test_pods_that_are_deleted_under_load_lose_nothing(stage: NodeStage) -> None:
    await deployed(stage, "deleted", min_scale="2")
    await stage.until(lambda: stage.ready_count("deleted") == 2, "two pods")
    async with stage.loaded("deleted") as load:
        for _ in range(2):
            victim = min(pod["metadata"]["name"] for pod in stage.pods("deleted"))
            stage.kubectl("-n", SPACE, "delete", "pod", victim, "--timeout=300s")
            await stage.until(lambda: stage.ready_count("deleted") == 2, "two pods again")
    assert_unharmed(load)


@pytest.mark.parametrize("daemon", ["controller", "autoscaler"])
async def test_a_daemon_that_is_killed_costs_no_request(stage: NodeStage, daemon: str) -> None:
    name = f"beside-{daemon}"
    await deployed(stage, name)
    async with stage.loaded(name) as load:
        names = f"pods -l app.kubernetes.io/name={daemon}".split()
        stage.kubectl("-n", SYSTEM, "delete", *names, "--grace-period=0", "--force")
        await stage.until(lambda: available(stage, daemon), f"{daemon} does not come back")
        # It works again: what is asked for now is done.
        await deployed(stage, f"after-{daemon}")
    assert_unharmed(load)


async def test_an_activator_that_is_drained_costs_no_request(stage: NodeStage) -> None:
    await deployed(stage, "draining")
    async with stage.loaded("draining") as load:
        for pod in stage.get("pods", "-l", "app.kubernetes.io/name=activator", namespace=SYSTEM)["items"]:
            stage.kubectl("-n", SYSTEM, "delete", "pod", pod["metadata"]["name"], "--wait=false")
            await stage.until(lambda: not available(stage, "activator"), "is not seen to go")
            await stage.until(lambda: available(stage, "activator"), "the activator does not come back")
    assert_unharmed(load)


async def test_nothing_is_lost_in_an_upgrade_from_the_version_before(stage: NodeStage) -> None:
    if not stage.previous_image:
        pytest.skip("SERVING_TEST_NODE_PREVIOUS_IMAGE names no image")
    await asyncio.to_thread(stage.install_previous)
    await deployed(stage, "upgraded", min_scale="1")
    (before,) = stage.pods("upgraded")
    template = stage.get("deployment", "upgraded-00001-deployment")["spec"]["template"]
    async with stage.loaded("upgraded") as load:
        await stage.until(lambda: load.count >= UNIMPEDED, "too few answers")
        await asyncio.to_thread(stage.install_present)
        seen = load.count
        await stage.until(lambda: load.count >= seen + 100, "too few answers")
    assert_unharmed(load)
    after = stage.get("deployment", "upgraded-00001-deployment")
    assert after["spec"]["template"] == template, "an upgrade rewrites no Deployment"
    # On a busy machine the load brings more pods.
    uids = {pod["metadata"]["uid"] for pod in stage.pods("upgraded")}
    assert before["metadata"]["uid"] in uids, "a revision keeps its pods"
    await deployed(stage, "upgraded", version="2", min_scale="1")
    async with aiohttp.ClientSession() as session:
        assert (await stage.send("upgraded", session=session))[1].startswith("version 2")


def available(stage: NodeStage, daemon: str) -> bool:
    """Whether all pods of a daemon are available."""
    deployment = stage.get("deployment", daemon, namespace=SYSTEM)
    status = deployment.get("status") or {}
    return bool(
        status.get("availableReplicas") == deployment["spec"]["replicas"] and not status.get("unavailableReplicas")
    )
