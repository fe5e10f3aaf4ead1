"""Slow clients: minimum rates of uploads and readers, and buffering of responses.

Each direction has one deadline, a leaky bucket. It starts at ``grace_s`` from now. Each byte extends it by the byte's
time at the minimum rate, up to ``silence_max_s`` from now. So a fast client may pause for that time, and a client that
sends slower than the minimum rate is cut off after the grace. Kestrel (MinRequestBodyDataRate) and Apache
(mod_reqtimeout) do the same.

A client has read the bytes that its kernel has acknowledged. Bytes in the transport's buffer or in the socket's send
queue count as unread. The transport's buffer alone does not show slow reading: the kernel accepts megabytes at once,
and then nothing until the client has read a third of them.

If a client reads slowly, up to ``response_bytes_max`` of its response are buffered, as by nginx's proxy_buffers. Once
the whole response is buffered, the pod's slot is free. All responses of a daemon share ``bytes_max``. Beyond either
bound the upstream waits for the client.
"""

import asyncio
import fcntl
import math
import sys
import termios

import msgspec

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http1.requesthead import RequestHead, is_grpc_call


class MinimumRate(msgspec.Struct, frozen=True, kw_only=True):
    """The minimum rate of one direction. A rate of 0 limits only the time without any bytes.

    A transfer may be slower for its first ``grace_s`` seconds. No pause without bytes may exceed ``silence_max_s``.
    """

    bytes_per_s: float
    grace_s: float
    silence_max_s: float

    def begin(self, now_s: float) -> float:
        """The deadline of a transfer that begins now."""
        return now_s + (min(self.grace_s, self.silence_max_s) if self.bytes_per_s else self.silence_max_s)

    def extend(self, due_s: float, byte_count: int, now_s: float) -> float:
        """The deadline after ``byte_count`` more bytes.

        Example: at 240 bytes per second, 480 bytes move a deadline by 2 s.
        """
        if not self.bytes_per_s:
            return now_s + self.silence_max_s if byte_count > 0 else due_s
        return min(now_s + self.silence_max_s, due_s + byte_count / self.bytes_per_s)


def body_pace(settings: HttpSettings) -> MinimumRate:
    """The minimum rate of request bodies."""
    return MinimumRate(
        bytes_per_s=settings.body_rate_min, grace_s=settings.rate_grace_s, silence_max_s=settings.body_wait_max_s
    )


def read_pace(settings: HttpSettings) -> MinimumRate:
    """The minimum rate at which clients read responses."""
    silence_max_s = settings.write_wait_max_s
    if settings.read_rate_min:
        # Bytes buffered by the client's kernel count as read; the grace starts only then.
        silence_max_s = min(silence_max_s, 2 * settings.rate_grace_s)
    return MinimumRate(bytes_per_s=settings.read_rate_min, grace_s=settings.rate_grace_s, silence_max_s=silence_max_s)


class BodyPace:
    """Measures whether the body of one request, which began at ``now_s``, arrives fast enough."""

    __slots__ = ("_due_s", "_has_begun", "_last_s", "_pace")

    def __init__(self, pace: MinimumRate, now_s: float) -> None:
        self._pace = pace
        self._last_s = now_s
        self._due_s = pace.begin(now_s)
        self._has_begun = False

    def receive(self, byte_count: int, now_s: float) -> None:
        """Count received bytes of the body."""
        if not self._has_begun:
            # The client may have waited for 100 Continue, as long as the request waited for a pod.
            self._has_begun = True
            self._due_s = max(self._due_s, self._pace.begin(now_s))
        self._last_s = now_s
        self._due_s = self._pace.extend(self._due_s, byte_count, now_s)

    def resume(self, now_s: float) -> None:
        """Restart after a pause in which nothing was read."""
        self._last_s = now_s
        self._due_s = max(self._due_s, self._pace.begin(now_s))

    def due_s(self, head: RequestHead, *, is_continued: bool, has_response: bool) -> float:
        """The deadline; infinite while the client waits for 100 Continue, unless ``is_continued``.

        For a gRPC call, and after the response has begun, only the time without body bytes is limited, because further
        pieces may depend on the response.
        """
        if head.expects_continue and not (self._has_begun or is_continued):
            return math.inf
        if has_response or is_grpc_call(head):
            return self._last_s + self._pace.silence_max_s
        return self._due_s


class ReaderPace:
    """Measures whether a client reads fast enough while its transport is full."""

    __slots__ = ("_due_s", "_pace", "_transport", "_unread_bytes", "_written_bytes", "is_full")

    def __init__(self, pace: MinimumRate, transport: asyncio.Transport) -> None:
        self._pace = pace
        self._transport = transport
        self._due_s = -math.inf
        self._unread_bytes = 0
        self._written_bytes = 0
        self.is_full = False
        """Whether bytes wait for the client."""

    def change(self, now_s: float, *, written_bytes: int, full: bool) -> float:
        """Record whether the transport is now full; return the deadline, which is infinite unless it is full.

        ``written_bytes`` is the number of all bytes written so far. Bytes that the client reads while the transport is
        full extend the deadline, also for the next time that it is full.
        """
        if full:
            self._due_s = max(self._due_s, self._pace.begin(now_s))
            self._unread_bytes, self._written_bytes = self.count_unread(), written_bytes
        else:
            self._move(now_s, written_bytes)
        self.is_full = full
        return self._due_s if full else math.inf

    def check(self, now_s: float, *, written_bytes: int) -> float:
        """Return the deadline. A client that reads too slowly has passed it."""
        if not self.is_full:
            return math.inf
        if self._due_s <= now_s:
            self._move(now_s, written_bytes)
        return self._due_s

    def _move(self, now_s: float, written_bytes: int) -> None:
        unread_bytes = self.count_unread()
        read_bytes = self._unread_bytes - unread_bytes + written_bytes - self._written_bytes
        self._unread_bytes = unread_bytes
        self._written_bytes = written_bytes
        self._due_s = self._pace.extend(self._due_s, read_bytes, now_s)

    def count_unread(self) -> int:
        """The number of bytes for the client in the buffers of the transport and the kernel."""
        return self._transport.get_write_buffer_size() + _send_queue_bytes(self._transport)


class ResponseBuffers:
    """The unread bytes of all clients of one daemon."""

    __slots__ = ("_bytes_max", "_response_bytes_max", "byte_count")

    def __init__(self, *, response_bytes_max: int = 0, bytes_max: int = 0) -> None:
        self._response_bytes_max = response_bytes_max
        self._bytes_max = bytes_max
        self.byte_count = 0
        """Unread bytes of all buffers."""

    @classmethod
    def of(cls, settings: HttpSettings) -> "ResponseBuffers":
        """The buffers of a daemon with these settings."""
        return cls(response_bytes_max=settings.response_buffer_bytes_max, bytes_max=settings.response_buffers_bytes_max)

    def count(self, change: int, byte_count: int) -> bool:
        """Count ``change`` more bytes of a response that now has ``byte_count``; return whether it may grow further."""
        self.byte_count += change
        return byte_count < self._response_bytes_max and self.byte_count < self._bytes_max


class ResponseBuffer:
    """The unread bytes of one client."""

    __slots__ = ("_all", "byte_count")

    def __init__(self, buffers: ResponseBuffers) -> None:
        self._all = buffers
        self.byte_count = 0
        """The number of bytes counted last."""

    def set(self, byte_count: int) -> bool:
        """Set the number of bytes buffered for the client; return whether more may be buffered."""
        change, self.byte_count = byte_count - self.byte_count, byte_count
        return self._all.count(change, byte_count)


def _send_queue_bytes(transport: asyncio.Transport) -> int:
    """The number of bytes that the kernel buffers for a peer; 0 if it is unknown."""
    socket = transport.get_extra_info("socket")
    try:
        return int.from_bytes(fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (AttributeError, OSError, ValueError):
        return 0
