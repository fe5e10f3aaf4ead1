"""Pods that are removed, die or are unreachable; failed activations of revisions; and a stopping activator."""

import asyncio
import contextlib

import pytest

from serving.activator.main import Activator
from serving.activator.queueing.outcome import RevisionWake
from serving.activator.routing.sites import Listener
from serving.core.model.errors import Conflict, SettingsError, Unavailable
from serving.core.model.objects import Object
from serving.core.settings.activator import ActivatorSettings
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import ENDPOINT_SLICE, REVISION, ROUTE
from serving.net.cluster.port import Listing, Patch, Selection, Write
from tests.eventually import until
from tests.integration.activator_stage import KEY, PodServer, send_request, staged


async def test_removed_pod_completes_its_100_requests_in_flight() -> None:
    async with staged() as stage:
        await stage.service(slots=100)
        removed = await stage.pod_seen("p")
        removed.gate.clear()
        tasks = [asyncio.create_task(send_request(stage.public, f"/{place}")) for place in range(100)]
        await until(lambda: removed.running_count == 100)
        await stage.pod_seen("q")
        await stage.remove_pod("p")
        await until(lambda: len(stage.activator.ingress.router.directory.pods_of(("default", "hello-00001"))) == 1)
        later = [asyncio.create_task(send_request(stage.public)) for _ in range(50)]
        bodies = [(await task).body for task in later]
        removed.gate.set()
        responses = [await task for task in tasks]
    assert {(response.status, response.body) for response in responses} == {(200, "p")}
    assert set(bodies) == {"q"}


async def test_requests_are_retried_when_a_pod_refuses_connections() -> None:
    async with staged() as stage:
        await stage.service()
        stopped = await stage.pod_seen("p")
        await stopped.stop()
        await stage.pod_seen("q")
        bodies = [(await send_request(stage.public)).body for _ in range(20)]
    assert bodies == ["q"] * 20


async def test_requests_wait_in_order_after_the_only_pod_stops() -> None:
    async with staged() as stage:
        await stage.service()
        stopped = await stage.pod_seen("p")
        await stopped.stop()
        tasks = []
        for place in range(5):
            tasks.append(asyncio.create_task(send_request(stage.public, f"/{place}")))
            await until(lambda wanted=place + 1: stage.level == wanted)  # type: ignore[misc]
        await stage.remove_pod("p")
        # A request that still tries the stopped pod would be sent after the queued ones.
        await until(lambda: stage.waiting_count == 5)
        pod = await stage.pod("q")
        statuses = [(await task).status for task in tasks]
    assert statuses == [200] * 5
    assert [head.split()[1] for head in pod.heads] == [f"/{place}" for place in range(5)]


async def test_unreachable_pod_is_tried_a_limited_number_of_times() -> None:
    async with staged(pod_tries_max=3) as stage:
        await stage.service()
        stopped = await stage.pod_seen("p")
        await stopped.stop()
        response = await send_request(stage.public)
    assert response.status == 502
    assert response.body.startswith("revision hello-00001: no connection to a pod in 3 tries")


async def test_unrepeatable_request_returns_502_when_its_pod_dies() -> None:
    async with staged() as stage:
        await stage.service()
        dying = await stage.pod_seen("p")
        dying.dies_at_once = True
        response = await send_request(stage.public, method="POST", body="x")
    assert (response.status, len(dying.heads)) == (502, 1)


def stale_wake() -> RevisionWake:
    """An activation of a revision at an outdated resourceVersion."""
    return RevisionWake(key=("default", "hello-00001"), flip=True, poke=None, resource_version="1")


class Faulty(MemoryCluster):
    """A store that fails the first calls."""

    def __init__(self, *, patches: int = 0, conflicts: int = 0, lists: int = 0) -> None:
        super().__init__()
        self.patches_left = patches
        self.conflicts_left = conflicts
        self.lists_left = lists

    async def write(self, write: Write) -> Object:
        if write.kind is REVISION and self.patches_left and isinstance(write, Patch):
            self.patches_left -= 1
            raise Unavailable("down")
        if write.kind is REVISION and self.conflicts_left and isinstance(write, Patch):
            self.conflicts_left -= 1
            raise Conflict("the object has been modified")
        return await super().write(write)

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        if self.lists_left:
            self.lists_left -= 1
            raise Unavailable("down")
        return await super().list_selection(selection, page_size=page_size, page=page)


async def test_failed_activation_is_retried() -> None:
    cluster = Faulty(patches=2)
    async with staged(cluster=cluster, flip_pause_first_s=0.01) as stage:
        await stage.service(state="Reserve")
        task = asyncio.create_task(send_request(stage.public))
        await stage.active()
        await stage.pod("p")
        response = await task
    assert (response.status, cluster.patches_left) == (200, 0)


async def test_activator_stops_before_its_first_listing_succeeds() -> None:
    stop = asyncio.Event()
    activator = Activator(ActivatorSettings(), Faulty(lists=1000), key=KEY)
    running = asyncio.create_task(activator.run(stop))
    stop.set()
    await running
    assert not activator.is_serving.is_set()


async def test_cancelled_activator_closes_listeners_and_connections() -> None:
    async def fail() -> None:
        async with staged() as stage:
            await stage.service()
            pod = await stage.pod_seen("p")
            pod.gate.clear()
            reader, writer = await asyncio.open_connection(*stage.public)
            writer.write(b"GET / HTTP/1.1\r\nHost: hello.default.localhost\r\n\r\n")
            await until(lambda: pod.running_count == 1)
            opened.append((stage.public, reader, writer))
            raise LookupError

    opened: list[tuple[tuple[str, int], asyncio.StreamReader, asyncio.StreamWriter]] = []
    with pytest.raises(ExceptionGroup):
        await fail()
    ((address, reader, writer),) = opened
    # The connection is closed or reset, possibly after a 502.
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(60):
            assert (await reader.read())[:13] in (b"", b"HTTP/1.1 502 ")
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


@pytest.mark.parametrize("address", ["8080", "here:there", ""])
async def test_invalid_listen_address_is_reported(address: str) -> None:
    activator = Activator(ActivatorSettings(public_address=address), MemoryCluster(), key=KEY)
    with pytest.raises(SettingsError, match="not an address"):
        await activator.run(asyncio.Event())


async def test_activation_with_stale_version_is_repeated_on_current_object() -> None:
    async with staged() as stage:
        await stage.service(state="Reserve")
        stage.activator.view.flip(stale_wake())
        stage.activator.view.flip(stale_wake())
        await stage.active()


async def test_activation_succeeds_after_conflicts_with_other_writers() -> None:
    async with staged(cluster=Faulty(conflicts=3)) as stage:
        await stage.service(state="Reserve")
        stage.activator.view.flip(stale_wake())
        await stage.active()


async def test_activation_gives_up_after_repeated_conflicts() -> None:
    cluster = Faulty(conflicts=1000)
    async with staged(cluster=cluster) as stage:
        await stage.service(state="Reserve")
        stage.activator.view.flip(stale_wake())
        await until(lambda: not stage.activator.view._flipping)
        assert 990 < cluster.conflicts_left < 1000


async def test_activation_does_not_change_retired_revision() -> None:
    async with staged() as stage:
        await stage.service(state="Retired")
        stage.activator.view.flip(stale_wake())
        await until(lambda: not stage.activator.view._flipping)
        revision = await stage.cluster.get(REVISION, "default", "hello-00001")
    assert revision["spec"]["servingState"] == "Retired"


async def test_activation_is_skipped_if_autoscaler_was_first() -> None:
    cluster = Faulty(conflicts=1)
    async with staged(cluster=cluster) as stage:
        await stage.service(state="Active")
        stage.activator.view.flip(stale_wake())
        await until(lambda: not stage.activator.view._flipping)
    assert cluster.conflicts_left == 1


async def test_activation_of_deleted_revision_is_ignored() -> None:
    async with staged() as stage:
        stage.activator.view.flip(stale_wake())
        await until(lambda: not stage.activator.view._flipping)
        assert stage.level == 0


async def test_unreadable_objects_do_not_block_others(caplog: pytest.LogCaptureFixture) -> None:
    async with staged() as stage:
        await stage.revision("broken", state="Asleep")
        await stage.route({"revisionName": "broken", "percent": 100})
        patch = {"status": {"traffic": "not a list"}}
        await stage.cluster.patch(ROUTE, "default", "hello", patch=patch, subresource="status")
        await stage.revision("hello-00001")
        await stage.pod_seen("p")
        await stage.cluster.patch(
            ENDPOINT_SLICE, "default", "hello-00001-private-p", patch={"endpoints": [{"addresses": "no list"}]}
        )
        await stage.pod_seen("q")
        await stage.remove_pod("p")
        await until(lambda: len(stage.activator.ingress.router.directory.pods_of(("default", "hello-00001"))) == 1)
        await stage.route({"revisionName": "hello-00001", "percent": 100}, name="other")
        response = await send_request(stage.public, host="other.default.localhost")
    assert (response.status, response.body) == (200, "q")
    logged = [record for record in caplog.records if record.getMessage() == "object.unreadable"]
    assert {(record.kind, record.object) for record in logged} == {  # type: ignore[attr-defined]
        ("Revision", "broken"),
        ("Route", "hello"),
        ("EndpointSlice", "hello-00001-private-p"),
    }


async def test_deleted_route_is_not_served() -> None:
    async with staged() as stage:
        await stage.service()
        await stage.cluster.delete(ROUTE, "default", "hello")
        await until(lambda: not stage.activator.ingress.routes.find(Listener.PUBLIC, "hello.default.localhost"))
        response = await send_request(stage.public)
    assert response.status == 404


async def test_shutdown_rejects_queued_requests_and_completes_requests_in_flight() -> None:
    async with staged(drain_grace_s=0.3) as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        pod.gate.clear()
        running = asyncio.create_task(send_request(stage.public))
        await until(lambda: pod.running_count == 1)
        waiting = asyncio.create_task(send_request(stage.public))
        await until(lambda: stage.level == 2)
        stage.activator.ingress.close()
        refused = await waiting
        pod.gate.set()
        answered = await running
    assert (refused.status, refused.body, answered.status) == (503, "shutting down\n", 200)


async def test_request_waits_for_revision_that_route_names_before_it_is_listed() -> None:
    async with staged() as stage:
        await stage.route({"revisionName": "hello-00001", "percent": 100})
        task = asyncio.create_task(send_request(stage.public))
        await until(lambda: stage.level == 1)
        await stage.revision("hello-00001")
        await stage.pod("p")
        assert (await task).status == 200


async def test_deleted_revision_rejects_its_queued_requests() -> None:
    async with staged() as stage:
        await stage.service()
        task = asyncio.create_task(send_request(stage.public))
        await until(lambda: stage.level == 1)
        await stage.cluster.delete(REVISION, "default", "hello-00001")
        response = await task
    assert (response.status, response.body) == (503, "there is no revision hello-00001\n")


async def test_pod_with_reused_address_receives_requests() -> None:
    async with staged() as stage:
        await stage.service()
        server = PodServer("p")
        await server.start()
        stage.pods.append(server)
        await stage.pod("p", server=server)
        assert (await send_request(stage.public)).status == 200
        await stage.remove_pod("p")
        await stage.pod("p2", server=server)
        assert (await send_request(stage.public)).status == 200
