"""Runs one call of an ASGI app: waits for a slot, enforces the timeout, and counts the call until its response is sent.

A request ends with the last byte of its response; a websocket ends with the app's call. After its timeout a request
gets 504 immediately, and its call is cancelled. The slot is freed only when the call has ended, because the app is busy
until then. A client that disconnects therefore frees no slot: the app reads ``http.disconnect`` and ends the call.
"""

import asyncio
import enum
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Protocol

from serving.core.traffic.places import Admitted, Queued, Rejected
from serving.net.aio.supervise import TaskOwner
from serving.queueproxy.io.podrequests import QUEUE_FULL, RETRY, TEXT, WAITED_TOO_LONG, Headers

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# An ASGI extension that rejects a websocket handshake with an HTTP response; without it, the server answers 403.
_DENIAL = "websocket.http.response"

_CLOSE = (b"connection", b"close")
_GAUGES = b"endpoint-load-metrics"
_INTERNAL_ERROR, _LATE, _STATUS_MAX = 500, 504, 999
# The RFC 6455 close code for an unexpected condition at the server.
_WEBSOCKET_ENDED = 1011


async def send_response(scope: Scope, send: Send, *, status: int, body: bytes, headers: Headers) -> None:
    """Respond to a request, or reject the handshake of a websocket."""
    kind = "http.response" if scope["type"] == "http" else _DENIAL
    if kind == _DENIAL and _DENIAL not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1013, "reason": body.decode("latin-1")})
        return
    lines = [(name.lower(), value) for name, value in headers]
    lines.append((b"content-length", b"%d" % len(body)))
    await send({"type": f"{kind}.start", "status": status, "headers": lines})
    await send({"type": f"{kind}.body", "body": body})


class Inbox:
    """Messages from the server, buffered up to a limit. ``on_gone`` is called when the client disconnects."""

    def __init__(self, receive: Receive, *, buffered_bytes_max: int, on_gone: Callable[[], None]) -> None:
        self._receive = receive
        self._buffered_bytes_max = buffered_bytes_max
        self._on_gone = on_gone
        self._messages: deque[Message] = deque()
        self._reading: TaskOwner | None = None

    def read_ahead(self) -> None:
        """Read until the client disconnects, or up to the limit."""
        self._reading = TaskOwner()
        self._reading.start(self._read(), name="read ahead")

    async def _read(self) -> None:
        buffered_bytes = 0
        while buffered_bytes < self._buffered_bytes_max:
            message = await self._receive()
            self._messages.append(message)
            if message["type"].endswith(".disconnect"):
                self._on_gone()
                return
            buffered_bytes += len(message.get("body") or b"")

    async def stop(self) -> None:
        """Stop buffering. Cancelling a read loses no message of the server."""
        if self._reading is not None:
            await self._reading.close()
            self._reading = None

    async def receive(self) -> Message:
        """The next message, for the app."""
        return self._messages.popleft() if self._messages else await self._receive()


class CallOwner(Protocol):
    """The pod of a call, as seen by the call."""

    def clock(self) -> float:
        """The monotonic time, in seconds."""

    def arrive(self, call: "AppCall", now_s: float) -> Admitted | Queued | Rejected:
        """Count a call, and admit, queue or reject it."""

    def expire(self, now_s: float) -> None:
        """Reject calls whose wait for a slot has expired."""

    def release(self, call: "AppCall", now_s: float) -> None:
        """Stop counting a call, and run the calls that get its slot."""

    def start(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Record a call whose app starts now."""

    def became_tunnel(self, task: asyncio.Task[None]) -> None:
        """Record that the app has accepted a websocket."""

    def due_s(self, call: "AppCall") -> float:
        """When the call times out, on ``clock``; ``math.inf`` if never."""

    @property
    def closes_connections(self) -> bool:
        """Whether each response is the last on its connection."""


class _Wait(enum.Enum):
    """The result of the wait for a slot.

    TOO_LONG: the wait itself has reached its limit. OUT_OF_TIME: the request's timeout has ended first.
    """

    GRANTED = enum.auto()
    TOO_LONG = enum.auto()
    OUT_OF_TIME = enum.auto()
    CLIENT_GONE = enum.auto()


class AppCall:
    """A request or websocket, from its arrival to its end."""

    __slots__ = (
        "_inbox",
        "_is_released",
        "_over",
        "_send",
        "_task",
        "_timer",
        "_wait",
        "gauges",
        "has_response",
        "has_spoken",
        "held_s",
        "is_late",
        "is_tunnel",
        "owner",
        "proxied",
        "received_s",
        "scope",
        "started_s",
        "status",
        "written_s",
    )

    def __init__(  # noqa: PLR0913 - what a call is
        self,
        owner: CallOwner,
        scope: Scope,
        *,
        receive: Receive,
        send: Send,
        proxied: bool,
        buffered_bytes_max: int,
        held_s: float = 0.0,
    ) -> None:
        self.owner = owner
        self.scope = scope
        self.proxied = proxied
        self.held_s = held_s
        self.started_s = self.written_s = self.received_s = owner.clock()
        self.status = 0
        """The status of the response; 0 before the response."""
        self.gauges = b""
        """The app's gauges in a response header."""
        self.has_response = False
        """Whether the app's response is complete."""
        self.is_late = False
        self.is_tunnel = False
        self.has_spoken = False
        """Whether the app has sent a websocket message."""
        self._send = send
        self._inbox = Inbox(
            receive, buffered_bytes_max=buffered_bytes_max, on_gone=lambda: self._end_wait(_Wait.CLIENT_GONE)
        )
        self._wait: asyncio.Future[_Wait] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None]
        self._is_released = False

    @property
    def final_status(self) -> int:
        """The status sent to the client; 0 if the client disconnected first."""
        return self.status or (_LATE if self.is_late else 0)

    async def run(self, app: App) -> None:
        """Call the app once a slot is granted; return when the response is sent and the call has ended."""
        decision = self.owner.arrive(self, self.started_s)
        try:
            if isinstance(decision, Rejected):
                await self._refuse(503, QUEUE_FULL, RETRY)
            elif isinstance(decision, Admitted) or await self._is_granted(decision.deadline_s):
                await self._call(app)
        finally:
            if self._task is None:
                self._release()

    def grant(self) -> None:
        """Run the call in its slot."""
        self._end_wait(_Wait.GRANTED)

    def time_out(self) -> None:
        """Reject the call. Called when its wait for a slot has expired."""
        self._end_wait(_Wait.TOO_LONG)

    async def _is_granted(self, deadline_s: float) -> bool:
        """Wait for a slot; return False if the call was rejected or its client disconnected."""
        loop = asyncio.get_running_loop()
        self._wait = loop.create_future()
        self._inbox.read_ahead()
        due_s = self.owner.due_s(self)
        self._set_timer(
            min(due_s, deadline_s),
            lambda: (
                self._end_wait(_Wait.OUT_OF_TIME)
                if due_s <= deadline_s
                else self.owner.expire(max(deadline_s, self.owner.clock()))
            ),
        )
        try:
            outcome = await self._wait
        finally:
            self._stop_timer()
            await self._inbox.stop()
        if outcome is _Wait.TOO_LONG:
            await self._refuse(503, WAITED_TOO_LONG, RETRY)
        elif outcome is _Wait.OUT_OF_TIME:
            await self._refuse_late()
        return outcome is _Wait.GRANTED

    def _end_wait(self, outcome: _Wait) -> None:
        if self._wait is not None and not self._wait.done():
            self._wait.set_result(outcome)

    async def _call(self, app: App) -> None:
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        receive = self._receive_frame if self.scope["type"] == "websocket" else self._inbox.receive
        task = self._task = self.owner.start(_awaited(app, self.scope, receive=receive, send=self._forward))
        task.add_done_callback(self._ended)
        self._check_time()
        try:
            await self._over
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self._stop_timer()
        if not self.is_late and task.cancelled():
            # Cut off at the end of a drain. ASGI cannot close a connection without a response.
            if not self.status:
                await self._refuse(503, b"shutting down", (*RETRY, _CLOSE))
        elif not self.is_late:
            # The server handles the app's exception as it does without a queue-proxy.
            task.result()
        elif not self.status:
            await self._refuse_late()
        elif self.is_tunnel:
            await self._send({"type": "websocket.close", "code": _WEBSOCKET_ENDED, "reason": "request timeout"})

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Handle the end or failure of the app's call."""
        has_failed = not task.cancelled() and task.exception() is not None
        if has_failed and not self.status and not self.is_late:
            self.status = _INTERNAL_ERROR
        self._release()
        if not self._over.done():
            self._over.set_result(None)

    def _release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self.owner.release(self, self.owner.clock())

    def _check_time(self) -> None:
        due_s, now_s = self.owner.due_s(self), self.owner.clock()
        if due_s > now_s:
            self._set_timer(due_s, self._check_time)
            return
        assert self._task is not None
        self.is_late = True
        self._task.cancel()
        if not self._over.done():
            self._over.set_result(None)

    def _set_timer(self, due_s: float, callback: Callable[[], object]) -> None:
        if due_s < math.inf:
            self._timer = asyncio.get_running_loop().call_later(due_s - self.owner.clock(), callback)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _receive_frame(self) -> Message:
        message = await self._inbox.receive()
        self.received_s = self.owner.clock()
        return message

    async def _forward(self, message: Message) -> None:
        """Forward a message of the app, and track its response. Messages after the end are dropped."""
        if self.is_late:
            return
        kind = message["type"]
        if kind in {"http.response.start", "websocket.http.response.start"}:
            message = self._begun(message)
        elif kind == "websocket.accept":
            self.status = 101
            self.is_tunnel = True
            assert self._task is not None
            self.owner.became_tunnel(self._task)
        elif kind == "websocket.send":
            self.has_spoken = True
        elif kind == "websocket.close" and not self.status:
            self.status = 403
        elif kind == "http.response.body" and not message.get("more_body", False):
            self.has_response = True
        await self._send(message)
        self.written_s = self.owner.clock()
        if self.has_response:
            self._release()

    def _begun(self, message: Message) -> Message:
        # The server refuses a status of four digits, and no metric has a class for it.
        self.status = min(message["status"], _STATUS_MAX)
        headers = list(message.get("headers") or ())
        self.gauges = next((value for name, value in headers if name.lower() == _GAUGES), b"")
        if self.owner.closes_connections and self.scope.get("http_version", "1.1").startswith("1"):
            headers = [header for header in headers if header[0].lower() != b"connection"]
            headers.append(_CLOSE)
        return {**message, "headers": headers}

    async def _refuse_late(self) -> None:
        await self._refuse(_LATE, b"request timeout", (*TEXT, _CLOSE))

    async def _refuse(self, status: int, body: bytes, headers: Headers) -> None:
        self.status = status
        await send_response(self.scope, self._send, status=status, body=body, headers=headers)


async def _awaited(app: App, scope: Scope, *, receive: Receive, send: Send) -> None:
    # An app may return any awaitable, but a task needs a coroutine.
    await app(scope, receive, send)
