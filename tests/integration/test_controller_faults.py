"""The controller under faults: restarts, conflicts, rejected writes, and repeated events."""

import asyncio
import os
import sys
from pathlib import Path

from serving.controller.io.controller import Controller
from serving.core.model.errors import Invalid
from serving.core.model.knative import BECAME_READY_ANNOTATION
from serving.core.model.objects import Object, condition_of, nested
from serving.home.admission.admission import admit
from serving.home.store.journal import Journal
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import DEPLOYMENT, EVENT, REVISION, ROUTE, SERVING_SERVICE
from serving.net.cluster.port import Create, Patch, Write
from tests.integration.api_server import served
from tests.integration.fake_node import FakeNode, World, a_service, a_world, ready


async def create(world: World, manifest: Object) -> None:
    await world.cluster.create(SERVING_SERVICE, manifest)


async def test_controller_restarts_from_journal_with_traffic_and_scale_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with a_world(cluster=MemoryCluster(Journal(path), admit=admit)) as world:
        await create(world, a_service("good"))
        await world.until(SERVING_SERVICE, "hello", ready)
        # The newer revision fails; it must not get traffic after the restart either.
        await world.cluster.patch(SERVING_SERVICE, "default", "hello", patch={"spec": a_service("bad")["spec"]})
        await world.until(
            SERVING_SERVICE, "hello", lambda service: condition_of(service, "Ready").get("status") == "False"
        )
        await world.until(
            REVISION, "hello-00001", lambda revision: BECAME_READY_ANNOTATION in revision["metadata"]["annotations"]
        )
        await world.cluster.patch(REVISION, "default", "hello-00001", patch={"spec": {"servingState": "Reserve"}})
        await world.controller.settled()
    async with a_world(cluster=MemoryCluster(Journal(path), admit=admit)) as world:
        route = await world.until(ROUTE, "hello", lambda current_route: nested(current_route, "status", "traffic"))
        assert route["status"]["traffic"][0]["revisionName"] == "hello-00001"
        deployment = await world.until(DEPLOYMENT, "hello-00001-deployment", bool)
        assert deployment["spec"]["replicas"] == 0
        revisions = (await world.cluster.list(REVISION, "default")).items
        assert [revision["metadata"]["name"] for revision in revisions] == ["hello-00001", "hello-00002"]


class FaultyStore(MemoryCluster):
    """A store with a concurrent writer, or that rejects revisions."""

    is_ahead = False
    refuses_revisions = False

    async def write(self, write: Write) -> Object:
        if self.refuses_revisions and isinstance(write, Create) and write.kind == REVISION:
            raise Invalid("no revision today")
        if (
            self.is_ahead
            and isinstance(write, Patch)
            and write.kind == SERVING_SERVICE
            and write.subresource == "status"
        ):
            self.is_ahead = False
            await self.patch(
                write.kind, write.namespace, write.name, patch={"metadata": {"annotations": {"faster": "true"}}}
            )
        return await super().write(write)


async def test_status_write_is_repeated_after_a_conflict() -> None:
    cluster = FaultyStore(admit=admit)
    cluster.is_ahead = True
    async with a_world(cluster=cluster) as world:
        await create(world, a_service("good"))
        service = await world.until(SERVING_SERVICE, "hello", ready)
        assert service["metadata"]["annotations"]["faster"] == "true"
        assert not cluster.is_ahead


async def test_rejected_revision_is_reported_and_retried_after_spec_change() -> None:
    cluster = FaultyStore(admit=admit)
    cluster.refuses_revisions = True
    async with a_world(cluster=cluster) as world:
        await create(world, a_service("good"))
        service = await world.until(
            SERVING_SERVICE,
            "hello",
            lambda current_service: condition_of(current_service, "Ready").get("status") == "False",
        )
        assert "no revision today" in condition_of(service, "Ready")["message"]
        # A change of the spec causes another attempt.
        cluster.refuses_revisions = False
        changed = {"spec": {"template": {"spec": {"containerConcurrency": 1}}}}
        await world.cluster.patch(SERVING_SERVICE, "default", "hello", patch=changed)
        await world.until(SERVING_SERVICE, "hello", ready)


async def test_repeated_event_increments_its_count() -> None:
    async with a_world() as world:
        await create(world, a_service("good"))
        await world.until(SERVING_SERVICE, "hello", ready)
        await world.controller.settled()
        # The same revision is created again, with the same message.
        name = await recreate_revision(world)
        await world.cluster.delete(REVISION, "default", "hello-00001")
        event = await world.until(EVENT, name, lambda current_event: current_event["count"] == 2)
        assert event["message"] == 'Created Revision "hello-00001"'


async def recreate_revision(world: World) -> str:
    """Delete the revision; return the name of the Event about its replacement."""
    await world.cluster.delete(REVISION, "default", "hello-00001")
    while True:
        for event in (await world.cluster.list(EVENT, "default")).items:
            if event["reason"] == "Created":
                return str(event["metadata"]["name"])
        await asyncio.sleep(0.01)


async def test_restarted_controller_continues_event_counts() -> None:
    cluster = MemoryCluster(admit=admit)
    async with asyncio.TaskGroup() as group:
        node = group.create_task(FakeNode(cluster).run())
        world = World(None, cluster=cluster)
        stop = asyncio.Event()
        first = group.create_task(world.controller.run(stop))
        await create(world, a_service("good"))
        await world.until(SERVING_SERVICE, "hello", ready)
        await world.controller.settled()
        name = await recreate_revision(world)
        stop.set()
        await first
        again = asyncio.Event()
        second = group.create_task(Controller(cluster).run(again))
        await cluster.delete(REVISION, "default", "hello-00001")
        await world.until(EVENT, name, lambda event: event["count"] == 2)
        again.set()
        await second
        node.cancel()
    await cluster.close()


async def test_controller_process_reconciles_over_http(tmp_path: Path) -> None:
    cluster = MemoryCluster(admit=admit)
    world = World(None, cluster=cluster)
    async with served(cluster, tmp_path) as there:
        environment = {
            **os.environ,
            "KUBECONFIG": str(there.kubeconfig),
            "SERVING_CONTROLLER_PUBLIC_PORT": "80",
            # Another test may use the default port at the same time.
            "SERVING_CONTROLLER_METRICS_ADDRESS": "127.0.0.1:0",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "serving.controller.main", env=environment, stderr=asyncio.subprocess.DEVNULL
        )
        node = asyncio.create_task(FakeNode(cluster).run())
        try:
            await create(world, a_service("good"))
            service = await world.until(SERVING_SERVICE, "hello", ready)
            assert service["status"]["url"] == "http://hello.default.localhost"
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 60) == 0
        finally:
            if process.returncode is None:
                process.kill()
            node.cancel()
    await cluster.close()


async def test_revision_without_ready_pod_fails_at_progress_deadline() -> None:
    service = a_service("slow")
    annotations = {"serving.knative.dev/progress-deadline": "1s"}
    service["spec"]["template"]["metadata"] = {"annotations": annotations}
    async with a_world() as world:
        await create(world, service)
        current_service = await world.until(
            SERVING_SERVICE,
            "hello",
            lambda service_object: condition_of(service_object, "Ready").get("status") == "False",
        )
        assert "no pod was ready within 1 s" in condition_of(current_service, "Ready")["message"]


async def test_replica_count_updates_are_written_at_most_once_per_second() -> None:
    async with a_world() as world:
        await create(world, a_service("good"))
        await world.until(SERVING_SERVICE, "hello", ready)
        await world.controller.settled()
        before, begun_s = world.controller.writes_count, asyncio.get_running_loop().time()
        for count in range(2, 1001):
            patch = {"status": {"readyReplicas": count}}
            await world.cluster.patch(
                DEPLOYMENT, "default", "hello-00001-deployment", patch=patch, subresource="status"
            )
        await world.until(REVISION, "hello-00001", lambda revision: revision["status"]["actualReplicas"] == 1000)
        # One write immediately, and one per second.
        took_s = asyncio.get_running_loop().time() - begun_s
        assert world.controller.writes_count - before <= 2 + took_s
