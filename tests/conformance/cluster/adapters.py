"""The adapters of the suite. Each is a context with an empty cluster and garbage collection."""

import asyncio
import functools
import os
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

from serving.home.admission.admission import admit
from serving.home.controllers.garbage import collect_garbage
from serving.home.store.history import StoreLimits
from serving.home.store.journal import Journal
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.fenced import FencedCluster
from serving.net.cluster.kube import KubeCluster
from serving.net.cluster.port import Cluster
from serving.tools.cli.client.api import ApiClient
from serving.tools.cli.client.tree import InstallOptions, objects_of, tree_folder
from serving.tools.cli.system.install import Installation
from tests.integration.api_server import served

# Names the kubeconfig of a real server, if there is one.
KUBECONFIG_VARIABLE = "SERVING_TEST_KUBECONFIG"
# The accounts are unused here; their application waits until the definitions are served.
_DEFINED = {"Namespace", "CustomResourceDefinition", "ServiceAccount"}
_OPTIONS = InstallOptions(components=("keda-http",))


@asynccontextmanager
async def memory() -> AsyncIterator[MemoryCluster]:
    """The store in this process, without a journal. Its history is short, so that the suite covers ``Gone``."""
    async with _collected(None) as cluster:
        yield cluster


@asynccontextmanager
async def fenced() -> AsyncIterator[FencedCluster]:
    """The store in this process for a holder of the lease."""
    async with memory() as store:
        yield FencedCluster(store, lambda: None)


@asynccontextmanager
async def memory_and_journal() -> AsyncIterator[MemoryCluster]:
    """The store with a journal: writes of users wait for the disk."""
    with tempfile.TemporaryDirectory() as folder:
        async with _collected(Journal(Path(folder) / "journal.db")) as cluster:
            yield cluster


@asynccontextmanager
async def _collected(journal: Journal | None) -> AsyncIterator[MemoryCluster]:
    limits = StoreLimits(history_count_max=64)
    cluster = MemoryCluster(journal, admit=admit, limits=limits, dice=random.Random(7))
    collector = asyncio.create_task(collect_garbage(cluster))
    try:
        yield cluster
    finally:
        collector.cancel()
        with suppress(asyncio.CancelledError):
            await collector
        await cluster.close()


@asynccontextmanager
async def api_and_kube() -> AsyncIterator[KubeCluster]:
    """The same store behind its API, over a socket."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            memory() as store,
            served(store, Path(folder)) as api,
            KubeCluster(api.kubeconfig) as cluster,
        ):
            yield cluster


@asynccontextmanager
async def kube() -> AsyncIterator[KubeCluster]:
    """The real server of the environment; missing definitions are applied first."""
    path = Path(os.environ[KUBECONFIG_VARIABLE])
    await asyncio.to_thread(_define, path)
    async with KubeCluster(path) as cluster:
        yield cluster


@functools.cache
def _define(kubeconfig: Path) -> None:
    definitions = [resource for resource in objects_of(tree_folder(), _OPTIONS) if resource["kind"] in _DEFINED]
    installation = Installation(ApiClient(kubeconfig=kubeconfig), definitions)
    installation.check()
    installation.apply()


ADAPTERS: dict[str, Callable[[], AbstractAsyncContextManager[Cluster]]] = {
    "memory": memory,
    "memory+fenced": fenced,
    "memory+journal": memory_and_journal,
    "api+kube": api_and_kube,
    **({"kube": kube} if KUBECONFIG_VARIABLE in os.environ else {}),
}
