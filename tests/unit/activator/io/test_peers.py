"""Connections between activator processes."""

import asyncio
import contextlib
from pathlib import Path

from serving.activator.io.peers import PeerProcesses
from serving.activator.queueing.router import RevisionTable
from serving.activator.slots.messages import Ask
from serving.core.settings.activator import ActivatorSettings
from serving.net.proxy.forwarding.exchange import Exchange


async def test_connection_closed_by_live_peer_leaves_no_writer_callback(tmp_path: Path) -> None:
    """A process of an earlier version closes the connection on a newer message and keeps running."""
    closed = asyncio.Event()

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        closed.set()

    settings = ActivatorSettings(count=2, index=0, peer_folder=str(tmp_path))
    async with await asyncio.start_unix_server(close, tmp_path / "activator-1.sock"), asyncio.timeout(60):
        peers = PeerProcesses(settings, RevisionTable[Exchange](), clock=lambda: 1.0, apply=lambda _: None)
        await peers.start()
        try:
            await closed.wait()
            peers.send(1, Ask(key=("default", "r"), waiting_count=1, waited_s=0.0))
            connection = peers._peers[1].connection
            assert not asyncio.get_running_loop().remove_writer(connection), "no callback in each iteration"
        finally:
            peers.close()
