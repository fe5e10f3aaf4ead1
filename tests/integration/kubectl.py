"""The kubectl of PATH and those of SERVING_TEST_KUBECTLS, with an API server and a memory store."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from serving.home.admission.admission import admit
from serving.home.apiserver.logoptions import LogOptions, StoredLog
from serving.home.store.history import Watch
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.port import Selection
from tests.integration.api_server import served

KUBECTLS = [path for path in (shutil.which("kubectl"), *os.environ.get("SERVING_TEST_KUBECTLS", "").split(":")) if path]

needs_kubectl = pytest.mark.skipif(not KUBECTLS, reason="kubectl is not installed")


class Lines:
    """Pod logs; followers receive one more line."""

    def stored(self, namespace: str) -> list[StoredLog]:
        del namespace
        return []

    async def read(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        yield f"{namespace}/{pod}/{options.container}\n".encode()
        if options.follow:
            yield b"more\n"


class Observed(MemoryCluster):
    """A store that sets an event at the start of each watch."""

    def __init__(self) -> None:
        super().__init__(admit=admit)
        self.watched = asyncio.Event()

    def watch_selection(self, selection: Selection, resource_version: str) -> Watch:
        self.watched.set()
        return super().watch_selection(selection, resource_version)


class Kubectl:
    """A kubectl with its own home folder and kubeconfig."""

    def __init__(self, program: str, folder: Path, kubeconfig: Path) -> None:
        self._program = program
        self.folder = folder
        self._environment = {"HOME": str(folder), "KUBECONFIG": str(kubeconfig), "PATH": os.environ.get("PATH", "")}
        self.cluster: Observed

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            self._program,
            *words,
            cwd=self.folder,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def tried(self, *words: str) -> tuple[int, str]:
        """The exit code, and stdout and stderr together."""
        process = await self.start(*words)
        printed, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, printed.decode()

    async def __call__(self, *words: str) -> str:
        code, printed = await self.tried(*words)
        assert code == 0, f"kubectl {' '.join(words)}: {printed}"
        return printed


async def serve_kubectl(program: str, folder: Path) -> AsyncGenerator[Kubectl, None]:
    """A kubectl with an API server."""
    cluster = Observed()
    async with served(cluster, folder, logs=Lines(), has_tls=True) as api:
        kubectl = Kubectl(program, folder, api.kubeconfig)
        kubectl.cluster = cluster
        yield kubectl
