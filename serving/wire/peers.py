"""Websockets to the others of one's kind: one to each, kept as long as it is wanted, for frames that go one way.

Frames go out in order. While a connection is not there, or takes nothing, they are dropped and counted: who gets a
statistic stamps it when it arrives, so that an old one would lie.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

__all__ = ["Peers"]

_log = logging.getLogger(__name__)

_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 2.0
_OPEN_TIMEOUT_S = 5.0
# For a goodbye: the other may be frozen.
_CLOSE_TIMEOUT_S = 0.5
# Some seconds of frames; a connection that is that far behind takes nothing.
_FRAMES_MAX = 256


class Peers:
    """Connections by name. A context: what is open is closed at its end.

    ``ask`` are the names and values by which the other knows who asks, ``token`` proves it; ``draw`` gives numbers from 0
    to below 1, for the jitter of pauses.
    """

    def __init__(self, ask: Mapping[str, str], *, token: str, draw: Callable[[], float]) -> None:
        self.dropped_count = 0
        self._ask = urlencode(ask)
        self._token = token
        self._draw = draw
        self._peers: dict[str, _Peer] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"Peers({sorted(self._peers)}, {self.dropped_count} dropped)"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reach({})
        await asyncio.gather(*self._ending, return_exceptions=True)

    @property
    def connected(self) -> list[str]:
        """Those who get what is sent to them."""
        return sorted(name for name, peer in self._peers.items() if peer.is_connected)

    def reach(self, addresses: Mapping[str, str]) -> None:
        """Keep a connection to each of these, "host:port" by name, and to nobody else."""
        for name, peer in list(self._peers.items()):
            if addresses.get(name) != peer.address:
                del self._peers[name]
                self._ending.add(peer.task)
                peer.task.add_done_callback(self._ending.discard)
                peer.task.cancel()
        for name, address in addresses.items():
            if name not in self._peers:
                self._peers[name] = _Peer(address, self._run)

    def send(self, name: str, frame: bytes) -> bool:
        """Send a frame as soon as its connection takes it; whether there is one."""
        peer = self._peers.get(name)
        if peer is None or not peer.is_connected:
            self.dropped_count += 1
            return False
        if len(peer.frames) >= _FRAMES_MAX:
            peer.frames.popleft()
            self.dropped_count += 1
        peer.frames.append(frame)
        peer.has_frames.set()
        return True

    async def _run(self, peer: "_Peer") -> None:
        failure_count = 0
        while True:
            try:
                await self._converse(peer)
                failure_count = 0
            except (OSError, WebSocketException) as error:
                failure_count = 0 if peer.was_connected else failure_count + 1
                if failure_count == 1:
                    _log.warning("peer.unreachable", extra={"address": peer.address, "error": str(error)})
            pause_s = min(_PAUSE_FIRST_S * 2 ** min(failure_count, 16), _PAUSE_MAX_S)
            await asyncio.sleep(pause_s * (0.5 + self._draw()))

    async def _converse(self, peer: "_Peer") -> None:
        """One connection from its beginning to its end."""
        peer.was_connected = False
        url = f"ws://{peer.address}/stats?{self._ask}"
        headers = {"Authorization": f"Bearer {self._token}"}
        async with connect(
            url,
            additional_headers=headers,
            compression=None,
            proxy=None,
            open_timeout=_OPEN_TIMEOUT_S,
            close_timeout=_CLOSE_TIMEOUT_S,
        ) as connection:
            peer.is_connected = peer.was_connected = True
            sending = asyncio.create_task(_send(peer, connection), name=f"peer {peer.address}")
            try:
                with contextlib.suppress(ConnectionClosed):
                    # Nothing is said to us: this lasts as long as the connection.
                    async for _ in connection:
                        pass
            finally:
                peer.is_connected = False
                sending.cancel()
                self.dropped_count += len(peer.frames)
                peer.frames.clear()


class _Peer:
    """One other."""

    __slots__ = ("address", "frames", "has_frames", "is_connected", "task", "was_connected")

    def __init__(self, address: str, run: Callable[["_Peer"], Coroutine[object, object, None]]) -> None:
        self.address = address
        self.frames: deque[bytes] = deque()
        self.has_frames = asyncio.Event()
        self.is_connected = self.was_connected = False
        self.task = asyncio.create_task(run(self), name=f"peer {address}")


async def _send(peer: _Peer, connection: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await peer.has_frames.wait()
            while peer.frames:
                await connection.send(peer.frames.popleft())
            peer.has_frames.clear()
