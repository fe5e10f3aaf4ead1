"""The websocket server that takes stats, and what a person may ask the autoscaler over plain HTTP.

``/stats?namespace=&revision=&pod=`` is a pod's, ``/stats?activator=`` an activator's; each needs the bearer token that is
derived for exactly those names. Who speaks is known from the connection, so that a frame can speak for nobody else. A
frame that does not decode, is out of bounds, comes too late or too often is counted and dropped; the connection stays, so
that a bad frame costs one pod one second. A new connection of the same pod takes the place of the old one.

``/healthz`` says whether the cluster has been seen, ``/metrics`` the counts, ``/decisions?namespace=&revision=`` why; with
``&follow`` as events while it happens.

Handshake, control frames and errors are the sans-io protocol's of ``websockets``. Whole binary frames, which is what stats
are, are cut out here and never reach it: its asyncio server takes 43 µs for one, this takes 6 to 11 (bench/stats.py).
"""

import asyncio
import contextlib
import http
import logging
import socket
from collections.abc import AsyncIterator, Callable
from typing import cast

from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform without a compiled wheel
    from websockets.utils import apply_mask

from serving.aio.clock import now_s
from serving.autoscaler.follow import asked
from serving.autoscaler.lateness import LatenessState, is_late
from serving.autoscaler.revision import RevisionKey
from serving.autoscaler.scaler import Source
from serving.autoscaler.servercounts import ServerCounts
from serving.autoscaler.telling import DecisionBook
from serving.autoscaler.websocket import HEAD_END, MASK_BYTES, cut
from serving.model.errors import InvalidValue
from serving.model.stat import Stat
from serving.wire.frames import decode_activator_stats, decode_pod_stat
from serving.wire.tokens import activator_token, matches, pod_token

__all__ = ["StatsServer"]

_log = logging.getLogger("autoscaler")
# The protocol tells of each connection; that many pods come and go is no news.
_protocol_log = logging.getLogger("autoscaler.websocket")
_protocol_log.setLevel(logging.WARNING)

# An activator tells 2,000 revisions in a frame, some 200 bytes each; a pod's frame is below 200 bytes.
_FRAME_BYTES_MAX = 2**20
_POD_FRAME_BYTES_MAX = 1024
_HEAD_BYTES_MAX = 8192
# Connections that wait to be accepted, where we listen ourselves: all pods come back at once after a restart.
_BACKLOG = 4096
# Seconds between looks for silent connections (clients ping each 20 s), and looks until one is cut; a handshake has one.
_LOOK_PERIOD_S = 15.0
_SILENT_LOOKS_MAX = 4
# Frames of one connection that count within one second: an activator pokes each 50 ms for each of its revisions.
_POD_FRAMES_PER_S_MAX = 10
_ACTIVATOR_FRAMES_PER_S_MAX = 2000
# Bytes that wait for somebody who follows decisions and does not read.
_FOLLOWER_BYTES_MAX = 4 * 2**20
_BEARER = "Bearer "

Record = Callable[[RevisionKey, Stat, Source], None]
"""Called with each stat that passed, stamped with the time of its receipt."""


class StatsServer:
    """Takes stats and hands each to ``record``; the rest is what people are told, ``page`` for an Accept header."""

    def __init__(
        self,
        *,
        key: bytes,
        record: Record,
        decisions: DecisionBook,
        page: Callable[[str], tuple[str, str]],
        is_well: Callable[[], bool],
        connections_max: int,
    ) -> None:
        self.counts = ServerCounts()
        self.record = record
        self._key = key
        self._decisions = decisions
        self._page = page
        self._is_well = is_well
        self._connections_max = connections_max
        self._all: set[_Connection] = set()
        self._senders: dict[tuple[str, ...], _Connection] = {}

    def __repr__(self) -> str:
        return f"StatsServer({len(self._all)} connections, {self.counts.frames} frames)"

    @property
    def numbers(self) -> dict[str, int]:
        """All counts by name, for metrics."""
        return self.counts.numbers | {"stats_connections_open": len(self._senders)}

    @contextlib.asynccontextmanager
    async def serve(self, where: socket.socket | tuple[str, int]) -> AsyncIterator[tuple[str, int]]:
        """Listen on a bound socket or an address while the context lasts; gives the address."""
        loop = asyncio.get_running_loop()
        if isinstance(where, socket.socket):
            server = await loop.create_server(lambda: _Connection(self), sock=where, backlog=_BACKLOG)
        else:
            server = await loop.create_server(lambda: _Connection(self), *where, backlog=_BACKLOG)
        looking = asyncio.create_task(self._look(), name="silent connections")
        try:
            yield server.sockets[0].getsockname()[:2]
        finally:
            looking.cancel()
            server.close()
            for one in list(self._all):
                one.end(CloseCode.GOING_AWAY)
            await server.wait_closed()

    def opened(self, connection: "_Connection") -> None:
        """A connection was accepted."""
        self._all.add(connection)

    def lost(self, connection: "_Connection") -> None:
        """A connection has ended."""
        self._all.discard(connection)
        sender = connection.sender
        if sender is not None and self._senders.get(sender.identity) is connection:
            del self._senders[sender.identity]

    def answer(self, protocol: ServerProtocol, request: Request, connection: "_Connection") -> Response:
        """The answer to a request's head; a switch to websockets for those who may speak."""
        path, names = asked(request.path)
        match path:
            case "/stats":
                return self._let_in(protocol, request, connection, names=names)
            case "/healthz":
                status = http.HTTPStatus.OK if self._is_well() else http.HTTPStatus.SERVICE_UNAVAILABLE
                return protocol.reject(status, "ok\n" if status == http.HTTPStatus.OK else "not synced yet\n")
            case "/metrics":
                return _typed(protocol, *self._page(",".join(request.headers.get_all("Accept"))))
            case "/decisions" if "follow" in names:
                connection.follow(lambda: self._decisions.follow(names, connection.write))
                return Response(http.HTTPStatus.OK, "OK", Headers({"Content-Type": "text/event-stream"}))
            case "/decisions":
                return _typed(protocol, self._decisions.told(names).decode(), "application/json")
        return protocol.reject(http.HTTPStatus.NOT_FOUND, "there are /stats, /healthz, /metrics and /decisions\n")

    def _let_in(
        self, protocol: ServerProtocol, request: Request, connection: "_Connection", *, names: dict[str, str]
    ) -> Response:
        sender = self._sender(names, request)
        if sender is None:
            self.counts.unauthorized_connections += 1
            return protocol.reject(http.HTTPStatus.UNAUTHORIZED, "a token for just this name is needed\n")
        if len(self._senders) >= self._connections_max:
            self.counts.refused_connections += 1
            return protocol.reject(http.HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        response = protocol.accept(request)
        if response.status_code == http.HTTPStatus.SWITCHING_PROTOCOLS:
            self.counts.connections += 1
            before = self._senders.get(sender.identity)
            self._senders[sender.identity] = connection
            connection.sender = sender
            if before is not None:
                self.counts.replaced_connections += 1
                before.abort()
        return response

    def _sender(self, names: dict[str, str], request: Request) -> "_Sender | None":
        """Whom the request may speak for; None if its token is none of theirs."""
        given = request.headers.get_all("Authorization")
        if len(given) != 1 or any(not name or "/" in name for name in names.values()):
            return None
        if names.keys() == {"activator"}:
            expected = activator_token(self._key, name=names["activator"])
            sender = _Sender(self, names["activator"], None)
        elif names.keys() == {"namespace", "revision", "pod"}:
            expected = pod_token(self._key, namespace=names["namespace"], revision=names["revision"], pod=names["pod"])
            sender = _Sender(self, names["pod"], (names["namespace"], names["revision"]))
        else:
            return None
        return sender if matches(given[0].removeprefix(_BEARER), expected) else None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_PERIOD_S)
            for one in list(self._all):
                if not one.was_heard():
                    self.counts.silent_connections += 1
                    one.abort()


def _typed(protocol: ServerProtocol, text: str, content_type: str) -> Response:
    response = protocol.reject(http.HTTPStatus.OK, text)
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = content_type
    return response


class _Sender:
    """Who a connection speaks for, as its token proves: a pod of a revision, or an activator (``revision`` None)."""

    __slots__ = ("_counts", "_lateness", "_record", "_second", "_second_count", "name", "revision")

    def __init__(self, server: StatsServer, name: str, revision: RevisionKey | None) -> None:
        self.name = name
        self.revision = revision
        self._counts = server.counts
        self._record = server.record
        self._lateness = LatenessState()
        self._second = 0
        self._second_count = 0

    @property
    def identity(self) -> tuple[str, ...]:
        """What two connections of the same sender share."""
        return (self.name,) if self.revision is None else (*self.revision, self.name)

    def take(self, frame: bytes) -> None:
        """One frame. Whatever is in it, the connection goes on."""
        at_s = now_s()
        self._counts.frames += 1
        second = int(at_s)
        if second != self._second:
            self._second, self._second_count = second, 0
        self._second_count += 1
        try:
            if self.revision is None:
                self._take_activator(frame, at_s)
            else:
                self._take_pod(self.revision, frame, at_s)
        except InvalidValue as error:
            self.malformed(error)

    def malformed(self, error: InvalidValue) -> None:
        """A frame that is none; told once a second at most."""
        self._counts.malformed_frames += 1
        if self._second_count == 1:
            _log.warning("stats.malformed", extra={"sender": self.identity, "error": str(error)})

    def _take_pod(self, revision: RevisionKey, frame: bytes, at_s: float) -> None:
        if self._second_count > _POD_FRAMES_PER_S_MAX:
            self._counts.flooding_frames += 1
            return
        if len(frame) > _POD_FRAME_BYTES_MAX:
            raise InvalidValue(text=f"a frame of {len(frame)} bytes", expected=f"at most {_POD_FRAME_BYTES_MAX}")
        told = decode_pod_stat(frame)
        self._lateness, late = is_late(self._lateness, sent_s=told.at_s, received_s=at_s)
        if late:
            self._counts.late_frames += 1
            return
        stat = Stat(
            pod=self.name,
            at_s=at_s,
            concurrency=told.concurrency,
            request_count=told.request_count,
            proxied_concurrency=min(told.proxied_concurrency, told.concurrency),
            proxied_request_count=min(told.proxied_request_count, told.request_count),
        )
        self._record(revision, stat, Source.POD)

    def _take_activator(self, frame: bytes, at_s: float) -> None:
        if self._second_count > _ACTIVATOR_FRAMES_PER_S_MAX:
            self._counts.flooding_frames += 1
            return
        for told in decode_activator_stats(frame).stats:
            stat = Stat(pod=self.name, at_s=at_s, concurrency=told.concurrency, request_count=told.request_count)
            self._record((told.namespace, told.revision), stat, Source.ACTIVATOR)


class _Connection(asyncio.Protocol):
    """One connection: a head, then frames."""

    __slots__ = ("_is_follower", "_protocol", "_rest", "_server", "_silent_looks", "_transport", "_unfollow", "sender")

    def __init__(self, server: StatsServer) -> None:
        self.sender: _Sender | None = None
        self._server = server
        self._protocol = ServerProtocol(max_size=_FRAME_BYTES_MAX, logger=_protocol_log)
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._silent_looks = 0
        self._is_follower = False
        self._unfollow: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connects."""
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended, one way or another."""
        del exc
        self._server.lost(self)
        if self._unfollow is not None:
            self._unfollow()

    def pause_writing(self) -> None:
        """A client that pings and reads no answer; answers to people may be long."""
        if self.sender is not None:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes of a head or of frames, cut anywhere."""
        self._silent_looks = 0
        if self._rest:
            data = self._rest + data
        if self.sender is None:
            head, end, data = data.partition(HEAD_END)
            if not end:
                self._rest = head
                if len(head) > _HEAD_BYTES_MAX:
                    self.abort()
                return
            self._take_head(head + end)
        self._take_frames(data)

    def was_heard(self) -> bool:
        """Whether something came since it was asked some times; before it may speak, since it was asked first."""
        self._silent_looks += 1
        return self._is_follower or self._silent_looks < (_SILENT_LOOKS_MAX if self.sender is not None else 2)

    def abort(self) -> None:
        """Cut it off."""
        if self._transport is not None:
            self._transport.abort()

    def follow(self, begin: Callable[[], Callable[[], None]]) -> None:
        """Get events from now on, after the head of the answer; ``begin`` gives what ends it."""

        def begun() -> None:
            if self._transport is not None and not self._transport.is_closing():
                self._unfollow = begin()

        self._is_follower = True
        asyncio.get_running_loop().call_soon(begun)

    def write(self, event: bytes) -> bool:
        """An event for a follower; one that does not read is cut off."""
        assert self._transport is not None
        self._transport.write(event)
        if self._transport.get_write_buffer_size() > _FOLLOWER_BYTES_MAX:
            self.abort()
        return not self._transport.is_closing()

    def end(self, code: CloseCode) -> None:
        """Say goodbye."""
        if self._is_follower:
            self.abort()
        self._protocol.fail(code)
        self._send()

    def _take_head(self, head: bytes) -> None:
        self._protocol.receive_data(head)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._protocol.send_response(self._server.answer(self._protocol, event, self))
        self._send()

    def _take_frames(self, data: bytes) -> None:
        """Whole frames; what is left waits for more."""
        sender, position = self.sender, 0
        if sender is None:
            return None
        while (found := cut(data, position)) is not None:
            if found.end - found.begin > _FRAME_BYTES_MAX:
                return self.end(CloseCode.MESSAGE_TOO_BIG)
            if found.end > len(data):
                break
            if found.is_plain:
                sender.take(apply_mask(data[found.begin : found.end], data[found.begin - MASK_BYTES : found.begin]))
            else:
                self._take_other(sender, data[position : found.end])
            position = found.end
        self._rest = data[position:]
        return None

    def _take_other(self, sender: _Sender, frame: bytes) -> None:
        """Anything but a whole binary message: control frames are the protocol's, text and pieces are no stats."""
        self._protocol.receive_data(frame)
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in {Opcode.TEXT, Opcode.BINARY, Opcode.CONT}:
                sender.malformed(InvalidValue(text=event.opcode.name, expected="a whole binary message"))
        self._send()

    def _send(self) -> None:
        """What the protocol has to say; nothing is the end."""
        assert self._transport is not None
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
            elif not self._is_follower:
                self._transport.close()
