"""Connections to peers over real sockets, which appear, vanish, and return."""

import asyncio
import contextlib

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from serving.net.wire.peers import Peers
from tests.eventually import until


class Other:
    """A listener on a port that it keeps."""

    def __init__(self) -> None:
        self.heard: list[str | bytes] = []
        self.asked: list[tuple[str, str]] = []
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
        self.asked.append((connection.request.path, connection.request.headers["Authorization"]))
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.heard.append(await connection.recv())


def made() -> Peers:
    return Peers({"autoscaler": "me"}, token="secret", draw=lambda: 0.0)  # noqa: S106 - a test's


async def test_frames_go_in_order_to_the_one_they_are_for() -> None:
    first, second = Other(), Other()
    await first.listen()
    await second.listen()
    async with made() as peers:
        peers.reach({"first": first.address, "second": second.address})
        await until(lambda: peers.connected == ["first", "second"])
        assert [peers.send("first", bytes([number])) for number in range(3)] == [True, True, True]
        assert peers.send("second", b"x")
        await until(lambda: (first.heard, second.heard) == ([b"\0", b"\1", b"\2"], [b"x"]))
    assert first.asked == [("/stats?autoscaler=me", "Bearer secret")]
    assert peers.dropped_count == 0
    await first.close()
    await second.close()


async def test_what_finds_no_connection_is_dropped_and_counted() -> None:
    async with made() as peers:
        peers.reach({"gone": "127.0.0.1:1"})
        await asyncio.sleep(0.05)
        assert not peers.send("gone", b"x")
        assert not peers.send("unknown", b"x")
        assert (peers.connected, peers.dropped_count) == ([], 2)


async def test_a_connection_that_ended_is_made_again() -> None:
    other = Other()
    await other.listen()
    async with made() as peers:
        peers.reach({"other": other.address})
        await until(lambda: peers.connected)
        await other.close()
        await until(lambda: not peers.connected)
        await other.listen()
        await until(lambda: peers.connected)
        assert peers.send("other", b"again")
        await until(lambda: other.heard == [b"again"])
    await other.close()


async def test_only_those_are_reached_who_are_wanted_at_their_present_address() -> None:
    first, second = Other(), Other()
    await first.listen()
    await second.listen()
    async with made() as peers:
        peers.reach({"one": first.address})
        await until(lambda: peers.connected)
        peers.reach({"one": second.address})
        await until(lambda: len(second.asked) == 1)
        await until(lambda: peers.connected == ["one"])
        peers.reach({})
        assert peers.connected == []
    await first.close()
    await second.close()
