"""exec: its session outlives no pod, and its client sends and receives at once."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from serving.core.model.errors import Unavailable
from serving.home.apiserver.channels import PROTOCOLS, STDOUT
from serving.home.apiserver.podstreams import ExecOptions
from serving.home.kubelet.podstreams import FilePodLogs, LocalPodStreams
from serving.net.cluster.kinds import POD
from serving.tools.cli.services.exec import open_channels
from tests.integration.local_stage import Machine, controlled, manifest, template_process

_PIECE = bytes([STDOUT]) + bytes(1 << 16)
# More than all buffers between the two ends hold.
_PIECE_COUNT = 1000


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as made:
            yield made


async def test_a_command_ends_with_the_pod_that_is_deleted_under_it(machine: Machine) -> None:
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


async def test_the_client_receives_while_a_message_waits_to_be_sent() -> None:
    async def echo(connection: ServerConnection) -> None:
        # It does not read on before the client has taken the answer, as a command such as cat.
        async for message in connection:
            await connection.send(message)

    def send_and_receive(url: str) -> int:
        with open_channels(url, {}, None) as channels:
            with ThreadPoolExecutor(1) as pool:
                sending = pool.map(channels.send, [_PIECE] * _PIECE_COUNT)
                size = sum(len(channels.recv()) for _ in range(_PIECE_COUNT))
                list(sending)
            return size

    protocols = [Subprotocol(one) for one in PROTOCOLS]
    async with asyncio.timeout(60), serve(echo, "127.0.0.1", 0, subprotocols=protocols, compression=None) as server:
        host, port = next(iter(server.sockets)).getsockname()
        assert await asyncio.to_thread(send_and_receive, f"http://{host}:{port}/") == len(_PIECE) * _PIECE_COUNT


async def test_a_client_without_a_server_gets_one_error_and_leaves_no_thread() -> None:
    with pytest.raises(Unavailable):
        await asyncio.to_thread(open_channels, "http://127.0.0.1:1/", {}, None)
