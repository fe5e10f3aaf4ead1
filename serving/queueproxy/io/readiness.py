"""Probes the app once, decides when to probe again, and reports readiness to the pod's runner."""

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING

import msgspec

from serving.core.settings.queueproxy import QueueProxySettings
from serving.net.aio.netns import open_connection
from serving.queueproxy.podspec import Address, PodSpec, Probe

if TYPE_CHECKING:
    from serving.queueproxy.io.applistener import ListenerCheck

# "HTTP/1.1 200": the part of a response that a probe reads.
_STATUS_BYTES = 12
_FINE = (200, 399)
_AGENT = "kube-probe/serving"

# The pause is about a tenth of the elapsed time, which bounds the delay of readiness.
_PAUSE_GROWTH = 1.1
_LOG = logging.getLogger(__name__)

PUSH_AGAIN = signal.SIGUSR1
READY_PID_VARIABLE = "SERVING_READY_PID"
"""The environment variable with this process's id in the runner's process namespace."""


def listener_check(spec: PodSpec) -> "ListenerCheck | None":
    """The check that the app owns the socket at its address; None if no other process shares the network."""
    if spec.app_user is None:
        return None
    from serving.queueproxy.io.applistener import check_of  # noqa: PLC0415 - a pod of a cluster needs none

    return check_of(spec)


async def attempt(
    probe: Probe, app: Address, *, is_http2: bool = False, network: str = "", check: "ListenerCheck | None" = None
) -> bool:
    """Whether the app accepts a connection, or answers a GET with 200 to 399, within the probe's timeout.

    ``network`` is the path of the app's network namespace; "" is this process's namespace. ``is_http2`` probes with
    HTTP/2, for an app whose port is named h2c. The attempt fails if ``check`` finds a listener of another process.
    """
    host, port = app[0], probe.port or app[1]
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(probe.timeout_s):
            if check is not None and not check.may_listen(host, port):
                return False
            reader, writer = await open_connection(host, port, network=network)
            if check is not None:
                check.require(host, port)
            if probe.path is None:
                return True
            if is_http2:
                from serving.net.proxy.http2.probe import get_status  # noqa: PLC0415 - most apps need none of it

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


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The app's readiness. ``pause_s`` is the time until the next probe; None ends the probing."""

    is_ready: bool
    pause_s: float | None
    failure_count: int = 0


def at_start(settings: QueueProxySettings) -> Readiness:
    """The state before the first probe: probe immediately, then pause."""
    return Readiness(is_ready=False, pause_s=settings.probe_pause_min_s)


def after_attempt(state: Readiness, *, ok: bool, probe: Probe, settings: QueueProxySettings) -> Readiness:
    """The state after one probe.

    While an app starts, each pause is 1.1 times the previous one, between the settings' minimum and maximum. Example:
    an app that listens after 100 ms is found ready within 12 ms.
    """
    if ok:
        return Readiness(is_ready=True, pause_s=probe.period_s or None)
    failure_count = state.failure_count + 1
    if state.is_ready and failure_count < probe.failure_max:
        return Readiness(is_ready=True, pause_s=probe.period_s, failure_count=failure_count)
    if state.is_ready:
        return at_start(settings)
    pause_s = settings.probe_pause_min_s if state.pause_s is None else state.pause_s * _PAUSE_GROWTH
    return Readiness(is_ready=False, pause_s=min(pause_s, settings.probe_pause_max_s), failure_count=failure_count)


class ReadinessPipe:
    """Reports readiness to the pod's runner, as one JSON object per line: ``{"pid": 7, "ready": true}``.

    "dormant": true is added while the app sleeps. The last line is ``{"pid": 7, "ready": false, "drained": true}``; the
    app may then end. A reader that has lost lines sends the signal ``PUSH_AGAIN``, and the last line is written again.
    ``pid`` is this process's id for the reader; None: the id in this process namespace.
    """

    def __init__(self, descriptor: int | None, *, pid: int | None = None) -> None:
        self._descriptor = descriptor
        self._pid = os.getpid() if pid is None else pid
        self._line = b""
        if descriptor is not None:
            os.set_blocking(descriptor, False)
            os.set_inheritable(descriptor, False)

    def push(self, *, ready: bool, drained: bool = False, dormant: bool = False) -> None:
        """Write a line; do nothing without a reader."""
        line: dict[str, int] = {"pid": self._pid, "ready": ready}
        marks = {"drained": True} if drained else {"dormant": True} if dormant else {}
        self._line = msgspec.json.encode({**line, **marks}) + b"\n"
        self.push_again()

    def push_again(self) -> None:
        """Write the last line again."""
        if self._descriptor is None or not self._line:
            return
        try:
            os.write(self._descriptor, self._line)
        except BlockingIOError:
            # The pipe is full because its reader ended; the next reader sends the signal.
            return
        except OSError as error:
            _LOG.warning("readiness.not_pushed", extra={"error": str(error)})
            self._descriptor = None
