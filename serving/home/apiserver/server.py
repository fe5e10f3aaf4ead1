"""The store as a Kubernetes API over HTTP: ``application`` builds an aiohttp application from any ``port.Cluster``.

kubectl (tried from 1.20 to 1.33) and the kube adapter work with it. Missing features answer 501 with a clear text. Checks
run in this order: Host, token, path, method. Store errors become ``Status`` objects, unexpected ones 500 without details.
"""

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from serving import __version__
from serving.cluster.kinds import POD, UNUSED_KINDS
from serving.cluster.port import Subresource
from serving.home.apiserver import discovery, writing
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
from serving.home.apiserver.logoptions import KEPT_LOGS_PATH, LogOptions, PodLogs, kept_log_options, log_options
from serving.home.apiserver.podstreams import PodStreams, begun, exec_options
from serving.home.apiserver.portforward import forward_ports
from serving.home.apiserver.remotecommand import stream_session
from serving.home.apiserver.requests import (
    Fault,
    RequestTarget,
    field_manager,
    is_set,
    refusal,
    refusal_code,
    target_of,
)
from serving.home.apiserver.reviews import (
    LOOPBACK_HOSTS,
    RULES_REVIEW_PATH,
    SELF_REVIEW_PATH,
    TOKEN_REVIEW_PATH,
    TokenReviews,
    check_host,
    check_token,
    rules_review,
    self_review,
)
from serving.home.apiserver.watching import stream_watch, watch_options
from serving.home.apiserver.writing import evict
from serving.home.backup import BACKUP_PATH
from serving.home.store.memory import MemoryCluster
from serving.home.store.requester import ADMIN_USER, acting_as
from serving.model.errors import ClusterError, NotFound, Unsupported

_log = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_UNKNOWN = "the server could not find the requested resource"
_HEALTH_PATHS = {"/healthz", "/livez", "/readyz"}
# Subresources of a real server that are missing here.
_UNSERVED = {
    *("approval", "binding", "ephemeralcontainers", "finalize", "proxy", "resize", "token"),
}
_STREAMED = ("attach", "exec", "portforward")
_OF_PODS = ("eviction", "log", *_STREAMED)
_REVIEW_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# The version whose API this is; clients print it, and choose what they try by it.
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


class ApiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the server."""

    token: str
    """The bearer token; it grants the right to run code on this machine."""

    hosts: frozenset[str] = LOOPBACK_HOSTS
    """Names that a Host header may have, without port."""

    body_bytes_max: int = 3 * 2**20
    """Largest body of a request, in bytes. Default: kube-apiserver, 3 MiB."""

    token_reviews: TokenReviews = TokenReviews()
    """Serves TokenReviews. Default: no token is valid."""

    """Whether pods run that no controller owns; else their writer gets a warning."""

    runs_images: bool = True
    """Whether a container runtime runs images. Without one, a container without a command causes a warning."""

    bookmark_period_s: float = math.inf
    """Period of bookmarks for watches that allow them, in seconds; a kube-apiserver's is a minute. Default: none, because
    here they carry no new version."""


def application(
    cluster: MemoryCluster, options: ApiOptions, *, logs: PodLogs | None = None, streams: PodStreams | None = None
) -> web.Application:
    """Build the application; the caller binds the socket. Its watches end when it shuts down."""
    api = _ApiHandlers(cluster, options, logs=logs, pods=streams)
    app = web.Application(middlewares=[api.guard], client_max_size=options.body_bytes_max)
    for path in _HEALTH_PATHS:
        app.router.add_get(path, api.health)
    app.router.add_get("/version", api.version)
    app.router.add_get("/openapi/v2", api.openapi_v2)
    app.router.add_get("/openapi/v3", api.openapi_v3)
    app.router.add_get("/openapi/v3/{place:.+}", api.openapi_v3)
    app.router.add_post(_REVIEW_PATH, api.review)
    app.router.add_post(RULES_REVIEW_PATH, api.review_rules)
    app.router.add_post(SELF_REVIEW_PATH, api.review_self)
    app.router.add_post(TOKEN_REVIEW_PATH, api.review_token)
    app.router.add_get(KEPT_LOGS_PATH.format(namespace="{namespace:[a-z0-9-]+}"), api.kept_logs)
    app.router.add_post(BACKUP_PATH, functools.partial(_copy_journal, cluster))
    app.router.add_route("*", "/{path:.*}", api.resource)
    app.on_shutdown.append(api.end_streams)
    return app


async def _copy_journal(cluster: MemoryCluster, _: web.Request) -> web.Response:
    """The journal as one SQLite file, for ``serving backup``."""
    return web.Response(body=await cluster.journal_copy(), content_type="application/vnd.sqlite3")


class _ApiHandlers:
    def __init__(
        self, cluster: MemoryCluster, options: ApiOptions, *, logs: PodLogs | None, pods: PodStreams | None
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._logs, self._pods = logs, pods
        self._streams: set[asyncio.Task[object]] = set()

    @property
    def guard(self) -> Middleware:
        """The middleware around every request."""

        @web.middleware
        async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
            try:
                check_host(request.headers.get("Host", ""), self._options.hosts)
                if request.path not in _HEALTH_PATHS:
                    check_token(request.headers.get("Authorization", ""), token=self._options.token)
                manager = field_manager(request.query, request.headers.get("User-Agent", ""))
                with acting_as(ADMIN_USER, manager=manager):
                    return await handler(request)
            except (ClusterError, Fault) as error:
                return json_response(refusal(error, await _subject(request)), status=refusal_code(error))
            except web.HTTPException as error:
                fault = Fault(error.status, error.text or error.reason)
                return json_response(refusal(fault), status=error.status)
            except RecursionError:
                return json_response(refusal(Fault(400, "the object is nested too deep")), status=400)
            except Exception:  # noqa: BLE001 - the outermost frame of a request
                _log.exception("api.failed method=%s path=%s", request.method, request.path)
                fault = Fault(500, "the server failed; its cause is in the server's log")
                return json_response(refusal(fault), status=500)

        return guard

    async def end_streams(self, _: web.Application) -> None:
        """End watches and followed logs, so that a shutdown does not wait for them."""
        for task in self._streams:
            task.cancel()

    async def health(self, _: web.Request) -> web.Response:
        """``/healthz`` and similar: the loop runs."""
        return web.Response(text="ok")

    async def version(self, _: web.Request) -> web.Response:
        """``/version``."""
        return json_response(_VERSION)

    async def openapi_v2(self, request: web.Request) -> web.Response:
        """``/openapi/v2``, as protobuf for old kubectl versions."""
        accept = request.headers.get("Accept", "")
        if discovery.PROTOBUF_ACCEPT in accept or discovery.PROTOBUF_TYPE in accept:
            return web.Response(body=discovery.openapi_v2_protobuf(), headers={"Content-Type": discovery.PROTOBUF_TYPE})
        return json_response(discovery.openapi_v2())

    async def openapi_v3(self, request: web.Request) -> web.Response:
        """``/openapi/v3`` and the documents below it."""
        place = request.match_info.get("place", "")
        found = discovery.openapi_v3(place) if place else discovery.openapi_v3_index()
        if found is None:
            raise NotFound(_UNKNOWN)
        return json_response(found)

    async def review(self, _: web.Request) -> web.Response:
        """``kubectl auth can-i``: the token grants every right, so the question is not read."""
        status = {"allowed": True, "reason": "the token is the right to everything"}
        review = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": status}
        return json_response(review, status=201)

    async def review_rules(self, _: web.Request) -> web.Response:
        """``kubectl auth can-i --list``."""
        return json_response(rules_review(), status=201)

    async def review_self(self, _: web.Request) -> web.Response:
        """``kubectl auth whoami``."""
        return json_response(self_review(ADMIN_USER), status=201)

    async def review_token(self, request: web.Request) -> web.Response:
        """Serve a TokenReview."""
        asked = decode_body(await request.read(), request.headers.get("Content-Type", ""))
        return json_response(self._options.token_reviews.review(asked), status=201)

    async def resource(self, request: web.Request) -> web.StreamResponse:
        """Everything below ``/api`` and ``/apis``."""
        raw_path = _path(request)
        if request.method == "GET":
            found = discovery_response(raw_path, request.headers.get("Accept", ""))
            if found is not None:
                return found
        target = target_of(raw_path)
        if target.subresource:
            _check_subresource(target)
        if target.subresource == "log":
            return await self._log(target, request)
        if target.subresource in _STREAMED:
            return await self._interact(target, request)
        if target.subresource == "eviction" and request.method != "POST":
            raise Fault(405, "an eviction is created")
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
        if is_set(query, "watch") and not target.subresource:
            period_s = self._options.bookmark_period_s
            options = watch_options(target, query, shape, bookmark_period_s=period_s)
            async with self._stream():
                return await stream_watch(self._cluster, request, options)
        if shape.shape is Shape.WHOLE and target.subresource != "scale":
            return await self._read_encoded(target, query)
        if target.name:
            subresource: Subresource | None = "scale" if target.subresource == "scale" else None
            one = await self._cluster.get(target.kind, target.one_namespace, target.name, subresource=subresource)
            return json_response(shaped_object(target.kind, one, wanted=shape, include=include))
        page = query.get("continue", "")
        listing = await self._cluster.list_selection(target.selection(query), page_size=_page_size(query), page=page)
        return json_response(shaped_list(target.kind, listing, wanted=shape, include=include))

    async def _read_encoded(self, target: RequestTarget, query: Mapping[str, str]) -> web.Response:
        """Read stored JSON without decoding it, where the request allows it."""
        if target.name:
            data = await self._cluster.get_encoded(target.kind, target.one_namespace, target.name)
            return web.Response(body=data, content_type=JSON_TYPE)
        page = query.get("continue", "")
        found = self._cluster.list_encoded(target.selection(query), page_size=_page_size(query), page=page)
        return json_response(whole_list(target.kind, found))

    async def _write(self, target: RequestTarget, request: web.Request) -> web.Response:
        if target.kind in UNUSED_KINDS:
            raise Fault(405, f"{target.kind.resource} are not run here; services, Deployments and pods are")
        if target.kind.is_view:
            raise Fault(405, f"{target.kind.resource} is read-only: the controller derives it from revisions")
        content_type, options = request.headers.get("Content-Type", ""), self._options
        data = await request.read()
        sent = writing.Sent(request.query, content_type, data, options.runs_images)
        match request.method, bool(target.name):
            case "POST", True if target.subresource == "eviction":
                written = await evict(self._cluster, target, sent)
            case "POST", _:
                written = await writing.create(self._cluster, target, sent)
            case "PUT", _:
                written = await writing.replace(self._cluster, target, sent)
            case "PATCH", _:
                written = await writing.patch(self._cluster, target, sent)
            case _, True:
                written = await writing.delete(self._cluster, target, sent)
            case _:
                written = await writing.delete_collection(self._cluster, target, sent)
        shape = wanted(request.headers.get("Accept", ""))
        include = request.query.get("includeObject", "Metadata")
        body = shaped_object(target.kind, written.object, wanted=shape, include=include)
        return json_response(body, status=written.status, warnings=written.warnings)

    async def _log(self, target: RequestTarget, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            raise Fault(405, "logs are only read")
        options = await self._log_options(target, request.query)
        if self._logs is None:
            raise Unsupported("this server keeps no logs")
        if options.is_by_time:
            raise Unsupported(
                "logs are kept as they were written: timestamps, sinceSeconds and sinceTime are not known here"
            )
        pieces = self._logs.read(target.one_namespace, target.name, options)
        # Read the first piece before sending the head, so that a missing log is still a 404. A follower of a silent
        # container gets its head at once.
        async with self._stream(), contextlib.aclosing(pieces):  # type: ignore[type-var]
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
            logs = [] if self._logs is None else self._logs.kept(target.one_namespace)
            for one in logs:
                if one.pod == target.name:
                    return kept_log_options(one, query)
            raise

    async def kept_logs(self, request: web.Request) -> web.Response:
        """The pods of a namespace that have logs."""
        found = [] if self._logs is None else self._logs.kept(request.match_info["namespace"])
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def _interact(self, target: RequestTarget, request: web.Request) -> web.StreamResponse:
        pods, place = self._pods, (target.one_namespace, target.name)
        pod = await self._cluster.get(POD, *place)
        if pods is None:
            raise Unsupported(f"pods/{target.subresource}: this server runs no pods")
        async with self._stream():
            if target.subresource == "portforward":
                return await forward_ports(request, functools.partial(pods.connect, *place))
            options = exec_options(pod, request.query, subresource=target.subresource)
            start = pods.execute if target.subresource == "exec" else pods.attach
            begin = functools.partial(start, *place, options)
            return await stream_session(request, functools.partial(begun, pod, begin, options.container))

    @contextlib.asynccontextmanager
    async def _stream(self):  # type: ignore[no-untyped-def] # noqa: ANN202
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            yield
        finally:
            self._streams.discard(task)


def _check_subresource(target: RequestTarget) -> None:
    kind = target.kind
    served = {"status": kind.has_status, "scale": kind.has_scale, **dict.fromkeys(_OF_PODS, kind == POD)}
    if target.subresource in _UNSERVED:
        raise Unsupported(f"{kind.plural}/{target.subresource} is not served here")
    if not served.get(target.subresource, False):
        raise NotFound(_UNKNOWN)


def _path(request: web.Request) -> str:
    return request.rel_url.raw_path


async def _subject(request: web.Request) -> RequestTarget | None:
    try:
        target = target_of(_path(request))
    except ClusterError:
        return None
    if request.method != "POST" or target.name:
        return target
    try:
        body = decode_body(await request.read(), request.headers.get("Content-Type", ""))
        return msgspec.structs.replace(target, name=str(body["metadata"]["name"]))
    except (Fault, web.HTTPException, RecursionError, TypeError, KeyError):
        # The error of the body has been reported already.
        return target


def _page_size(query: Mapping[str, str]) -> int:
    text = query.get("limit", "")
    if text and not text.isdecimal():
        raise Fault(400, f"limit: {text!r} is not a whole number")
    return int(text or 0)
