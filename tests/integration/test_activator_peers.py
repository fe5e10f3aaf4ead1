"""Linked activator processes: they lend each other the slots of a pod, and no slot is used twice."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from serving.home.store.memory import MemoryCluster
from tests.integration.activator_stage import PodServer, Store, send_request
from tests.integration.api_server import served
from tests.integration.test_activator_process import started

REQUEST_COUNT = 40


class Machine:
    """Activators with one public socket each, so that a test can select the activator."""

    def __init__(self, folder: Path, kubeconfig: Path, *, count: int) -> None:
        self.folder, self.kubeconfig = folder, kubeconfig
        self.publics = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        self.inners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        self.processes: dict[int, asyncio.subprocess.Process] = {}

    async def start(self, index: int) -> None:
        public, inner = self.publics[index], self.inners[index]
        environment = {
            "KUBECONFIG": str(self.kubeconfig),
            "SERVING_LISTEN_FDS": json.dumps({"public": public.fileno(), "inner": inner.fileno()}),
            "SERVING_ACTIVATOR_STATS_URL": "ws://127.0.0.1:1/stats",
            "SERVING_ACTIVATOR_PEER_FOLDER": str(self.folder),
            "SERVING_ACTIVATOR_COUNT": str(len(self.publics)),
            "SERVING_ACTIVATOR_INDEX": str(index),
        }
        self.processes[index] = await started(self.folder, environment, public, inner)

    async def kill(self, index: int) -> str:
        """Kill a process; return its log."""
        process = self.processes.pop(index)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return (await process.communicate())[1].decode()

    async def send_request(self, index: int) -> int:
        return (await send_request(self.publics[index].getsockname())).status


@contextlib.asynccontextmanager
async def machine(folder: Path, *, count: int) -> AsyncIterator[tuple[Machine, PodServer]]:
    """Activators in front of a service with one pod of one slot."""
    store = Store(MemoryCluster())
    async with served(store.cluster, folder) as api, asyncio.timeout(150):
        new_machine = Machine(folder, api.kubeconfig, count=count)
        await store.service(containerConcurrency=1)
        pod = await store.pod("p")
        try:
            yield new_machine, pod
        finally:
            for index in list(new_machine.processes):
                await new_machine.kill(index)
            await pod.stop()
            for sock in (*new_machine.publics, *new_machine.inners):
                sock.close()


async def test_two_activators_share_the_single_slot_of_a_pod(tmp_path: Path) -> None:
    async with machine(tmp_path, count=2) as (activators, pod):
        await asyncio.gather(activators.start(0), activators.start(1))
        statuses = await asyncio.gather(*(activators.send_request(number % 2) for number in range(REQUEST_COUNT)))
        assert statuses == [200] * REQUEST_COUNT
        assert len(pod.heads) == REQUEST_COUNT
        assert pod.running_max == 1


async def test_slot_of_killed_activator_returns_to_the_other(tmp_path: Path) -> None:
    async with machine(tmp_path, count=2) as (activators, pod):
        await asyncio.gather(activators.start(0), activators.start(1))
        for killed in (0, 1):
            # The activator that is killed has the slot, as its share or as a loan.
            assert await activators.send_request(killed) == 200
            await activators.kill(killed)
            assert await activators.send_request(1 - killed) == 200
            await activators.start(killed)
            assert await activators.send_request(killed) == 200
        assert pod.running_max == 1


async def test_stopped_activator_does_not_block_sharing_between_others(tmp_path: Path) -> None:
    async with machine(tmp_path, count=3) as (activators, _):
        await asyncio.gather(activators.start(0), activators.start(1))
        assert [await activators.send_request(index) for index in (0, 1)] == [200, 200]
        activators.processes[1].send_signal(signal.SIGSTOP)
        try:
            await activators.start(2)
            assert [await activators.send_request(index) for index in (0, 2)] == [200, 200]
        finally:
            activators.processes[1].send_signal(signal.SIGCONT)
        assert [await activators.send_request(index) for index in (0, 1, 2)] == [200, 200, 200]
        assert "peer.silent" in await activators.kill(2)


async def test_peer_connection_with_invalid_bytes_is_closed(tmp_path: Path) -> None:
    async with machine(tmp_path, count=2) as (activators, _):
        await activators.start(0)
        assert await activators.send_request(0) == 200
        folder = os.open(tmp_path, os.O_PATH)
        reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/activator-0.sock")
        os.close(folder)
        writer.write(b"\xff\xff\xff\xff")
        assert await reader.read() == b""
        writer.close()
        assert await activators.send_request(0) == 200
        assert "peer.unreadable" in await activators.kill(0)
