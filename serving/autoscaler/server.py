"""The websocket server that takes stats from pods and activators, and what a person may ask of the autoscaler.

``/stats?namespace=&revision=&pod=`` is a pod's, ``/stats?activator=`` an activator's; each needs the bearer token that is
derived for exactly that name. A frame that does not decode is counted and dropped; the connection stays, so that one bad
frame costs one second of one pod. ``/healthz`` says that the server is up, ``/metrics`` the counts, ``/decisions`` why.
"""

import functools
import http
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from urllib.parse import parse_qs, urlsplit

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from serving.aio.clock import now_s
from serving.model.errors import InvalidValue
from serving.model.stat import Stat
from serving.wire.frames import decode_activator_stats, decode_pod_stat
from serving.wire.tokens import activator_token, matches, pod_token

__all__ = ["Counts", "StatsServer"]

_log = logging.getLogger("autoscaler")

# An activator tells 2,000 revisions in a frame, some 200 bytes each; a pod's frame is below 200 bytes.
_FRAME_BYTES_MAX = 1 << 20
# A peer that says nothing has this long until it is cut off.
_HANDSHAKE_S = 5.0
_BEARER = "Bearer "

RevisionKey = tuple[str, str]
"""Namespace and name of a revision."""

Take = Callable[[RevisionKey, Stat, bool], None]
"""Called with each stat that passed, and whether a pod sent it."""


class Counts(msgspec.Struct, kw_only=True):
    """What became of connections and frames since the start."""

    frames: int = 0
    malformed: int = 0
    refused: int = 0
    connections: int = 0


class _Sender(msgspec.Struct, frozen=True, kw_only=True):
    """Who a connection speaks for, as its token proves: a pod of a revision, or an activator."""

    name: str
    revision: RevisionKey | None


class StatsServer:
    """Takes stats and hands each to ``take``; answers ``/decisions`` with what ``explain`` gives."""

    def __init__(self, *, key: bytes, take: Take, explain: Callable[[RevisionKey], bytes]) -> None:
        self.counts = Counts()
        self._key = key
        self._take = take
        self._explain = explain

    def serve(self, where: socket.socket | tuple[str, int]) -> AbstractAsyncContextManager[Server]:
        """Listen on a bound socket or an address; the context manager closes it."""
        start = functools.partial(
            serve,
            self._listen_to,
            process_request=self._process_request,
            max_size=_FRAME_BYTES_MAX,
            compression=None,
            open_timeout=_HANDSHAKE_S,
        )
        return start(sock=where) if isinstance(where, socket.socket) else start(*where)

    def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        url = urlsplit(request.path)
        names = {name: values[0] for name, values in parse_qs(url.query).items()}
        match url.path:
            case "/healthz":
                return connection.respond(http.HTTPStatus.OK, "ok\n")
            case "/metrics":
                return connection.respond(http.HTTPStatus.OK, self._metrics())
            case "/decisions":
                found = self._explain((names.get("namespace", "default"), names.get("revision", "")))
                response = connection.respond(http.HTTPStatus.OK, found.decode())
                del response.headers["Content-Type"]
                response.headers["Content-Type"] = "application/json"
                return response
            case "/stats":
                if self._sender(names, request.headers.get("Authorization", "")):
                    return None
                self.counts.refused += 1
                return connection.respond(http.HTTPStatus.UNAUTHORIZED, "a token for just this name is needed\n")
        return connection.respond(http.HTTPStatus.NOT_FOUND, "there are /stats, /healthz, /metrics and /decisions\n")

    def _sender(self, names: dict[str, str], authorization: str) -> _Sender | None:
        given = authorization.removeprefix(_BEARER)
        try:
            if activator := names.get("activator"):
                is_right = matches(given, activator_token(self._key, name=activator))
                return _Sender(name=activator, revision=None) if is_right else None
            namespace, revision, pod = (names[name] for name in ("namespace", "revision", "pod"))
            is_right = matches(given, pod_token(self._key, namespace=namespace, revision=revision, pod=pod))
        except (KeyError, AssertionError):
            # A name is missing, or is none of Kubernetes.
            return None
        return _Sender(name=pod, revision=(namespace, revision)) if is_right else None

    async def _listen_to(self, connection: ServerConnection) -> None:
        request = connection.request
        assert request is not None, "the handshake is over"
        names = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        sender = self._sender(names, request.headers.get("Authorization", ""))
        assert sender is not None, "checked in the handshake"
        self.counts.connections += 1
        try:
            async for frame in connection:
                self._take_frame(sender, frame)
        except ConnectionClosed:
            _log.debug("stats.closed", extra={"sender": sender.name})

    def _take_frame(self, sender: _Sender, frame: str | bytes) -> None:
        self.counts.frames += 1
        try:
            # A text message is no frame of ours: its bytes do not decode.
            frame = frame.encode() if isinstance(frame, str) else frame
            if sender.revision is None:
                for one in decode_activator_stats(frame).stats:
                    stat = Stat(
                        pod=sender.name, at_s=now_s(), concurrency=one.concurrency, request_count=one.request_count
                    )
                    self._take((one.namespace, one.revision), stat, False)
                return
            pod = decode_pod_stat(frame)
            stat = Stat(
                pod=sender.name,
                at_s=now_s(),
                concurrency=pod.concurrency,
                request_count=pod.request_count,
                proxied_concurrency=pod.proxied_concurrency,
                proxied_request_count=pod.proxied_request_count,
            )
            self._take(sender.revision, stat, True)
        except InvalidValue as error:
            self.counts.malformed += 1
            if self.counts.malformed == 1:
                _log.warning("stats.malformed", extra={"sender": sender.name, "error": str(error)})

    def _metrics(self) -> str:
        return "".join(
            f"serving_autoscaler_stat_{name}_total {value}\n"
            for name, value in msgspec.structs.asdict(self.counts).items()
        )
