"""Services while the API server is away, and the load of each on the server otherwise."""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from serving.core.model.errors import AlreadyExists, NotFound
from serving.core.model.objects import Object
from serving.net.cluster.kinds import DEPLOYMENT, POD, SERVING_SERVICE
from tests.cluster_e2e.server import SPACE, only_here
from tests.cluster_e2e.stage import SIDECAR, Stage, is_ready, of_objects, service, staged
from tests.cluster_e2e.status_kubelet import repeated

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

# Nine creations, and a status of each of the four objects of the project; a Route has one more before the activators
# confirm it, and a Service one more if no pod has started after a minute, as in a crowd on a busy machine.
_WRITES_MAX = 15
_PER_S = 50
_AT_ONCE_MAX = 20
_AWAY_S = 4.0
# So long that the load of a second or two may be missing, as it is when this process has no turn, and nothing is
# scaled.
_STEADY = {"autoscaling.knative.dev/window": "15s"}
# The first services of a crowd would be at zero before the last are ready, which costs further writes.
_STAYING = {"autoscaling.knative.dev/min-scale": "1"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("faults"), settings=SIDECAR) as new_stage:
        yield new_stage


async def scales_seen(stage: Stage, name: str, seen: list[int]) -> None:
    """Record every scale of a Deployment until cancelled."""
    listing = await stage.cluster.list(DEPLOYMENT, SPACE, field_selector=f"metadata.name={name}")
    seen += [item["spec"]["replicas"] for item in listing.items]
    async with stage.cluster.watch(
        DEPLOYMENT, SPACE, resource_version=listing.resource_version, field_selector=f"metadata.name={name}"
    ) as events:
        async for event in of_objects(events):
            if event.object["spec"]["replicas"] != seen[-1]:
                seen.append(event.object["spec"]["replicas"])


async def test_while_the_api_server_is_away_nothing_is_lost_and_nothing_is_scaled_wrongly(stage: Stage) -> None:
    scale_name = "away-00001"
    await stage.apply(service("away", annotations=_STEADY))
    await stage.ready("away")
    stage.load(scale_name, 3)
    await stage.scaled(scale_name, 3)
    seen: list[int] = []
    watching = asyncio.create_task(scales_seen(stage, f"{scale_name}-deployment", seen))
    await stage.gate.shut()
    # Asked for while no daemon can see it.
    await stage.apply(service("meanwhile"))
    changed = await stage.apply(service("away", version="2", annotations=_STEADY))
    await asyncio.sleep(_AWAY_S)
    assert seen == [3]
    assert not (await stage.cluster.get(SERVING_SERVICE, SPACE, "meanwhile")).get("status")
    await stage.gate.open()
    await stage.ready("meanwhile")
    await stage.ready("away", generation=changed["metadata"]["generation"])
    stage.load(scale_name, 7)
    await stage.scaled(scale_name, 7)
    watching.cancel()
    assert min(seen) == 3, f"it never went below what the load asks for: {seen}"
    assert all(daemon.process.returncode is None for daemon in stage.daemons.values())


async def test_a_daemon_that_is_killed_continues_where_it_was(stage: Stage) -> None:
    await stage.apply(service("killed", annotations=_STEADY))
    await stage.ready("killed")
    stage.load("killed-00001", 2)
    await stage.scaled("killed-00001", 2)
    for name in ("autoscaler", "controller"):
        stage.daemons[name].process.kill()
        await stage.daemons[name].process.wait()
    seen: list[int] = []
    watching = asyncio.create_task(scales_seen(stage, "killed-00001-deployment", seen))
    await stage.apply(service("orphan"))
    await stage.start("controller")
    await stage.start("autoscaler")
    await stage.ready("orphan")
    stage.load("killed-00001", 4)
    await stage.scaled("killed-00001", 4)
    watching.cancel()
    assert min(seen) == 2, f"it never went below what the load asks for: {seen}"


async def test_a_pod_that_turns_unready_counts_no_more(stage: Stage) -> None:
    await stage.apply(service("flaky"))
    await stage.ready("flaky")
    (pod,) = (await stage.cluster.list(POD, SPACE, label_selector="app=flaky-00001")).items
    await stage.kubelet.set_ready(pod, ready=False)
    # By what is seen of it: all that looks from time to time looks after ten minutes.
    await stage.until(
        DEPLOYMENT, "flaky-00001-deployment", lambda deployment: deployment["status"].get("readyReplicas", 0) == 0
    )
    await stage.kubelet.set_ready(pod, ready=True)
    await stage.scaled("flaky-00001", 1)


async def at_pace(make: Callable[[str], Awaitable[object]], names: list[str]) -> None:
    """Run at most fifty a second, and repeat what a busy server does not answer.

    At most so many wait for an answer: a server that carries out a thousand at once ends none of them in time, and each
    is sent again.
    """
    loop = asyncio.get_running_loop()
    begun_s, free = loop.time(), asyncio.Semaphore(_AT_ONCE_MAX)
    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(names):
            await asyncio.sleep(begun_s + number / _PER_S - loop.time())
            await free.acquire()
            task = group.create_task(_repeated(functools.partial(make, name)))
            task.add_done_callback(lambda _: free.release())


async def _repeated(call: Callable[[], Awaitable[object]]) -> None:
    # A call without an answer may have been carried out.
    with contextlib.suppress(AlreadyExists, NotFound):
        await repeated(call)


def bare_deployment(name: str) -> Object:
    labels = {"bare": name}
    container = {"name": "user-container", "image": "registry.example/hello"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], **only_here()}}
    return {
        "metadata": {"name": name, "namespace": SPACE, "labels": {"bare": "yes"}},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


def is_available(deployment: Object) -> bool:
    return bool((deployment.get("status") or {}).get("readyReplicas"))


async def crowd(stage: Stage, count: int) -> tuple[float, float, float]:
    """Create bare Deployments, then services: time until all are ready, and own writes per service."""
    bare = [f"bare-{number:04d}" for number in range(count)]
    begun_s = time.monotonic()
    await at_pace(lambda name: stage.cluster.create(DEPLOYMENT, bare_deployment(name)), bare)
    await stage.until_all(DEPLOYMENT, set(bare), is_available)
    bare_s = time.monotonic() - begun_s
    for name in bare:
        await _repeated(functools.partial(stage.cluster.delete, DEPLOYMENT, SPACE, name))
    before = await stage.own_writes()
    ours = [f"crowd-{number:04d}" for number in range(count)]
    begun_s = time.monotonic()
    await at_pace(lambda name: stage.apply(service(name, annotations=_STAYING)), ours)
    await stage.until_all(SERVING_SERVICE, set(ours), is_ready)
    return bare_s, time.monotonic() - begun_s, (await stage.own_writes() - before) / count


@pytest.mark.slow
async def test_services_at_fifty_a_second_are_ready_and_cost_few_writes(stage: Stage) -> None:
    *_, writes_each = await crowd(stage, 100)
    assert 0 < writes_each <= _WRITES_MAX


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_thousand_services_at_fifty_a_second(stage: Stage) -> None:
    await stage.clear()
    bare_s, services_s, writes_each = await crowd(stage, 1000)
    print(f"1,000 bare {bare_s:.1f} s, services {services_s:.1f} s, {writes_each:.1f} writes each")  # noqa: T201 - a figure
    # A real garbage collector needs minutes for them, more than the limit of the next test.
    await stage.clear()
    assert 0 < writes_each <= _WRITES_MAX
