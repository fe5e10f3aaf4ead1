"""Serves the autoscaler's stats websocket and its plain HTTP endpoints.

Pods connect to ``/stats?namespace=&revision=&pod=``, activators to ``/stats?activator=``. Each needs the bearer token
that is derived for exactly these names. A pod of a cluster may send a Kubernetes token instead, which the API server
reviews (``reviewer``). The connection identifies the sender, so a frame reports for its sender only. Invalid, late or
too frequent frames are counted and dropped. The connection stays open, so that an invalid frame loses only one second
of one pod. A pod's new connection replaces its old one.

``/announce`` announces the address of a ready pod to the activators (``announcements.py``). ``/credentials`` issues a
certificate and a caller token. Both need a pod that has proved its name. ``/healthz`` reports whether the cluster has
been listed. ``/metrics`` has all counts. ``/decisions?namespace=&revision=`` has the last decisions with their reasons;
``&follow`` streams them as events. ``/policies?namespace=&revision=`` has the savings of the adaptive policy, and with
``&curve`` the curves. The last three need the query token (``serving.net.metrics.queries``).
"""

import asyncio
import contextlib
import http
import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping

import msgspec
from websockets.datastructures import Headers
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from serving.autoscaler.announcements import AnnouncementPace, announcement_of
from serving.autoscaler.decision_events import DecisionBook, parse_target
from serving.autoscaler.io.connection import StatsConnection
from serving.autoscaler.io.pod_credentials import CredentialIssuer
from serving.autoscaler.io.senders import ActivatorSender, AutoscalerSender, PodSender, Record, Sender, ServerCounts
from serving.autoscaler.io.token_reviewer import TokenReviewer
from serving.autoscaler.peer_rules import ANNOUNCE_PATH, objection
from serving.autoscaler.token_review import PodClaim, claim_of
from serving.core.model.nodata import NoData
from serving.core.model.objects import Object
from serving.net.aio.clock import now_s
from serving.net.aio.periodic import next_beat
from serving.net.aio.supervise import TaskOwner, supervise
from serving.net.metrics.queries import REFUSED_HEADERS, QueryGate, is_own_host
from serving.net.wire.frames import AnnouncedPod, encode_frame
from serving.net.wire.tokens import activator_token, autoscaler_token, matches, pod_token, revision_token

# Listen backlog of a new socket: all pods reconnect at the same time after a restart.
_BACKLOG = 4096
# Seconds between checks for silent connections; clients ping every 20 s.
_CHECK_PERIOD_S = 15.0
_BEARER = "Bearer "
_UNSEEN = "this pod has not been seen yet; try again\n"
_NO_TOKEN = "a token for just this name is needed\n"  # noqa: S105 - a message
# An autoscaler sends a heartbeat every half second.
_RECEIVED_WITHIN_S = 2.5


class SharedStats(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stats server that shares revisions with other autoscalers.

    ``relayed`` receives stats relayed by another autoscaler. ``elsewhere`` returns the address of the autoscaler that
    answers a query, "" for this one. ``host_names`` are accepted in Host headers in addition to ``hosts``. ``reviewer``
    reviews tokens that are not derived from the key; None refuses these tokens. ``issuer`` issues the credentials of
    pods; if it has inner TLS, the port accepts TLS and plain HTTP. ``queries`` authorises queries; None refuses all.
    ``pod`` returns the last observed pod. ``announce`` relays announced pods to other autoscalers.
    """

    relayed: Record | None = None
    elsewhere: Callable[[Mapping[str, str]], str] = lambda _: ""
    host_names: Collection[str] = ()
    reviewer: TokenReviewer | None = None
    issuer: CredentialIssuer | None = None
    queries: QueryGate | None = None
    pod: Callable[[str, str], Object | None] = lambda _namespace, _name: None
    announce: Callable[[AnnouncedPod], None] = lambda _: None


class StatsServer:
    """Receives stats, calls ``record`` with each, and serves queries. ``page`` renders metrics for an Accept header."""

    def __init__(  # noqa: PLR0913 - what it connects
        self,
        *,
        key: bytes,
        record: Record,
        decisions: DecisionBook,
        page: Callable[[str], tuple[str, str]],
        is_well: Callable[[], bool],
        connections_max: int,
        sharing: SharedStats | None = None,
    ) -> None:
        self.counts = ServerCounts()
        self._record = record
        self._shared = sharing or SharedStats()
        self._pace = AnnouncementPace()
        self._key = key
        self._decisions = decisions
        self._page = page
        self._queries = self._shared.queries or QueryGate("")
        self._is_well = is_well
        self._connections_max = connections_max
        self.tasks = TaskOwner()
        self._all: set[StatsConnection] = set()
        self._senders: dict[tuple[str, ...], StatsConnection] = {}

    @property
    def numbers(self) -> dict[str, int]:
        """All counts by name, for metrics."""
        reviews = {} if self._shared.reviewer is None else self._shared.reviewer.numbers
        return self.counts.numbers | reviews | {"stats_connections_open": len(self._senders)}

    @property
    def autoscalers(self) -> list[str]:
        """Connected autoscalers with recent frames; a frozen one stays connected but silent."""
        since_s = now_s() - _RECEIVED_WITHIN_S
        senders = [sender.sender for sender in self._senders.values()]
        return [
            sender.name for sender in senders if isinstance(sender, AutoscalerSender) and sender.received_s >= since_s
        ]

    @contextlib.asynccontextmanager
    async def serve(self, where: socket.socket | tuple[str, int]) -> AsyncIterator[tuple[str, int]]:
        """Listen on a bound socket or an address while the context is open; yields the address."""
        loop = asyncio.get_running_loop()
        if isinstance(where, socket.socket):
            server = await loop.create_server(self._factory(), sock=where, backlog=_BACKLOG)
        else:
            server = await loop.create_server(self._factory(), *where, backlog=_BACKLOG)
        try:
            async with supervise() as tasks:
                tasks.keep_running(self._drop_silent, name="silent connections")
                yield server.sockets[0].getsockname()[:2]
        finally:
            server.close()
            for connection in list(self._all):
                connection.end(CloseCode.GOING_AWAY)
            await self.tasks.close()

    def _factory(self) -> Callable[[], asyncio.Protocol]:
        if self._shared.issuer is None or self._shared.issuer.secured is None:
            return lambda: StatsConnection(self)
        # Imported only with inner TLS, which spares other starts the import of the proxy.
        from serving.net.proxy.tls.connector import RefusalLog  # noqa: PLC0415 - as above
        from serving.net.proxy.tls.front import TlsFront  # noqa: PLC0415 - as above

        tls = self._shared.issuer.secured.tls
        # Pods request their first certificate here, and kubelets probe without TLS.
        tls.make_certificates_optional()
        refusals = RefusalLog(tls)
        return lambda: TlsFront(tls.server, lambda: StatsConnection(self), refusals=refusals)

    def end_followers(self) -> None:
        """Disconnect subscribers to decisions, which reconnect and are redirected."""
        for connection in list(self._all):
            if connection.is_follower:
                connection.abort()

    def opened(self, connection: StatsConnection) -> None:
        """Add an accepted connection."""
        self._all.add(connection)

    def lost(self, connection: StatsConnection) -> None:
        """Remove an ended connection."""
        self._all.discard(connection)
        sender = connection.sender
        if sender is not None and self._senders.get(sender.identity) is connection:
            del self._senders[sender.identity]

    def respond(self, protocol: ServerProtocol, request: Request, connection: StatsConnection) -> Response | None:
        """The response to a request head; None if it follows later. Authenticated peers may upgrade to a websocket."""
        path, names = parse_target(request.path)
        port = names.pop("port", "") if path == ANNOUNCE_PATH else ""
        secured = self._shared.issuer.secured if self._shared.issuer is not None else None
        if secured is not None:
            refusal = objection(path, names, connection.peer, is_strict=secured.settings.is_strict)
            if refusal is not None:
                self.counts.unauthorized_connections += 1
                return protocol.reject(http.HTTPStatus.FORBIDDEN, f"{refusal}\n")
        responders: dict[str, Callable[[Sender | None], Response]] = {
            "/stats": lambda sender: self._connect_sender(protocol, request, connection, sender=sender),
            "/credentials": lambda sender: self._issue(protocol, connection, sender),
            ANNOUNCE_PATH: lambda sender: self._receive_announcement(protocol, connection, sender, port=port),
        }
        if path in responders:
            return self._authorize(request, connection, responders[path], names=names)
        match path:
            case "/healthz":
                status = http.HTTPStatus.OK if self._is_well() else http.HTTPStatus.SERVICE_UNAVAILABLE
                return protocol.reject(status, "ok\n" if status == http.HTTPStatus.OK else "not synced yet\n")
            case "/metrics" | "/decisions" | "/policies":
                return self._query_response(protocol, request, connection, path=path)
        return protocol.reject(
            http.HTTPStatus.NOT_FOUND, "there are /stats, /healthz, /metrics, /decisions and /policies\n"
        )

    def _query_response(
        self, protocol: ServerProtocol, request: Request, connection: StatsConnection, *, path: str
    ) -> Response:
        if refusal := self._query_refusal(protocol, request):
            return refusal
        if path == "/metrics":
            return _typed(protocol, *self._page(",".join(request.headers.get_all("Accept"))))
        _, names = parse_target(request.path)
        if address := self._shared.elsewhere(names):
            response = protocol.reject(http.HTTPStatus.TEMPORARY_REDIRECT, f"ask {address}\n")
            scheme = "https" if connection.peer.is_tls else "http"
            response.headers["Location"] = f"{scheme}://{address}{request.path}"
            return response
        if path == "/policies":
            return _typed(protocol, self._decisions.policies.encoded(names, now_s=now_s()).decode(), "application/json")
        if "follow" not in names:
            return _typed(protocol, self._decisions.encoded(names).decode(), "application/json")
        connection.start_stream(lambda: self._decisions.subscribe(names, connection.write))
        return Response(http.HTTPStatus.OK, "OK", Headers({"Content-Type": "text/event-stream"}))

    def _query_refusal(self, protocol: ServerProtocol, request: Request) -> Response | None:
        """The refusal of a query without the token, or with a foreign Host header (DNS rebinding); None if allowed."""
        if not all(is_own_host(host, self._shared.host_names) for host in request.headers.get_all("Host")):
            return protocol.reject(http.HTTPStatus.MISDIRECTED_REQUEST, "not a known host name: see host-names\n")
        objection = self._queries.objection(request.headers.get_all("Authorization"))
        if not objection:
            return None
        response = protocol.reject(http.HTTPStatus.UNAUTHORIZED, objection)
        response.headers.update(REFUSED_HEADERS)
        return response

    def _authorize(
        self,
        request: Request,
        connection: StatsConnection,
        respond: Callable[[Sender | None], Response],
        *,
        names: dict[str, str],
    ) -> Response | None:
        """The response to a sender, authenticated or rejected; None if its token must be reviewed first."""
        sender, claim, token = self._sender(names, request), claim_of(names), _token_of(request)
        if sender is not None or claim is None or token is None or self._shared.reviewer is None:
            return respond(sender)

        def judged(is_proved: bool) -> Response:  # noqa: FBT001 - what a judge says
            return respond(self._pod_sender(claim) if is_proved else None)

        is_proved = self._shared.reviewer.judged(claim, token)
        if is_proved is not None:
            return judged(is_proved)
        connection.judge(self._shared.reviewer.judge(claim, token), judged)
        return None

    def _issue(self, protocol: ServerProtocol, connection: StatsConnection, sender: Sender | None) -> Response:
        if not isinstance(sender, PodSender) or self._shared.issuer is None:
            self.counts.unauthorized_connections += 1
            return protocol.reject(http.HTTPStatus.UNAUTHORIZED, _NO_TOKEN)
        namespace, revision, pod = sender.identity
        claim = PodClaim(namespace=namespace, revision=revision, pod=pod)
        credentials = self._shared.issuer.issue(
            claim, is_tls=connection.peer.is_tls, query_digest=self._queries.digest()
        )
        if credentials is None:
            return protocol.reject(http.HTTPStatus.SERVICE_UNAVAILABLE, _UNSEEN)
        return _typed(protocol, credentials, "application/json")

    def _receive_announcement(
        self, protocol: ServerProtocol, connection: StatsConnection, sender: Sender | None, *, port: str
    ) -> Response:
        if not isinstance(sender, PodSender):
            self.counts.unauthorized_connections += 1
            return protocol.reject(http.HTTPStatus.UNAUTHORIZED, _NO_TOKEN)
        namespace, revision, pod = sender.identity
        seen = self._shared.pod(namespace, pod)
        if seen is None:
            return protocol.reject(http.HTTPStatus.SERVICE_UNAVAILABLE, _UNSEEN)
        claim = PodClaim(namespace=namespace, revision=revision, pod=pod)
        address = announcement_of(claim, seen, host=connection.peer.host, port=port)
        if isinstance(address, NoData):
            self.counts.refused_announcements += 1
            return protocol.reject(http.HTTPStatus.FORBIDDEN, f"this needs {address.missing}\n")
        if self._pace.is_due((namespace, pod), now_s()):
            self.counts.announced_pods += 1
            self.announce(AnnouncedPod(namespace=namespace, revision=revision, pod=pod, address=address))
        return protocol.reject(http.HTTPStatus.OK, "announced\n")

    def announce(self, announced: AnnouncedPod) -> None:
        """Send an announced pod to all activators, also to those of other autoscalers."""
        self.notify_activators(announced)
        self._shared.announce(announced)

    def notify_activators(self, announced: AnnouncedPod) -> None:
        """Send an announced pod to all activators connected here."""
        frame = encode_frame(announced)
        for connection in self._senders.values():
            if isinstance(connection.sender, ActivatorSender):
                connection.send(frame)

    def _connect_sender(
        self, protocol: ServerProtocol, request: Request, connection: StatsConnection, *, sender: Sender | None
    ) -> Response:
        if sender is None:
            self.counts.unauthorized_connections += 1
            return protocol.reject(http.HTTPStatus.UNAUTHORIZED, _NO_TOKEN)
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

    def _sender(self, names: dict[str, str], request: Request) -> "Sender | None":
        """The authenticated sender; None if its token does not match."""
        token = _token_of(request)
        if token is None or any(not name or "/" in name for name in names.values()):
            return None
        if names.keys() == {"activator"}:
            expected = [activator_token(self._key, name=names["activator"])]
            sender: Sender = ActivatorSender(self.counts, self._record, name=names["activator"])
        elif names.keys() == {"autoscaler"}:
            expected = [autoscaler_token(self._key, name=names["autoscaler"])]
            name = names["autoscaler"]
            relayed = self._shared.relayed or self._record
            sender = AutoscalerSender(self.counts, relayed, name=name, announce=self.notify_activators)
        elif names.keys() == {"namespace", "revision", "pod"}:
            revision = {"namespace": names["namespace"], "revision": names["revision"]}
            expected = [pod_token(self._key, **revision, pod=names["pod"]), revision_token(self._key, **revision)]
            sender = self._pod_sender(PodClaim(**names))
        else:
            return None
        return sender if any(matches(token, expected_token) for expected_token in expected) else None

    def _pod_sender(self, claim: PodClaim) -> Sender:
        return PodSender(self.counts, self._record, revision=(claim.namespace, claim.revision), pod=claim.pod)

    async def _drop_silent(self) -> None:
        while True:
            await next_beat(_CHECK_PERIOD_S)
            for connection in list(self._all):
                if not connection.was_active():
                    self.counts.silent_connections += 1
                    connection.abort()


def _token_of(request: Request) -> str | None:
    authorizations = request.headers.get_all("Authorization")
    return authorizations[0].removeprefix(_BEARER) if len(authorizations) == 1 else None


def _typed(protocol: ServerProtocol, text: str, content_type: str) -> Response:
    response = protocol.reject(http.HTTPStatus.OK, text)
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = content_type
    return response
