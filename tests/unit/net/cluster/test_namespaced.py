"""Reflectors of chosen namespaces, over the memory store on virtual time."""

import asyncio

from serving.core.model.errors import Forbidden
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP, NAMESPACE
from serving.net.cluster.namespaced import NamespacedReflectors
from serving.net.cluster.port import EventType, Listing, Selection
from serving.net.cluster.reflector import CacheChange
from tests.eventually import until
from tests.virtual_time import pass_s, run_virtually


def test_only_chosen_namespaces_are_watched() -> None:
    async def body() -> None:
        cluster, changes = MemoryCluster(), list[CacheChange]()
        for name in ("a", "b"):
            await cluster.create(NAMESPACE, {"metadata": {"name": name}})
            await cluster.create(CONFIG_MAP, {"metadata": {"name": "m", "namespace": name}, "data": {}})
        reflectors = NamespacedReflectors(cluster, CONFIG_MAP, on_change=changes.append)
        # Chosen before it runs, and while it runs.
        reflectors.choose({"a"})
        running = asyncio.create_task(reflectors.run())
        await reflectors.synced()
        assert [change.key for change in changes] == [("a", "m")]
        reflectors.choose({"a", "b"})
        await until(lambda: len(changes) == 2)
        assert list(reflectors.cache("b")) == [("b", "m")]
        reflectors.choose({"b"})
        assert reflectors.cache("a") == {}
        await cluster.delete(CONFIG_MAP, "a", "m")
        await cluster.delete(CONFIG_MAP, "b", "m")
        await until(lambda: len(changes) == 3)
        await pass_s(1)
        assert [(change.type, change.key) for change in changes[2:]] == [(EventType.DELETED, ("b", "m"))]
        running.cancel()

    run_virtually(body())


def test_forbidden_namespace_does_not_block_sync_of_others() -> None:
    class Closed(MemoryCluster):
        async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
            if selection.namespace == "closed":
                raise Forbidden("configmaps is forbidden")
            return await super().list_selection(selection, page_size=page_size, page=page)

    async def body() -> None:
        reflectors = NamespacedReflectors(Closed(), CONFIG_MAP, on_change=lambda _: None)
        reflectors.choose({"closed", "open"})
        running = asyncio.create_task(reflectors.run())
        await reflectors.synced()
        assert reflectors.cache("open") == {}
        running.cancel()

    run_virtually(body())
