"""A queue-proxy in its app's process: counts, queues and cancels the app's calls."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any

from serving.core.model.identities import ACTIVATOR
from serving.core.model.knative import APP_PROBE
from serving.core.settings.http import REPLACE, HttpSettings
from serving.core.traffic.places import Admitted, Queued, Rejected
from serving.net.aio.supervise import TaskOwner
from serving.net.proxy.http1.lines import RESERVED, BadHeaderLine, HeaderLine, read_line, read_lines
from serving.net.proxy.http1.rendering import ClientPeer
from serving.net.proxy.http1.requesthead import FORWARDED, RequestHead
from serving.queueproxy.gauges import REQUEST_REPORT
from serving.queueproxy.io.asgi.call import App, AppCall, Receive, Scope, Send, send_response
from serving.queueproxy.io.podrequests import (
    DIRECT,
    GUARDED,
    NO_ACTIVATOR,
    TEXT,
    Origin,
    PodRequests,
    is_probe,
    origin_of,
)
from serving.queueproxy.podspec import PodSpec

PEER_STATE = "serving.peer"
"""The key for the identity of an inner TLS peer in a scope's state; apps do not see it."""

_SECURE = {"https": b"https", "wss": b"https"}
_APP_PROBE = APP_PROBE.encode()
_PLAIN = {"https": "http", "wss": "ws"}


class RunningCalls:
    """The tasks of the app's calls.

    ``end_server`` is called when the app may end; it makes the server stop accepting connections.
    """

    def __init__(self, *, end_server: Callable[[], None]) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self.finishing = False
        self.draining = False
        """Whether each response is the last on its connection."""
        self._end_server = end_server
        self._requests: set[asyncio.Task[None]] = set()
        self._tunnels: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def add(self, task: asyncio.Task[None]) -> None:
        """Add a started call."""
        self._requests.add(task)
        task.add_done_callback(self._ended)

    def became_tunnel(self, task: asyncio.Task[None]) -> None:
        """Record that the app has accepted a websocket."""
        self._requests.discard(task)
        self._tunnels.add(task)
        self._changed.set()

    def drain(self) -> None:
        """Make each further response the last on its connection."""
        self.draining = True

    def stop_accepting(self) -> None:
        """Do nothing: the server accepts connections until it ends, and serves late requests."""

    async def wait_for_requests(self, *, grace_s: float) -> None:
        """Wait up to ``grace_s`` seconds until only websocket calls run."""
        await self._until(lambda: not self._requests, grace_s)

    async def wait_for_tunnels(self, *, grace_s: float) -> None:
        """Wait up to ``grace_s`` seconds until no call runs."""
        await self._until(lambda: not self._requests and not self._tunnels, grace_s)

    async def finish(self, *, grace_s: float) -> int:
        """End the server and its websockets; return how many running calls were cancelled.

        Calls are cancelled if they still run after ``grace_s`` seconds.
        """
        self._end_server()
        await self.wait_for_tunnels(grace_s=grace_s)
        tasks = self._requests | self._tunnels
        for task in tasks:
            task.cancel()
        return len(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        self._tunnels.discard(task)
        self._changed.set()

    async def _until(self, holds: Callable[[], bool], grace_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()


def head_of(scope: Scope) -> RequestHead:
    """The head of a request or websocket handshake. Raises ``BadHeaderLine``."""
    lines = read_lines([b"%b: %b" % (name, value) for name, value in scope["headers"]])
    names = {line.name for line in lines}
    return RequestHead(
        method=scope.get("method", "GET").encode(),
        target=scope.get("raw_path") or scope["path"].encode(),
        host=next((line.value for line in lines if line.name == b"host"), b""),
        lines=lines,
        wire=b"",
        reserved=not RESERVED.isdisjoint(names),
        forwarded=not FORWARDED.isdisjoint(names),
    )


def scope_for_app(scope: Scope, head: RequestHead, origin: Origin, *, settings: HttpSettings) -> Scope:
    """The scope that the app receives."""
    is_trusted, host, _ = origin
    host = head.host if host is None else host
    headers = [(b"host", host)] if host else []
    headers += [
        (line.name, line.value)
        for line in head.lines
        if _is_kept(line) and (settings.keep_underscore_headers or b"_" not in line.name)
    ]
    address = (scope.get("client") or ("",))[0]
    if not head.forwarded or not _is_in_peer(head, address):
        peer = ClientPeer(
            address, _SECURE.get(scope.get("scheme", "http"), b"http"), replaces=settings.forwarded_for == REPLACE
        )
        written = peer.forwarded_lines(head, host, trusted=is_trusted).splitlines()
        headers += [(line.name, line.value) for line in map(read_line, written)]
    else:
        headers += [(line.name, line.value) for line in head.lines if line.name in FORWARDED]
    return {**scope, "headers": headers}


def _pop_peer(scope: Scope) -> str:
    """Remove and return the peer's identity; "" without inner TLS."""
    state = scope.get("state")
    return str(state.pop(PEER_STATE, "")) if state else ""


def _is_kept(line: HeaderLine) -> bool:
    # Lines that are neither plain nor examined concern a single hop.
    if line.name in RESERVED or line.name in FORWARDED or line.name == b"host":
        return False
    return line.plain or line.matters


def _is_in_peer(head: RequestHead, address: str) -> bool:
    """Whether the server has already applied X-Forwarded-For: its last address is the reported peer."""
    way = b",".join(head.values(b"x-forwarded-for")).rpartition(b",")[2].strip()
    return way == address.encode()


class AsgiPod(PodRequests[AppCall]):
    """Counts, admits and queues the calls of one pod's app."""

    def __init__(
        self, spec: PodSpec, app: App, *, calls: RunningCalls, on_plain: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(spec, clock=calls.clock)
        self._app = app
        self._needs_activator = spec.settings.inner_tls.is_strict
        # Called with the address of a client without the required TLS.
        self._on_plain = on_plain
        self._calls = calls
        self._tasks = TaskOwner()
        self._http = spec.settings.http

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request or websocket."""
        try:
            head = head_of(scope)
        except BadHeaderLine as error:
            await send_response(scope, send, status=400, body=str(error).encode(), headers=TEXT)
            return
        origin = DIRECT
        peer = _pop_peer(scope)
        if peer:
            # TLS ends here, so the app sees the client's scheme, which the activator sends.
            scope = {**scope, "scheme": _PLAIN.get(scope["scheme"], scope["scheme"])}
        is_believed = head.reserved and self._is_believed(head)
        is_of_app = is_believed and head.get(b"k-network-probe") == _APP_PROBE
        if self._needs_activator and peer != ACTIVATOR and not is_of_app:
            if not peer and self._on_plain is not None:
                self._on_plain((scope.get("client") or ("",))[0])
            await send_response(scope, send, status=403, body=NO_ACTIVATOR, headers=TEXT)
            return
        if is_of_app:
            # A probe of the app itself needs no slot and is not counted. Kubelets have no certificate.
            await self._app(scope_for_app(scope, head, origin, settings=self._http), receive, send)
            return
        if is_believed:
            if is_probe(head):
                status, body, headers = self._probe_response(head)
                await send_response(scope, send, status=status, body=body, headers=headers)
                return
            origin = origin_of(head)
        if self.is_guarded and not origin[0]:
            await send_response(scope, send, status=403, body=GUARDED, headers=TEXT)
            return
        forwarded = scope_for_app(scope, head, origin, settings=self._http)
        if self.gauges.names:
            forwarded["headers"].append(REQUEST_REPORT)
        call = AppCall(
            self,
            forwarded,
            receive=receive,
            send=send,
            proxied=origin[0],
            held_s=origin[2],
            buffered_bytes_max=self._http.body_held_bytes_max,
        )
        await call.run(self._app)

    # Called by calls.

    @property
    def closes_connections(self) -> bool:
        """Whether each response is the last on its connection."""
        return self._calls.draining

    def clock(self) -> float:
        """The monotonic time, in seconds."""
        return self._clock()

    def arrive(self, call: AppCall, now_s: float) -> Admitted | Queued | Rejected:
        """Count a call, and admit, queue or reject it."""
        return self._arrive(call, now_s, proxied=call.proxied, held_s=call.held_s)

    def expire(self, now_s: float) -> None:
        """Reject calls whose wait for a slot has expired."""
        for late in self._expire(now_s):
            late.time_out()

    def start(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Record a call whose app starts now."""
        task = self._tasks.start(call, name="app", is_awaited=True)
        self._calls.add(task)
        return task

    def became_tunnel(self, task: asyncio.Task[None]) -> None:
        """Record that the app has accepted a websocket."""
        self._calls.became_tunnel(task)

    def release(self, call: AppCall, now_s: float) -> None:
        """Stop counting a call; the longest-waiting call gets its slot."""
        if call.gauges:
            self.gauges.record_headers(b"endpoint-load-metrics: %b" % call.gauges, now_s)
        self._end(call.final_status, now_s - call.started_s, call.held_s)
        for granted in self._release(call, now_s, proxied=call.proxied, has_response=call.has_response):
            self._end_wait(granted.waited_s + granted.request_id.held_s)
            granted.request_id.grant()

    def due_s(self, call: AppCall) -> float:
        """When a call times out. Each outgoing message of a websocket counts as a piece of the response."""
        has_begun = call.has_spoken if call.is_tunnel else bool(call.status)
        due_s = self._timeouts.due_s(call.started_s, written_s=call.written_s, has_begun=has_begun)
        if not call.is_tunnel:
            return due_s
        used_s = max(call.written_s, call.received_s)
        silent_s, old_s = self._http.tunnel_idle_max_s or math.inf, self._http.tunnel_age_max_s or math.inf
        return min(due_s, used_s + silent_s, call.started_s + old_s)
