"""The last lines of a revision's pod, as messages about it quote them, over a served API."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from serving.cli.api import ApiClient
from serving.cli.logtail import last_lines
from serving.cluster.api.logs import LogOptions
from serving.cluster.kinds import POD
from serving.cluster.memory import MemoryCluster
from tests.integration.api_server import served


class Started:
    """The log of a container that has just been started again."""

    def __init__(self, *, said: bytes) -> None:
        self._said = said

    async def read(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        """What it says now, or said before it failed."""
        assert (namespace, pod, options.container) == ("default", "p", "app")
        yield b"no such key\n" if options.previous else self._said


async def lines(folder: Path, *, said: bytes) -> list[str]:
    cluster = MemoryCluster()
    metadata = {"name": "p", "namespace": "default", "labels": {"serving.knative.dev/revision": "hello-00001"}}
    await cluster.create(POD, {"metadata": metadata, "spec": {"containers": [{"name": "app"}]}})
    async with served(cluster, folder, logs=Started(said=said)) as api:
        return await asyncio.to_thread(last_lines, ApiClient(kubeconfig=api.kubeconfig), "hello-00001", count=10)


async def test_one_that_has_just_been_started_again_is_quoted_from_the_run_before(tmp_path: Path) -> None:
    assert await lines(tmp_path, said=b"\n") == ["no such key"]


async def test_one_that_has_said_something_is_quoted_from_this_run(tmp_path: Path) -> None:
    assert await lines(tmp_path, said=b"reading config\n") == ["reading config"]
