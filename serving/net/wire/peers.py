"""Links to a daemon's peers, one per peer, for frames in one direction."""

import asyncio
import functools
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

from serving.net.aio.mutualtls import PeerTls
from serving.net.aio.supervise import SupervisedTasks
from serving.net.wire.link import Link, LinkSettings

# Some seconds of frames; a connection further behind accepts nothing.
_SETTINGS = LinkSettings(frames_max=256)


class Peers:
    """Links (websockets) to other processes, by name. As a context manager, it closes them on exit.

    ``ask`` has the query parameters that identify this side; ``token`` authenticates it. ``draw`` returns random
    numbers in [0, 1) for the jitter of pauses. With ``secured`` links use TLS.
    """

    def __init__(
        self, ask: Mapping[str, str], *, token: str, draw: Callable[[], float], secured: PeerTls | None = None
    ) -> None:
        self._secured = secured
        self._ask = urlencode(ask)
        self._token = token
        self._draw = draw
        self._peers: dict[str, _Peer] = {}
        self._tasks = SupervisedTasks()
        self._dropped_count = 0

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reach({})
        await self._tasks.__aexit__(kind, error, trace)

    @property
    def connected(self) -> list[str]:
        """The names of connected peers."""
        return sorted(name for name, peer in self._peers.items() if peer.link.is_connected)

    @property
    def dropped_count(self) -> int:
        """The number of dropped frames, including those of removed peers."""
        return self._dropped_count + sum(peer.link.dropped_count for peer in self._peers.values())

    def reach(self, addresses: Mapping[str, str]) -> None:
        """Set the peers to link to: "host:port" by name."""
        for name, peer in list(self._peers.items()):
            if addresses.get(name) != peer.address:
                del self._peers[name]
                peer.task.add_done_callback(functools.partial(self._ended, peer.link))
                peer.task.cancel()
        for name, address in addresses.items():
            if name not in self._peers:
                self._peers[name] = self._reached(address)

    def send(self, name: str, frame: bytes) -> bool:
        """Queue a frame for a peer; return False without a link to the peer."""
        peer = self._peers.get(name)
        if peer is None:
            self._dropped_count += 1
            return False
        return peer.link.send(frame)

    def _reached(self, address: str) -> "_Peer":
        url = f"ws://{address}/stats?{self._ask}"
        link = Link(url, token=lambda: self._token, draw=self._draw, settings=_SETTINGS, secured=self._secured)
        return _Peer(address, link, self._tasks.keep_running(link.run, name=f"peer {address}"))

    def _ended(self, link: Link, task: asyncio.Task[None]) -> None:
        del task
        self._dropped_count += link.dropped_count


class _Peer:
    """One peer and its link."""

    __slots__ = ("address", "link", "task")

    def __init__(self, address: str, link: Link, task: asyncio.Task[None]) -> None:
        self.address = address
        self.link = link
        self.task = task
