"""Large request bodies at the local API do not block the event loop for other requests."""

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest

from serving.core.model.errors import AlreadyExists, NotFound
from serving.core.model.objects import Object
from serving.home.apiserver.guard import LargeBodies
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s
from serving.net.aio.cooperative import costly
from serving.net.cluster.kinds import CONFIG_MAP, Kind
from serving.net.cluster.port import Subresource
from tests.integration.test_api import MAPS, MERGE, connected

LARGE = 2**20
WITHIN_S = 60.0


class SlowAdmission:
    """Admission that blocks each write in its thread until `may_go_on` is released, while the event loop runs."""

    def __init__(self) -> None:
        self.may_go_on = threading.Semaphore(0)
        self._loop = asyncio.get_running_loop()
        self._began = asyncio.Event()

    def __call__(
        self, kind: Kind, new: Object, old: Object | None = None, *, subresource: Subresource | None = None
    ) -> Object:
        del kind, old, subresource
        if threading.current_thread() is not threading.main_thread():
            self._loop.call_soon_threadsafe(self._began.set)
            assert self.may_go_on.acquire(timeout=WITHIN_S)
        return new

    async def began(self) -> None:
        """Wait for the next write to begin."""
        await asyncio.wait_for(self._began.wait(), WITHIN_S)
        self._began.clear()


async def test_large_body_waits_as_long_as_its_predecessor_took_and_small_one_does_not() -> None:
    bodies, seen, began_s = LargeBodies(), [], dict[str, float]()

    async def handle(name: str, byte_count: int) -> None:
        async with bodies.turn(byte_count):
            began_s[name] = now_s()
            seen.append(name)
            await asyncio.sleep(0.05 if byte_count == LARGE else 0)

    async with asyncio.TaskGroup() as group:
        for name in ("first", "second"):
            group.create_task(handle(name, LARGE))
        await asyncio.sleep(0)
        group.create_task(handle("small", 100))
    assert seen == ["first", "small", "second"]
    assert began_s["second"] - began_s["first"] >= 2 * 0.05 - 0.01


async def test_failed_large_body_releases_its_turn() -> None:
    bodies = LargeBodies()
    for _ in range(2):
        with pytest.raises(ValueError, match="refused"):
            async with asyncio.timeout(60), bodies.turn(LARGE):
                raise ValueError("refused")


async def test_requests_are_served_while_a_large_object_is_validated(tmp_path: Path) -> None:
    admission = SlowAdmission()
    admission.may_go_on.release()
    large = {"metadata": {"name": "large"}, "data": {"a": "b" * 2**18}}
    async with connected(MemoryCluster(admit=admission), tmp_path) as client:
        assert (await client.call("POST", MAPS, large))[0] == 201
        await admission.began()
        # The patch is small, but the whole object is validated.
        patch = asyncio.create_task(client.call("PATCH", f"{MAPS}/large", {"data": {"c": "d"}}, headers=MERGE))
        await admission.began()
        small = {"metadata": {"name": "small"}}
        assert (await client.call("POST", MAPS, small))[0] == 201
        assert (await client.call("GET", f"{MAPS}/small"))[0] == 200
        admission.may_go_on.release()
        status, body = await patch
    assert (status, body["data"]["c"]) == (200, "d")


async def test_write_overtaken_in_its_thread_is_repeated_on_newer_object() -> None:
    admission = SlowAdmission()
    cluster = MemoryCluster(admit=admission)
    await cluster.create(CONFIG_MAP, {"metadata": {"name": "one"}, "data": {"a": "b"}})
    with costly():
        patch = asyncio.create_task(cluster.patch(CONFIG_MAP, "default", "one", patch={"data": {"c": "d"}}))
    await admission.began()
    await cluster.patch(CONFIG_MAP, "default", "one", patch={"data": {"e": "f"}})
    admission.may_go_on.release(2)
    assert (await patch)["data"] == {"a": "b", "c": "d", "e": "f"}


async def test_write_overtaken_repeatedly_is_validated_in_the_event_loop() -> None:
    admission = SlowAdmission()
    cluster = MemoryCluster(admit=admission)
    await cluster.create(CONFIG_MAP, {"metadata": {"name": "one"}})
    with costly():
        patch = asyncio.create_task(cluster.patch(CONFIG_MAP, "default", "one", patch={"data": {"c": "d"}}))
    for number in range(3):
        await admission.began()
        await cluster.patch(CONFIG_MAP, "default", "one", patch={"data": {"e": str(number)}})
        admission.may_go_on.release()
    assert (await asyncio.wait_for(patch, WITHIN_S))["data"] == {"c": "d", "e": "2"}


@pytest.mark.parametrize("is_patch", [True, False])
async def test_write_in_thread_detects_concurrent_create_or_delete(*, is_patch: bool) -> None:
    admission = SlowAdmission()
    cluster, body = MemoryCluster(admit=admission), {"metadata": {"name": "one"}}
    with costly():
        if is_patch:
            admission.may_go_on.release()
            await cluster.create(CONFIG_MAP, body)
            await admission.began()
            write = asyncio.create_task(cluster.patch(CONFIG_MAP, "default", "one", patch={"data": {"c": "d"}}))
        else:
            write = asyncio.create_task(cluster.create(CONFIG_MAP, body))
    await admission.began()
    if is_patch:
        await cluster.delete(CONFIG_MAP, "default", "one")
    else:
        await cluster.create(CONFIG_MAP, body)
    admission.may_go_on.release()
    with pytest.raises(NotFound if is_patch else AlreadyExists):
        await write


async def test_large_list_is_sent_complete_with_content_length(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    for number in range(5):
        await cluster.create(CONFIG_MAP, {"metadata": {"name": f"m{number}"}, "data": {"a": "b" * 2**18}})
    async with connected(cluster, tmp_path) as client:
        status, reply = await client.call("GET", MAPS)
        async with client.session.head(MAPS) as head:
            length = int(head.headers["Content-Length"])
        async with client.session.get(f"{MAPS}?watch=1&timeoutSeconds=1") as response:
            events = [msgspec.json.decode(line) for line in (await response.read()).splitlines()]
        table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        _, rows = await client.call("GET", f"{MAPS}?includeObject=Object", headers=table)
    assert (status, reply["kind"], length) == (200, "ConfigMapList", len(msgspec.json.encode(reply)))
    assert [item["metadata"]["name"] for item in reply["items"]] == [f"m{number}" for number in range(5)]
    assert [event["object"] for event in events] == [row["object"] for row in rows["rows"]] == reply["items"]
