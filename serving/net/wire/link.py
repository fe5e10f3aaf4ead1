"""A reconnecting websocket: sends frames in order, and passes on those of the peer.

The receiver stamps a stat on receipt, so an old stat is worthless. A link therefore queues few frames, replaces the
oldest by the newest, and counts unsent frames. Connection attempts have growing pauses with jitter, so that a restarted
autoscaler is not overloaded.
"""

import asyncio
import contextlib
import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from serving.core.traffic.backoff import backoff_s
from serving.net.aio.mutualtls import PeerTls
from serving.net.aio.supervise import supervise

if TYPE_CHECKING:
    from serving.net.wire.websocket import Websocket

_log = logging.getLogger(__name__)


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a link, which is a websocket to one peer.

    ``pause_min_s`` is the pause before the second attempt. The pause doubles up to ``pause_max_s``; each pause is
    multiplied by a random factor of 0.5 to 1.5. Above ``frames_max`` the oldest frame is dropped. ``wait`` keeps frames
    until there is a connection.
    """

    pause_min_s: float = 0.05
    pause_max_s: float = 2.0
    frames_max: int = 64
    wait: bool = False


class Link:
    """Sends frames to one peer over a websocket while ``run`` runs.

    ``token`` returns the sender's token; it is called for each attempt, and its ``OSError`` fails the attempt. ``draw``
    returns random numbers in [0, 1), for the jitter of pauses. ``on_connected`` is called after each connect, to resend
    all state. ``on_frame`` is called with each frame of the peer. ``network`` is the path of the network namespace to
    connect from, "" for this process's. With ``secured`` the link uses TLS.
    """

    def __init__(  # noqa: PLR0913 - what it is wired with
        self,
        url: str,
        *,
        token: Callable[[], str],
        draw: Callable[[], float],
        settings: LinkSettings | None = None,
        on_connected: Callable[[], None] = lambda: None,
        on_frame: Callable[[bytes], None] = lambda _: None,
        network: str = "",
        secured: PeerTls | None = None,
    ) -> None:
        self.is_connected = False
        self.sent_count = 0
        self.dropped_count = 0
        """Unsent frames, including the one in progress."""
        self.failure_count = 0
        """Failed attempts and ended connections since the last success."""
        self._url = url
        self._token = token
        self._draw = draw
        self._settings = settings or LinkSettings()
        self._on_frame = on_frame
        self._on_connected = on_connected
        self._network = network
        self._secured = secured
        self._frames: deque[bytes] = deque()
        self._has_frames = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        counts = f"{len(self._frames)} to send, {self.sent_count} sent, {self.dropped_count} dropped"
        return f"Link({self._url}, {state}, {counts})"

    def send(self, frame: bytes) -> bool:
        """Queue a frame; return False if it was dropped because there is no connection."""
        if not (self.is_connected or self._settings.wait):
            self.dropped_count += 1
            return False
        if len(self._frames) >= self._settings.frames_max:
            self._frames.popleft()
            self.dropped_count += 1
        self._frames.append(frame)
        self._has_frames.set()
        self._is_empty.clear()
        return True

    async def flush(self, within_s: float) -> None:
        """Wait up to ``within_s`` seconds until all frames are sent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._is_empty.wait()

    async def run(self) -> None:
        """Connect, send, and reconnect, until cancelled."""
        least_s, most_s = self._settings.pause_min_s, self._settings.pause_max_s
        while True:
            try:
                await self._converse()
            except OSError as error:
                self.failure_count += 1
                # Once per loss, not once per attempt.
                if self.failure_count == 1:
                    _log.warning("link.lost", extra={"url": self._url, "error": str(error)})
            pause_s = backoff_s(self.failure_count, first_s=least_s, max_s=most_s)
            await asyncio.sleep(pause_s * (0.5 + self._draw()))

    async def _converse(self) -> None:
        """Use one connection until it ends, then raise; ``run`` reconnects."""
        connect = await _library()
        secured = self._secured
        if secured is not None and secured.takes_plain and self.failure_count % 2:
            # Every second attempt is without TLS, because the peer may be an older version.
            secured = None
        connecting = connect(self._url, token=self._token(), network=self._network, secured=secured)
        async with connecting as socket, supervise() as tasks:
            self.is_connected = True
            self.failure_count = 0
            _log.info("link.connected", extra={"url": self._url})
            tasks.start_background(self._send_all(socket), name=f"send to {self._url}")
            try:
                self._on_connected()
                reason = await socket.closed(self._on_frame)
            finally:
                self.is_connected = False
                if not self._settings.wait:
                    self.dropped_count += len(self._frames)
                    self._frames.clear()
        raise ConnectionError(reason)

    async def _send_all(self, socket: "Websocket") -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await self._has_frames.wait()
                while self._frames:
                    frame = self._frames.popleft()
                    self.dropped_count += 1
                    await socket.send(frame)
                    self.dropped_count -= 1
                    self.sent_count += 1
                self._has_frames.clear()
                self._is_empty.set()


async def _library() -> "Callable[..., contextlib.AbstractAsyncContextManager[Websocket]]":
    """Import the websocket library late: the import takes 35 ms, which would delay a starting queue-proxy."""
    if "serving.net.wire.websocket" not in sys.modules:
        await asyncio.to_thread(_import)
    return _import()


def _import() -> "Callable[..., contextlib.AbstractAsyncContextManager[Websocket]]":
    from serving.net.wire.websocket import connected  # noqa: PLC0415 - see _library

    return connected
