"""What the queue-proxy asks of others: its app whether it is ready, the autoscaler to take a statistic.

``attempt`` connects to the app, or sends one GET, by hand: a client library would cost the sidecar more memory than
itself. ``StatsClient`` holds one websocket and sends frames over it; it keeps one frame at most, because an old
statistic is worth nothing, and counts those that it could not send.
"""

import asyncio
import contextlib
import logging
import random
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from serving.queueproxy.podspec import Address, PodSpec, Probe

__all__ = ["StatsClient", "attempt"]

_LOG = logging.getLogger(__name__)
# "HTTP/1.1 200": what a probe reads of an answer.
_STATUS_BYTES = 12
_FINE = (200, 399)
_AGENT = "kube-probe/serving"
_OPEN_MAX_S = 5.0
# Between two machines of a cluster a close takes one round trip; a pod that stops does not wait longer for it.
_CLOSE_MAX_S = 0.5
# The autoscaler sends nothing; this bounds what it could send.
_MESSAGE_BYTES_MAX = 4096


async def attempt(probe: Probe, app: Address, *, is_http2: bool = False) -> bool:
    """Whether the app takes a connection, or answers a GET with 200 to 399, within the probe's time.

    ``is_http2`` asks with HTTP/2, as an app must be asked whose port is named h2c.
    """
    host, port = app[0], probe.port or app[1]
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(probe.timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            if probe.path is None:
                return True
            if is_http2:
                from serving.proxy.http2.probe import get_status  # noqa: PLC0415 - most apps need none of it

                headers = [("user-agent", _AGENT), *probe.headers]
                status = await get_status(reader, writer, path=probe.path, host=f"{host}:{port}", headers=headers)
                return _FINE[0] <= status <= _FINE[1]
            writer.write(_get(probe, f"{host}:{port}"))
            start = await reader.readexactly(_STATUS_BYTES)
            return start.startswith(b"HTTP/1.") and b"200" <= start[9:] <= b"399"
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        if writer is not None:
            writer.transport.abort()


def _get(probe: Probe, host: str) -> bytes:
    headers = {"Host": host, "User-Agent": _AGENT, "Connection": "close", **dict(probe.headers)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET {probe.path} HTTP/1.1\r\n{lines}\r\n".encode()


class StatsClient:
    """One websocket to the autoscaler, kept open until it is cancelled."""

    def __init__(self, spec: PodSpec, *, dice: random.Random) -> None:
        assert spec.stats_url is not None
        query = f"namespace={spec.namespace}&revision={spec.revision}&pod={spec.pod}"
        self._url = f"{spec.stats_url}{'&' if '?' in spec.stats_url else '?'}{query}"
        self._spec = spec
        self._settings = spec.settings
        self._dice = dice
        self._frame: bytes | None = None
        self._given = asyncio.Event()
        self._taken = asyncio.Event()
        self.sent_count = 0
        self.unsent_count = 0
        self.connected_count = 0

    def __repr__(self) -> str:
        return (
            f"StatsClient(sent {self.sent_count}, unsent {self.unsent_count}, connected {self.connected_count} times)"
        )

    def give(self, frame: bytes) -> None:
        """Send this as soon as possible, in the place of one that waits."""
        if self._frame is not None:
            self.unsent_count += 1
        self._frame = frame
        self._given.set()
        self._taken.clear()

    async def flush(self, within_s: float) -> None:
        """Wait until nothing waits to be sent, but not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._taken.wait()

    async def run(self) -> None:
        """Connect and send, and connect again, until cancelled."""
        pause_s = self._settings.report_retry_min_s
        while True:
            connected_count = self.connected_count
            try:
                async with connect(
                    self._url,
                    additional_headers={"Authorization": f"Bearer {_token(self._spec)}"},
                    compression=None,
                    open_timeout=_OPEN_MAX_S,
                    close_timeout=_CLOSE_MAX_S,
                    max_size=_MESSAGE_BYTES_MAX,
                    proxy=None,
                ) as socket:
                    self.connected_count += 1
                    pause_s = self._settings.report_retry_min_s
                    _LOG.info("stats.connected", extra={"url": self._url})
                    await self._send_all(socket)
            except (OSError, WebSocketException) as error:
                if self.connected_count != connected_count or pause_s == self._settings.report_retry_min_s:
                    # Once per loss, not once per attempt.
                    _LOG.warning("stats.disconnected", extra={"url": self._url, "error": str(error)})
            # Spread, so that the pods of a restarted autoscaler do not come all at once.
            await asyncio.sleep(pause_s * self._dice.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, self._settings.report_retry_max_s)

    async def _send_all(self, socket: ClientConnection) -> None:
        while True:
            await self._next_or_closed(socket)
            frame, self._frame = self._frame, None
            self._given.clear()
            assert frame is not None
            # It counts as not sent until it is.
            self.unsent_count += 1
            await socket.send(frame)
            self.unsent_count -= 1
            self.sent_count += 1
            self._taken.set()

    async def _next_or_closed(self, socket: ClientConnection) -> None:
        """Wait for a frame to send, or for the end of the connection, which raises."""
        given = asyncio.ensure_future(self._given.wait())
        closed = asyncio.ensure_future(socket.wait_closed())
        try:
            await asyncio.wait((given, closed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            given.cancel()
            closed.cancel()
        if socket.close_code is not None:
            msg = f"closed by the autoscaler with {socket.close_code} {socket.close_reason}"
            raise ConnectionError(msg)


def _token(spec: PodSpec) -> str:
    """The token of now: a file is written anew before the token in it is too old.

    Raises:
        OSError: when there is no such file.
    """
    if not spec.stats_token_file:
        return spec.stats_token
    return Path(spec.stats_token_file).read_text(encoding="ascii").strip()
