"""The contract of the cloud port, over every cloud of the registry."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from serving.core.model.errors import CloudRefused
from serving.core.settings.nodegroup import CLOUD_PROVIDERS
from serving.nodes.nodegroup.io.clouds.choice import CLOUDS
from serving.nodes.nodegroup.records import CloudGroup
from tests.conformance.cloud.adapters import STAGES, MadeCloud

# The server of AWS takes seconds to import.
PARAMETERS = [pytest.param(name, marks=pytest.mark.slow) if name == "aws" else name for name in CLOUDS]


@pytest_asyncio.fixture(params=PARAMETERS)
async def cloud(request: pytest.FixtureRequest) -> AsyncIterator[MadeCloud]:
    async with STAGES[request.param]() as made_cloud:
        yield made_cloud


def test_every_cloud_can_be_chosen_and_has_a_stage_here() -> None:
    assert set(CLOUDS) == set(CLOUD_PROVIDERS) == set(STAGES)


def size(target: int) -> CloudGroup:
    return CloudGroup(target_size=target, min_size=1, max_size=6)


async def test_a_group_has_a_target_and_bounds(cloud: MadeCloud) -> None:
    assert await cloud.port.describe(cloud.group) == size(3)


async def test_a_group_that_is_not_there_is_refused(cloud: MadeCloud) -> None:
    with pytest.raises(CloudRefused):
        await cloud.port.describe("default/no-such")


async def test_growing_raises_the_target(cloud: MadeCloud) -> None:
    await cloud.port.increase(cloud.group, 2)
    assert await cloud.port.describe(cloud.group) == size(5)
    await cloud.port.increase(cloud.group, 1)
    assert await cloud.port.describe(cloud.group) == size(6)


@pytest.mark.parametrize("count", [4, 0, -1])
async def test_growing_beyond_a_bound_is_refused_and_changes_nothing(cloud: MadeCloud, count: int) -> None:
    with pytest.raises(CloudRefused):
        await cloud.port.increase(cloud.group, count)
    assert await cloud.port.describe(cloud.group) == size(3)


async def test_deleting_lowers_the_target_by_as_many(cloud: MadeCloud) -> None:
    first, second, _ = cloud.machines
    deletion = await cloud.port.delete(cloud.group, [first, second])
    assert (set(deletion.deleted), deletion.failed) == ({first.node_name, second.node_name}, {})
    assert await cloud.port.describe(cloud.group) == size(1)


async def test_a_batch_that_would_pass_the_minimum_is_refused_whole(cloud: MadeCloud) -> None:
    with pytest.raises(CloudRefused):
        await cloud.port.delete(cloud.group, cloud.machines)
    assert await cloud.port.describe(cloud.group) == size(3)


async def test_a_machine_that_is_gone_counts_as_deleted_and_lowers_the_target_once(cloud: MadeCloud) -> None:
    first = cloud.machines[0]
    await cloud.port.delete(cloud.group, [first])
    assert (await cloud.port.delete(cloud.group, [first])).deleted == (first.node_name,)
    assert await cloud.port.describe(cloud.group) == size(2)


async def test_a_machine_of_another_group_is_reported_and_left_alone(cloud: MadeCloud) -> None:
    if cloud.unknown is None:
        pytest.skip("there is one group")
    first = cloud.machines[0]
    deletion = await cloud.port.delete(cloud.group, [first, cloud.unknown])
    assert deletion.deleted == (first.node_name,)
    assert cloud.group in deletion.failed[cloud.unknown.node_name]
    assert await cloud.port.describe(cloud.group) == size(2)
