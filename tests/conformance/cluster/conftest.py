"""Fixtures: ``cluster`` is each adapter in turn, ``namespace`` a new namespace in it."""

import functools
import uuid
from collections.abc import AsyncIterator

import pytest

from serving.net.cluster.kinds import CONFIG_MAP, NAMESPACE
from serving.net.cluster.port import Cluster
from tests.conformance.cluster.adapters import ADAPTERS
from tests.conformance.cluster.objects import eventually, is_gone

_OF_A_CLUSTER = "kube-root-ca.crt"


@pytest.fixture(params=sorted(ADAPTERS))
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    async with ADAPTERS[request.param]() as new_cluster:
        yield new_cluster


async def _is_furnished(cluster: Cluster, namespace: str) -> bool:
    return not await is_gone(cluster, CONFIG_MAP, namespace, _OF_A_CLUSTER)


@pytest.fixture
async def namespace(cluster: Cluster) -> AsyncIterator[str]:
    name = f"conformance-{uuid.uuid4().hex[:8]}"
    await cluster.create(NAMESPACE, {"metadata": {"name": name}})
    if not await is_gone(cluster, CONFIG_MAP, "default", _OF_A_CLUSTER):
        # The controller-manager adds it to each new namespace with a delay; a watch would report it.
        await eventually(functools.partial(_is_furnished, cluster, name))
    yield name
    await cluster.delete(NAMESPACE, "", name)
