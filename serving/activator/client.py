"""The statistics websocket to the autoscaler: what is told each second, and what is told at once.

Frames go out in order over one connection, which is made again with a jittered, growing pause when it ends. While there
is none, or it takes nothing, frames are dropped and counted: the autoscaler stamps what arrives, so an old one would lie.
``on_connected`` says that an autoscaler is there who has been told nothing.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from serving.activator.routes import RevisionKey
from serving.activator.wake import Load
from serving.aio.clock import now_s
from serving.aio.periodic import wait_for
from serving.settings.activator import ActivatorSettings
from serving.wire.frames import ActivatorStats, RevisionStat, encode_activator_stats
from serving.wire.tokens import activator_token

__all__ = ["StatsClient"]

_log = logging.getLogger("activator")

_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 2.0
_OPEN_TIMEOUT_S = 5.0
# A second of pokes; a connection that is that far behind takes nothing.
_FRAMES_MAX = 64
# Below the 1 MiB that a websocket server takes by default: a revision is some 200 bytes at most of 63-character names.
_REVISIONS_PER_FRAME = 2000


class StatsClient:
    """Tells one autoscaler. ``draw`` gives numbers from 0 to below 1, for the jitter of pauses."""

    def __init__(
        self,
        settings: ActivatorSettings,
        *,
        key: bytes,
        draw: Callable[[], float],
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        self.dropped_count = 0
        self.failure_count = 0
        """Attempts to connect that have failed in a row."""
        self._url = f"{settings.stats_url}?{urlencode({'activator': settings.name})}"
        self._token = activator_token(key, name=settings.name)
        self._draw = draw
        self._on_connected = on_connected
        self._frames: deque[bytes] = deque()
        self._has_frames = asyncio.Event()
        self._is_connected = False

    def __repr__(self) -> str:
        state = "connected" if self._is_connected else "not connected"
        return f"StatsClient({self._url}, {state}, {len(self._frames)} to send, {self.dropped_count} dropped)"

    @property
    def is_connected(self) -> bool:
        """Whether frames arrive somewhere."""
        return self._is_connected

    def tell(self, loads: Iterable[tuple[RevisionKey, Load]]) -> None:
        """Send loads as soon as the connection takes them."""
        stats = [
            RevisionStat(
                namespace=namespace, revision=revision, concurrency=load.concurrency, request_count=load.request_count
            )
            for (namespace, revision), load in loads
        ]
        for start in range(0, len(stats), _REVISIONS_PER_FRAME):
            self._put(encode_activator_stats(ActivatorStats(stats=stats[start : start + _REVISIONS_PER_FRAME])))

    async def run(self, stop: asyncio.Event) -> None:
        """Keep a connection until ``stop`` is set."""
        while not stop.is_set():
            try:
                await self._converse(stop)
            except (OSError, WebSocketException) as error:
                self.failure_count += 1
                if self.failure_count == 1:
                    _log.warning("stats.unreachable", extra={"url": self._url, "error": str(error)})
            if not stop.is_set():
                # 50 ms, 100 ms, 200 ms ... 2 s, each times 0.5 to 1.5: activators do not come back all at once.
                pause_s = min(_PAUSE_FIRST_S * 2 ** min(self.failure_count, 16), _PAUSE_MAX_S)
                await wait_for(stop, until_s=now_s() + pause_s * (0.5 + self._draw()))

    async def _converse(self, stop: asyncio.Event) -> None:
        """One connection from its beginning to its end."""
        headers = {"Authorization": f"Bearer {self._token}"}
        async with connect(
            self._url, additional_headers=headers, compression=None, proxy=None, open_timeout=_OPEN_TIMEOUT_S
        ) as connection:
            self._is_connected = True
            self.failure_count = 0
            _log.info("stats.connected", extra={"url": self._url})
            self._on_connected()
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._send(connection), name="stats send"),
                        group.create_task(_close_at(stop, connection), name="stats close"),
                    ]
                    with contextlib.suppress(ConnectionClosed):
                        # Nothing is said to us: this lasts as long as the connection.
                        async for _ in connection:
                            pass
                    for task in tasks:
                        task.cancel()
            finally:
                self._is_connected = False
                self._drop_all()

    async def _send(self, connection: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self._has_frames.wait()
                while self._frames:
                    await connection.send(self._frames.popleft())
                self._has_frames.clear()

    def _put(self, frame: bytes) -> None:
        if not self._is_connected:
            self.dropped_count += 1
            return
        if len(self._frames) >= _FRAMES_MAX:
            self._frames.popleft()
            self.dropped_count += 1
        self._frames.append(frame)
        self._has_frames.set()

    def _drop_all(self) -> None:
        self.dropped_count += len(self._frames)
        self._frames.clear()
        self._has_frames.clear()


async def _close_at(stop: asyncio.Event, connection: ClientConnection) -> None:
    await stop.wait()
    await connection.close()
