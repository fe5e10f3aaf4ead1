from typing import Any

import pytest

from serving.core.model.errors import NotLeading
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.fenced import FencedCluster
from serving.net.cluster.kinds import CONFIG_MAP

THING: dict[str, Any] = {"metadata": {"namespace": "default", "name": "thing"}, "data": {"a": "1"}}


class Permission:
    """A permission that can be withdrawn."""

    def __init__(self) -> None:
        self.is_given = True

    def __call__(self) -> None:
        if not self.is_given:
            raise NotLeading("default/lease")


async def test_calls_pass_while_lease_is_held() -> None:
    cluster = FencedCluster(MemoryCluster(), Permission())
    config_map = await cluster.create(CONFIG_MAP, THING)
    async with cluster.watch(CONFIG_MAP, resource_version=config_map["metadata"]["resourceVersion"]) as events:
        await cluster.patch(CONFIG_MAP, "default", "thing", patch={"data": {"a": "2"}})
        assert (await anext(events)).object["data"] == {"a": "2"}
    current_config_map = await cluster.get(CONFIG_MAP, "default", "thing")
    await cluster.replace(CONFIG_MAP, {**current_config_map, "data": {"a": "3"}})
    assert [entry["data"] for entry in (await cluster.list(CONFIG_MAP, page_size=1)).items] == [{"a": "3"}]
    await cluster.delete(CONFIG_MAP, "default", "thing", uid=current_config_map["metadata"]["uid"])
    assert (await cluster.list(CONFIG_MAP)).items == []


async def test_writes_without_lease_raise_not_leading_and_reads_pass() -> None:
    store, permission = MemoryCluster(), Permission()
    await store.create(CONFIG_MAP, THING)
    cluster = FencedCluster(store, permission)
    permission.is_given = False
    before = await store.list(CONFIG_MAP)
    for write in (
        cluster.create(CONFIG_MAP, THING),
        cluster.replace(CONFIG_MAP, THING),
        cluster.patch(CONFIG_MAP, "default", "thing", patch={"data": {"a": "2"}}),
        cluster.delete(CONFIG_MAP, "default", "thing"),
        cluster.evict("default", "thing"),
    ):
        with pytest.raises(NotLeading, match="does not hold the lease default/lease"):
            await write
    after = await cluster.list(CONFIG_MAP)
    assert (after.items, after.resource_version) == (before.items, before.resource_version)
    assert (await cluster.get(CONFIG_MAP, "default", "thing"))["data"] == {"a": "1"}
