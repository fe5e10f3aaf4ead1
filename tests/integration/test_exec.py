"""Sessions of exec: they end with their pod."""

import asyncio

import pytest

from serving.core.model.errors import Unavailable
from serving.home.apiserver.channels import PROTOCOLS, STDOUT
from serving.home.apiserver.podstreams import ExecOptions
from serving.home.kubelet.podstreams import FilePodLogs, LocalPodStreams
from serving.net.cluster.kinds import POD
from serving.tools.cli.client.connection import WebsocketPlace
from serving.tools.cli.client.forwarding import open_websocket
from tests.integration.local_stage import Machine, manifest


async def test_exec_session_ends_when_its_pod_is_deleted(machine: Machine) -> None:
    await machine.start(manifest())
    await machine.ready()
    streams = LocalPodStreams(machine.kubelet, FilePodLogs(machine.state.logs / "pods"))
    options = ExecOptions(container="user-container", command=("sh", "-c", "echo begun; exec sleep 1000"))
    session = await streams.execute("default", "p", options)
    async with asyncio.timeout(60):
        output = session.output()
        assert await anext(output) == (STDOUT, b"begun\n")
        await machine.cluster.delete(POD, "default", "p", grace_s=0)
        assert [piece async for piece in output] == []
        assert await session.exit_code() == 128 + 9
        await session.close()


async def test_websocket_client_without_server_raises_unavailable() -> None:
    with pytest.raises(Unavailable):
        await open_websocket(WebsocketPlace("http://127.0.0.1:1/", {}, None), PROTOCOLS)
