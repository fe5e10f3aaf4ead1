"""Serves the store as a Kubernetes API over HTTP: ``application`` wraps any ``port.Cluster``.

kubectl (tried from 1.20 to 1.33) and the kube adapter work with it. Missing features answer 501 with a clear text.
Checks run in this order: Host, token, role, path, method. Store errors become ``Status`` objects, unexpected ones 500
without details. Each request is in the audit log.
"""

import contextlib
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec
from aiohttp import web
from multidict import MultiDict, MultiMapping

from serving import __version__
from serving.controller.io.plan_writer import UnreadWrites
from serving.core.model.errors import ClusterError, Forbidden, NotFound, Unsupported
from serving.core.model.grants import Grant, Role
from serving.core.model.objects import Object, name_of, nested
from serving.home.admission.podsecurity import PodSecurity
from serving.home.apiserver import discovery, writing
from serving.home.apiserver.accesstokens import Authenticator
from serving.home.apiserver.audit import AuditLog
from serving.home.apiserver.content import (
    JSON_TYPE,
    Shape,
    decode_body,
    json_response,
    shaped_list,
    shaped_object,
    wanted,
    whole_list,
)
from serving.home.apiserver.discovery import discovery_response
from serving.home.apiserver.guard import HEALTH_PATHS, STREAMED, ApiGuard, LargeBodies, current_request, path_of
from serving.home.apiserver.logoptions import KEPT_LOGS_PATH, LogOptions, PodLogs, log_options, stored_log_options
from serving.home.apiserver.podstreams import PodStreams, begun, exec_options
from serving.home.apiserver.portforward import forward_ports
from serving.home.apiserver.remotecommand import stream_session
from serving.home.apiserver.requests import (
    Fault,
    RequestTarget,
    check_list_version,
    field_manager,
    is_set,
    refusal,
    refusal_code,
    target_of,
)
from serving.home.apiserver.reviews import LOOPBACK_HOSTS, TOKEN_REVIEW_PATH, TokenReviews
from serving.home.apiserver.roles import (
    access_review,
    rules_review,
    self_review,
)
from serving.home.apiserver.unreadevents import UnreadEvents
from serving.home.apiserver.watching import stream_watch, watch_options
from serving.home.apiserver.writing import evict
from serving.home.controllers.revisionviews import VIEW_KINDS, RevisionViews
from serving.home.state import BACKUP_PATH
from serving.home.store.memory import EncodedListing, MemoryCluster
from serving.home.store.requester import acting_as, managed_by
from serving.net.aio.cooperative import computed
from serving.net.cluster.identity import is_daemon
from serving.net.cluster.kinds import DEPLOYMENT, EVENT, POD, REVISION, UNUSED_KINDS
from serving.net.cluster.kubeclient import SERVER_NAME, TOGETHER_PATH, WriteResult
from serving.net.cluster.port import Subresource

_log = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_UNKNOWN = "the server could not find the requested resource"
# Subresources of a real server that are missing here.
_UNSERVED = {
    *("approval", "binding", "ephemeralcontainers", "finalize", "proxy", "resize", "token"),
}
_LIMIT_LENGTH_MAX = 18
_FAILED = 400
# Longer lists are sent object by object.
_PIECE_BYTES_MAX = 2**20
_OF_PODS = ("eviction", "log", *STREAMED)
_SELF_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubject"
# The Kubernetes version of this API, which clients print and select features by.
_VERSION = {
    "major": "1",
    "minor": "32",
    "gitVersion": f"v1.32.0+serving-{__version__}",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}


class _WritePart(msgspec.Struct, frozen=True, kw_only=True):
    """A ``WriteCall`` with its body as it was sent."""

    method: Literal["POST", "PUT", "PATCH"]
    path: str
    query: dict[str, str] = {}
    body: msgspec.Raw
    content_type: str = JSON_TYPE


class ApiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the API server: authentication, limits, and the optional parts that it serves.

    ``token`` is the bearer token with all rights, and ``hosts`` are the allowed names in a Host header.
    ``runs_images``: a container runtime exists. ``bookmark_period_s`` is the time between bookmarks of a watch.
    ``pod_security`` is used for warnings. ``views`` derives the PodAutoscalers and ServerlessServices of revisions.
    ``audit`` is the audit log.
    """

    token: str
    """The bearer token of the state folder. It grants everything, including the right to run code on this machine."""

    hosts: frozenset[str] = LOOPBACK_HOSTS
    """Names that a Host header may have, without port."""

    body_bytes_max: int = 3 * 2**20
    """Largest body of a request, in bytes. Default: kube-apiserver, 3 MiB."""

    pod_security: PodSecurity | None = None
    """The Pod Security Standards for warnings."""

    token_reviews: TokenReviews = TokenReviews()
    """Serves TokenReviews. Default: no token is valid."""

    runs_images: bool = True
    """Whether a container runtime exists. Without one, containers without a command cause warnings."""

    bookmark_period_s: float = math.inf
    """Period of bookmarks for watches that allow them, in seconds; a kube-apiserver's is a minute. Default: none,
    because here they carry no new version.
    """

    views: RevisionViews | None = None
    """The views of revisions, which are derived before a request reads them. Default: views are read as they are
    stored.
    """

    audit: AuditLog | None = None
    """Receives each request, for the audit log. Default: no audit log."""


def application(
    cluster: MemoryCluster, options: ApiOptions, *, logs: PodLogs | None = None, streams: PodStreams | None = None
) -> web.Application:
    """Build the application; the caller binds the socket. At its shutdown, its watches end."""
    guard = ApiGuard(Authenticator(cluster, options.token), options.audit, hosts=options.hosts)
    api = _ApiHandlers(cluster, options, guard, logs=logs, pods=streams)
    app = web.Application(middlewares=[guard.middleware], client_max_size=options.body_bytes_max)
    for path in HEALTH_PATHS:
        app.router.add_get(path, api.health)
    app.router.add_get("/version", api.version)
    app.router.add_get("/openapi/v2", api.openapi_v2)
    app.router.add_get("/openapi/v3", api.openapi_v3)
    app.router.add_get("/openapi/v3/{place:.+}", api.openapi_v3)
    app.router.add_post(f"{_SELF_REVIEWS}accessreviews", api.review)
    app.router.add_post(f"{_SELF_REVIEWS}rulesreviews", api.review_rules)
    app.router.add_post("/apis/authentication.k8s.io/v1/selfsubjectreviews", api.review_self)
    app.router.add_post(TOKEN_REVIEW_PATH, api.review_token)
    app.router.add_get(KEPT_LOGS_PATH.format(namespace="{namespace:[a-z0-9-]+}"), api.kept_logs)
    app.router.add_post(BACKUP_PATH, functools.partial(_copy_journal, cluster))
    app.router.add_post(TOGETHER_PATH, api.write_together)
    app.router.add_route("*", "/{path:.*}", api.resource)
    app.on_shutdown.append(guard.end_streams)
    app.on_response_prepare.append(guard.log_stream)
    app.on_response_prepare.append(_set_headers)
    return app


async def _set_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Forbid caching of responses that need a token, as kube-apiserver does, and name this server."""
    response.headers["Cache-Control"] = "no-cache, private"
    response.headers["Server"] = SERVER_NAME


async def _copy_journal(cluster: MemoryCluster, _: web.Request) -> web.Response:
    """The journal as one SQLite file, for ``serving backup``."""
    return web.Response(body=await cluster.journal_copy(), content_type="application/vnd.sqlite3")


class _ApiHandlers:
    def __init__(
        self,
        cluster: MemoryCluster,
        options: ApiOptions,
        guard: ApiGuard,
        *,
        logs: PodLogs | None,
        pods: PodStreams | None,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._logs = logs
        self._pods = pods
        self._guard = guard
        self._events = UnreadEvents(cluster)
        self._large_bodies = LargeBodies()
        self._large_lists = LargeBodies()

    async def health(self, _: web.Request) -> web.Response:
        """Serve ``/healthz``, ``/livez`` and ``/readyz``. A response shows that the event loop runs."""
        return web.Response(text="ok")

    async def version(self, _: web.Request) -> web.Response:
        """Serve ``/version``."""
        return json_response(_VERSION)

    async def openapi_v2(self, request: web.Request) -> web.Response:
        """Serve ``/openapi/v2``, as protobuf for old kubectl versions."""
        accept = request.headers.get("Accept", "")
        if discovery.PROTOBUF_ACCEPT in accept or discovery.PROTOBUF_TYPE in accept:
            return web.Response(body=discovery.openapi_v2_protobuf(), headers={"Content-Type": discovery.PROTOBUF_TYPE})
        return json_response(discovery.openapi_v2())

    async def openapi_v3(self, request: web.Request) -> web.Response:
        """Serve ``/openapi/v3`` and the documents below it."""
        place = request.match_info.get("place", "")
        document = discovery.openapi_v3(place) if place else discovery.openapi_v3_index()
        if document is None:
            raise NotFound(_UNKNOWN)
        return json_response(document)

    async def review(self, request: web.Request) -> web.Response:
        """Serve the SelfSubjectAccessReview of ``kubectl auth can-i``."""
        return await self._reviewed(request, access_review)

    async def review_rules(self, request: web.Request) -> web.Response:
        """Serve the SelfSubjectRulesReview of ``kubectl auth can-i --list``."""
        return await self._reviewed(request, rules_review)

    async def review_self(self, _: web.Request) -> web.Response:
        """Serve the SelfSubjectReview of ``kubectl auth whoami``."""
        return json_response(self_review(current_request().user), status=201)

    async def _reviewed(self, request: web.Request, review: Callable[[Grant, object], Object]) -> web.Response:
        body = await self._decoded_body(request)
        try:
            return json_response(review(current_request().user, body), status=201)
        except ValueError as error:
            raise Fault(400, f"the review cannot be read: {error}") from error

    async def review_token(self, request: web.Request) -> web.Response:
        """Serve a TokenReview."""
        body = await self._decoded_body(request)
        return json_response(self._options.token_reviews.review(body, self._guard.grant_of), status=201)

    async def _decoded_body(self, request: web.Request) -> Any:  # noqa: ANN401 - whatever was sent
        data = await request.read()
        async with self._large_bodies.turn(len(data)):
            return await computed(decode_body, data, request.headers.get("Content-Type", ""))

    async def resource(self, request: web.Request) -> web.StreamResponse:
        """Serve all paths below ``/api`` and ``/apis``."""
        raw_path = path_of(request)
        if request.method == "GET":
            response = discovery_response(raw_path, request.headers.get("Accept", ""))
            if response is not None:
                return response
        target = target_of(raw_path)
        if target.subresource:
            _check_subresource(target)
        if target.subresource == "log":
            return await self._log(target, request)
        if target.subresource in STREAMED:
            return await self._interact(target, request)
        if target.subresource == "eviction" and request.method != "POST":
            raise Fault(405, "an eviction needs POST")
        match request.method:
            case "GET" | "HEAD":
                return await self._read(target, request)
            case "POST" | "PUT" | "PATCH" | "DELETE":
                return await self._write(target, request)
            case _:
                raise Fault(405, "the server does not allow this method on the requested resource")

    async def _read(self, target: RequestTarget, request: web.Request) -> web.StreamResponse:
        query = request.query
        shape = wanted(request.headers.get("Accept", ""))
        include = query.get("includeObject", "Metadata")
        unread = self._unread(target, request)
        if unread is not None:
            # The system writes what was not read, not the client that reads it.
            with acting_as(""):
                await unread.refresh(target.namespace, target.name)
        if is_set(query, "watch") and not target.subresource:
            if request.method == "HEAD":
                raise Fault(405, "a watch needs GET")
            period_s = self._options.bookmark_period_s
            options = watch_options(target, query, shape, bookmark_period_s=period_s)
            watched = contextlib.nullcontext() if unread is None else unread.watched()
            with watched:
                async with self._guard.stream(request):
                    return await stream_watch(self._cluster, request, options)
        if shape.shape is Shape.WHOLE and target.subresource != "scale":
            return await self._read_encoded(target, request)
        if target.name:
            subresource: Subresource | None = "scale" if target.subresource == "scale" else None
            whole = await self._cluster.get(target.kind, target.one_namespace, target.name, subresource=subresource)
            return json_response(shaped_object(target.kind, whole, wanted=shape, include=include))
        listing = self._listed(target, query)
        async with self._large_lists.turn(sum(map(len, listing.items))):
            body = await computed(shaped_list, target.kind, listing, wanted=shape, include=include)
        return web.Response(body=body, content_type=JSON_TYPE)

    def _unread(self, target: RequestTarget, request: web.Request) -> RevisionViews | UnreadWrites | None:
        """What is written only before a client reads it, of a target; None if nothing is."""
        if target.kind == EVENT:
            return self._events
        views = self._options.views
        if views is None or target.kind in VIEW_KINDS:
            return views
        # Daemons do not use the delayed statuses.
        is_client = not is_daemon(request.headers.get("User-Agent", ""))
        return views.statuses if target.kind in (DEPLOYMENT, REVISION) and is_client else None

    def _listed(self, target: RequestTarget, query: Mapping[str, str]) -> EncodedListing:
        page = query.get("continue", "")
        listing = self._cluster.list_encoded(target.selection(query), page_size=_page_size(query), page=page)
        if not page:
            check_list_version(query, listing.resource_version)
        return listing

    async def _read_encoded(self, target: RequestTarget, request: web.Request) -> web.StreamResponse:
        """Serve stored JSON without decoding it, if the request allows it."""
        if target.name:
            data = await self._cluster.get_encoded(target.kind, target.one_namespace, target.name)
            return web.Response(body=data, content_type=JSON_TYPE)
        pieces = whole_list(target.kind, self._listed(target, request.query))
        byte_count = sum(map(len, pieces))
        if byte_count < _PIECE_BYTES_MAX or request.method == "HEAD":
            return web.Response(body=b"".join(pieces), content_type=JSON_TYPE)
        response = web.StreamResponse(headers={"Content-Type": JSON_TYPE, "Content-Length": str(byte_count)})
        # The event loop continues, and memory holds the store's bytes, while the client reads.
        with contextlib.suppress(ConnectionResetError):
            await response.prepare(request)
            for piece in pieces:
                await response.write(piece)
            await response.write_eof()
        return response

    async def write_together(self, request: web.Request) -> web.Response:
        """Execute several writes in order until one fails, for the daemons of this machine."""
        data = await request.read()
        try:
            parts = msgspec.json.decode(data, type=list[_WritePart])
        except msgspec.MsgspecError as error:
            raise Fault(400, f"the writes cannot be read: {error}") from error
        # A path that is not served is rejected before the first write.
        targets = [target_of(part.path) for part in parts]
        for target in targets:
            if target.subresource:
                _check_subresource(target)
        results: list[WriteResult] = []
        agent = request.headers.get("User-Agent", "")
        for part, target in zip(parts, targets, strict=True):
            with self._guard.part(part.method, target, part.path) as audited:
                try:
                    # The response has no warnings. A part that asks for validation keeps it.
                    query = MultiDict({"fieldValidation": "Ignore"} | part.query)
                    sent = self._sent(query, part.content_type, bytes(part.body))
                    with managed_by(field_manager(part.query, agent)):
                        written = await self._written(target, part.method, sent, agent=agent)
                    results.append(WriteResult(status=written.status, body=written.object))
                except (ClusterError, Fault) as error:
                    results.append(WriteResult(status=refusal_code(error), body=refusal(error)))
                audited.code = results[-1].status
            if audited.code >= _FAILED:
                break
        return json_response({"results": results})

    def _sent(self, query: MultiMapping[str], content_type: str, data: bytes) -> writing.Sent:
        return writing.Sent(query, content_type, data, self._options.runs_images, self._options.pod_security)

    async def _written(self, target: RequestTarget, method: str, sent: writing.Sent, *, agent: str) -> writing.Written:
        if target.kind in UNUSED_KINDS:
            raise Fault(405, f"{target.kind.resource} are not supported here; services, Deployments and pods are")
        if target.kind.is_view:
            raise Fault(405, f"{target.kind.resource} is read-only: the controller derives it from revisions")
        if target.kind == EVENT and (recorded := await self._recorded_event(target, method, sent, agent=agent)):
            return recorded
        return await self._executed(target, method, sent)

    async def _recorded_event(
        self, target: RequestTarget, method: str, sent: writing.Sent, *, agent: str
    ) -> writing.Written | None:
        """Delay the write of a daemon's Event; for another write, return None after all delayed Events are written."""
        if method in ("POST", "PUT") and is_daemon(agent):
            recorded = await writing.record_event(self._cluster, target, sent, events=self._events)
            if recorded is not None:
                return recorded
        with acting_as(""):
            await self._events.refresh()
        return None

    async def _executed(self, target: RequestTarget, method: str, sent: writing.Sent) -> writing.Written:
        stored = self._cluster.table(target.kind).objects.get((target.one_namespace, target.name))
        async with self._large_bodies.turn(len(sent.data) + (len(stored.encoded) if stored else 0)):
            match method, bool(target.name):
                case "POST", True if target.subresource == "eviction":
                    return await evict(self._cluster, target, sent)
                case "POST", _:
                    return await writing.create(self._cluster, target, sent)
                case "PUT", _:
                    return await writing.replace(self._cluster, target, sent)
                case "PATCH", _:
                    return await writing.patch(self._cluster, target, sent)
                case _, True:
                    return await writing.delete(self._cluster, target, sent)
                case _:
                    return await writing.delete_collection(self._cluster, target, sent)

    async def _write(self, target: RequestTarget, request: web.Request) -> web.Response:
        sent = self._sent(request.query, request.headers.get("Content-Type", ""), await request.read())
        agent = request.headers.get("User-Agent", "")
        written = await self._written(target, request.method, sent, agent=agent)
        audited = current_request()
        if audited.access is not None and not target.name and request.method == "POST":
            audited.access = msgspec.structs.replace(audited.access, name=name_of(written.object))
        shape = wanted(request.headers.get("Accept", ""))
        include = request.query.get("includeObject", "Metadata")
        body = shaped_object(target.kind, written.object, wanted=shape, include=include)
        return json_response(body, status=written.status, warnings=written.warnings)

    async def _log(self, target: RequestTarget, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            raise Fault(405, "logs are read-only")
        options = await self._log_options(target, request.query)
        if self._logs is None:
            raise Unsupported("this server stores no logs")
        pieces = self._logs.read(target.one_namespace, target.name, options)
        # Read the first piece before sending the head, so that a missing log is a 404. A follower of a silent
        # container gets its head immediately.
        async with self._guard.stream(request), contextlib.aclosing(pieces):  # type: ignore[type-var]
            response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
            first = None if options.follow else await anext(pieces, b"")
            with contextlib.suppress(ConnectionResetError):
                await response.prepare(request)
                if first:
                    await response.write(first)
                async for piece in pieces:
                    await response.write(piece)
                await response.write_eof()
        return response

    async def _log_options(self, target: RequestTarget, query: Mapping[str, str]) -> LogOptions:
        try:
            return log_options(await self._cluster.get(POD, target.one_namespace, target.name), query)
        except NotFound:
            logs = [] if self._logs is None else self._logs.stored(target.one_namespace)
            for log in logs:
                if log.pod == target.name:
                    return stored_log_options(log, query)
            raise

    async def kept_logs(self, request: web.Request) -> web.Response:
        """Serve the list of a namespace's pods that have logs, including deleted pods."""
        logs = [] if self._logs is None else self._logs.stored(request.match_info["namespace"])
        return web.Response(body=msgspec.json.encode(logs), content_type="application/json")

    async def _interact(self, target: RequestTarget, request: web.Request) -> web.StreamResponse:
        pods, place = self._pods, (target.one_namespace, target.name)
        pod = await self._cluster.get(POD, *place)
        if pods is None:
            raise Unsupported(f"pods/{target.subresource}: this server runs no pods")
        async with self._guard.stream(request):
            if target.subresource == "portforward":
                return await forward_ports(request, functools.partial(pods.connect, *place))
            options = exec_options(pod, request.query, subresource=target.subresource)
            _check_may_enter(current_request().user, pod, options.container)
            start = pods.execute if target.subresource == "exec" else pods.attach
            begin = functools.partial(start, *place, options)
            return await stream_session(request, functools.partial(begun, pod, begin, options.container))


def _check_may_enter(user: Grant, pod: Object, container: str) -> None:
    """Raise ``Forbidden`` if a container is a host process and the user may not run programs."""
    statuses = nested(pod, "status", "containerStatuses") or ()
    is_image = any(status.get("name") == container and status.get("imageID") for status in statuses)
    if user.role is not Role.ADMIN and not is_image:
        raise Forbidden(
            f'pods "{name_of(pod)}" is forbidden: User "{user.user}" cannot enter a process of the machine; '
            "the role admin can, and containers of images need no such right"
        )


def _check_subresource(target: RequestTarget) -> None:
    kind = target.kind
    served = {"status": kind.has_status, "scale": kind.has_scale, **dict.fromkeys(_OF_PODS, kind == POD)}
    if target.subresource in _UNSERVED:
        raise Unsupported(f"{kind.plural}/{target.subresource} is not served here")
    if not served.get(target.subresource, False):
        raise NotFound(_UNKNOWN)


def _page_size(query: Mapping[str, str]) -> int:
    text = query.get("limit", "")
    if text and (not text.isdecimal() or len(text) > _LIMIT_LENGTH_MAX):
        raise Fault(400, f"limit: {text[:_LIMIT_LENGTH_MAX]!r} is not a whole number of 64 bits")
    return int(text or 0)
