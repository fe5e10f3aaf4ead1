"""``cluster`` is each adapter in turn, ``namespace`` an own one in it."""

import uuid
from collections.abc import AsyncIterator

import pytest

from serving.cluster.kinds import NAMESPACE
from serving.cluster.port import Cluster
from tests.conformance.cluster.adapters import ADAPTERS


@pytest.fixture(params=sorted(ADAPTERS))
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    async with ADAPTERS[request.param]() as one:
        yield one


@pytest.fixture
async def namespace(cluster: Cluster) -> AsyncIterator[str]:
    name = f"conformance-{uuid.uuid4().hex[:8]}"
    await cluster.create(NAMESPACE, {"metadata": {"name": name}})
    yield name
    await cluster.delete(NAMESPACE, "", name)
