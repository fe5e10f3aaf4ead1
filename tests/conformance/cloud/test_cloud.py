"""The contract of the cloud port, over every cloud of the registry."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from serving.core.model.errors import CloudRefused
from serving.core.settings.nodegroup import CLOUD_PROVIDERS
from serving.nodes.nodegroup.io.clouds.choice import CLOUDS
from serving.nodes.nodegroup.records import CloudGroup
from tests.conformance.cloud.adapters import STAGES, MadeCloud

# The AWS mock server takes seconds to import.
PARAMETERS = [pytest.param(name, marks=pytest.mark.slow) if name == "aws" else name for name in CLOUDS]


@pytest_asyncio.fixture(params=PARAMETERS)
async def cloud(request: pytest.FixtureRequest) -> AsyncIterator[MadeCloud]:
    async with STAGES[request.param]() as made_cloud:
        yield made_cloud


def test_every_cloud_provider_has_a_test_stage() -> None:
    assert set(CLOUDS) == set(CLOUD_PROVIDERS) == set(STAGES)


def size(target: int) -> CloudGroup:
    return CloudGroup(target_size=target, min_size=1, max_size=6)


async def test_describe_returns_target_and_bounds(cloud: MadeCloud) -> None:
    assert await cloud.port.describe(cloud.group) == size(3)


async def test_describe_of_an_unknown_group_is_rejected(cloud: MadeCloud) -> None:
    with pytest.raises(CloudRefused):
        await cloud.port.describe("default/no-such")


async def test_increase_raises_the_target_size(cloud: MadeCloud) -> None:
    await cloud.port.increase(cloud.group, 2)
    assert await cloud.port.describe(cloud.group) == size(5)
    await cloud.port.increase(cloud.group, 1)
    assert await cloud.port.describe(cloud.group) == size(6)


@pytest.mark.parametrize("count", [4, 0, -1])
async def test_invalid_increase_is_rejected_and_changes_nothing(cloud: MadeCloud, count: int) -> None:
    with pytest.raises(CloudRefused):
        await cloud.port.increase(cloud.group, count)
    assert await cloud.port.describe(cloud.group) == size(3)


async def test_delete_lowers_the_target_size_by_its_count(cloud: MadeCloud) -> None:
    first, second, _ = cloud.machines
    deletion = await cloud.port.delete(cloud.group, [first, second])
    assert (set(deletion.deleted), deletion.failed) == ({first.node_name, second.node_name}, {})
    assert await cloud.port.describe(cloud.group) == size(1)


async def test_delete_below_the_minimum_is_rejected_as_a_whole(cloud: MadeCloud) -> None:
    with pytest.raises(CloudRefused):
        await cloud.port.delete(cloud.group, cloud.machines)
    assert await cloud.port.describe(cloud.group) == size(3)


async def test_repeated_delete_of_a_machine_lowers_the_target_once(cloud: MadeCloud) -> None:
    first = cloud.machines[0]
    await cloud.port.delete(cloud.group, [first])
    assert (await cloud.port.delete(cloud.group, [first])).deleted == (first.node_name,)
    assert await cloud.port.describe(cloud.group) == size(2)


async def test_machine_of_another_group_is_reported_and_not_deleted(cloud: MadeCloud) -> None:
    if cloud.unknown is None:
        pytest.skip("there is one group")
    first = cloud.machines[0]
    deletion = await cloud.port.delete(cloud.group, [first, cloud.unknown])
    assert deletion.deleted == (first.node_name,)
    assert cloud.group in deletion.failed[cloud.unknown.node_name]
    assert await cloud.port.describe(cloud.group) == size(2)
