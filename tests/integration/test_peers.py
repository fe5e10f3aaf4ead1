"""Connections to peers, which appear, disappear and return, over real sockets."""

import asyncio
import contextlib

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from serving.net.wire.peers import Peers
from tests.eventually import until


class Peer:
    """A peer that listens on the same port each time."""

    def __init__(self) -> None:
        self.frames: list[str | bytes] = []
        self.requests: list[tuple[str, str]] = []
        self.port = 0
        self._server: Server | None = None

    async def listen(self) -> None:
        self._server = await serve(self._handle, "127.0.0.1", self.port)
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.requests.append((connection.request.path, connection.request.headers["Authorization"]))
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.frames.append(await connection.recv())


def new_peers() -> Peers:
    return Peers({"autoscaler": "me"}, token="secret", draw=lambda: 0.0)  # noqa: S106 - a test's


async def test_frames_are_sent_in_order_to_their_peer() -> None:
    first, second = Peer(), Peer()
    await first.listen()
    await second.listen()
    async with new_peers() as peers:
        peers.reach({"first": first.address, "second": second.address})
        await until(lambda: peers.connected == ["first", "second"])
        assert [peers.send("first", bytes([number])) for number in range(3)] == [True, True, True]
        assert peers.send("second", b"x")
        await until(lambda: (first.frames, second.frames) == ([b"\0", b"\1", b"\2"], [b"x"]))
    assert first.requests == [("/stats?autoscaler=me", "Bearer secret")]
    assert peers.dropped_count == 0
    await first.close()
    await second.close()


async def test_frame_without_connection_is_dropped_and_counted() -> None:
    async with new_peers() as peers:
        peers.reach({"gone": "127.0.0.1:1"})
        await asyncio.sleep(0.05)
        assert not peers.send("gone", b"x")
        assert not peers.send("unknown", b"x")
        assert (peers.connected, peers.dropped_count) == ([], 2)


async def test_lost_peer_connection_is_reopened() -> None:
    other = Peer()
    await other.listen()
    async with new_peers() as peers:
        peers.reach({"other": other.address})
        await until(lambda: peers.connected)
        await other.close()
        await until(lambda: not peers.connected)
        await other.listen()
        await until(lambda: peers.connected)
        assert peers.send("other", b"again")
        await until(lambda: other.frames == [b"again"])
    await other.close()


async def test_peers_connect_only_to_listed_peers_at_current_addresses() -> None:
    first, second = Peer(), Peer()
    await first.listen()
    await second.listen()
    async with new_peers() as peers:
        peers.reach({"one": first.address})
        await until(lambda: peers.connected)
        peers.reach({"one": second.address})
        await until(lambda: len(second.requests) == 1)
        await until(lambda: peers.connected == ["one"])
        peers.reach({})
        assert peers.connected == []
    await first.close()
    await second.close()
