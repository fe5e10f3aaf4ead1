"""Guards the API server: authenticates, authorizes and audits each request.

Checks run in this order: Host, token, role. Errors become ``Status`` objects in Kubernetes' own words. Streams
(watches, followed logs, sessions in pods) end with their user's token.
"""

import asyncio
import contextlib
import contextvars
import logging
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from serving.core.model.errors import ClusterError, Forbidden, Unsupported
from serving.core.model.grants import Grant, Role
from serving.core.model.objects import Object, nested
from serving.core.traffic.wrongtokens import COUNT_MAX, WrongTokens
from serving.home.apiserver.accesstokens import Authenticator, Unauthorized
from serving.home.apiserver.audit import AuditedRequest, AuditLog
from serving.home.apiserver.content import json_response
from serving.home.apiserver.logoptions import KEPT_LOGS_PATH
from serving.home.apiserver.requests import (
    Fault,
    RequestTarget,
    field_manager,
    is_set,
    refusal,
    refusal_code,
    target_of,
)
from serving.home.apiserver.reviews import check_host
from serving.home.apiserver.roles import Access, may, refusal_text
from serving.home.store.requester import acting_as
from serving.net.aio.clock import now_s, wall_s
from serving.net.aio.cooperative import costly
from serving.net.aio.periodic import until_beat_s
from serving.net.cluster.kinds import POD

_log = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEALTH_PATHS = frozenset({"/healthz", "/livez", "/readyz"})
"""Paths that need no token."""

STREAMED = ("attach", "exec", "portforward")
"""Subresources of pods that are sessions."""

# How often an open stream's token is checked, which may have expired or been deleted, in seconds.
_TOKEN_CHECK_S = 5.0
# Bytes of a large body; brackets alone make some thousand values.
_LARGE_BYTES = 16 * 2**10
# A write may also wait for a slow disk, in seconds.
_PAUSE_MAX_S = 1.0
_IMPERSONATION = "Impersonate-"
# The longest name of an object.
_NAME_LENGTH_MAX = 253
_REVIEW_PARTS = 4
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}

_current: contextvars.ContextVar[AuditedRequest] = contextvars.ContextVar("current_request")


def current_request() -> AuditedRequest:
    """The authorized request being handled."""
    return _current.get()


def record_name(created: Object) -> None:
    """Record the name of the object that the current request creates, for audit log and refusals."""
    audited, name = _current.get(None), nested(created, "metadata", "name")
    if audited is not None and audited.access is not None and not audited.access.name and isinstance(name, str):
        audited.access = msgspec.structs.replace(audited.access, name=name[:_NAME_LENGTH_MAX])


def path_of(request: web.Request) -> str:
    """The path of a request as the client sent it, with percent-encoding."""
    return request.rel_url.raw_path


class LargeBodies:
    """Handles writes of large objects one after another in threads, each followed by a pause of the same length.

    Decoding costs up to 10 µs per value. The pauses give other requests at least half of the interpreter's time.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self, byte_count: int) -> AsyncIterator[None]:
        """A context in which a thread handles a large body. One is open at a time; small bodies do not wait."""
        if byte_count < _LARGE_BYTES:
            yield
            return
        await self._lock.acquire()
        began_s = now_s()
        try:
            with costly():
                yield
        finally:
            # The response does not wait for the pause.
            asyncio.get_running_loop().call_later(min(now_s() - began_s, _PAUSE_MAX_S), self._lock.release)


class WritePart(msgspec.Struct):
    """The HTTP status of a write, in a request with several writes."""

    code: int = 500


class ApiGuard:
    """Wraps each API request: checks Host header and token, authorizes the request, and maps errors to responses.

    It also records the request in the audit log. ``hosts`` are the host names that a Host header may have.
    """

    def __init__(self, authenticator: Authenticator, audit: AuditLog | None, *, hosts: Collection[str]) -> None:
        self._authenticator = authenticator
        self._audit = audit
        self._hosts = hosts
        self._wrong = WrongTokens()
        self._streams: set[asyncio.Task[object]] = set()

    @property
    def middleware(self) -> Middleware:
        """The guard as an aiohttp middleware."""

        @web.middleware
        async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
            if request.path in HEALTH_PATHS:
                return await self._guarded(request, handler)
            audited = AuditedRequest(
                uri=request.path_qs,
                verb=request.method.lower(),
                source=request.remote or "",
                agent=request.headers.get("User-Agent", ""),
                received_s=wall_s(),
            )
            token, code = _current.set(audited), 0
            try:
                response = await self._guarded(request, handler)
                code = response.status
            finally:
                _current.reset(token)
                if self._audit is not None:
                    # 0 marks a stream that the server ended.
                    self._audit.record(audited, code=code, now_s=wall_s())
            return response

        return guard

    async def _guarded(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        fault: Fault
        try:
            check_host(request.headers.get("Host", ""), self._hosts)
            if request.path in HEALTH_PATHS:
                return await handler(request)
            grant = self._authorized(request)
            manager = field_manager(request.query, request.headers.get("User-Agent", ""))
            runs_programs = grant.role is Role.ADMIN
            with acting_as(grant.user, manager=manager, runs_programs=runs_programs, claims_hosts=grant.is_full):
                return await handler(request)
        except Unauthorized as error:
            _log.info("api.unauthorized", extra={"reason": error.reason, "path": request.path})
            if wait_s := self._record_wrong(request):
                text = "Too many requests with a wrong token from this address, please try again later."
                headers = {"Retry-After": str(math.ceil(wait_s))}
                return json_response(refusal(Fault(429, text)), status=429, headers=headers)
            fault = error
        except (ClusterError, Fault) as error:
            return json_response(refusal(error, _subject(request)), status=refusal_code(error))
        except web.HTTPException as error:
            fault = Fault(error.status, error.text or error.reason)
        except RecursionError:
            fault = Fault(400, "the object is nested too deep")
        except Exception:  # noqa: BLE001 - the outermost frame of a request
            _log.exception("api.failed method=%s path=%s", request.method, request.path)
            fault = Fault(500, "the server failed; its cause is in the server's log")
        return json_response(refusal(fault), status=fault.code)

    def _record_wrong(self, request: web.Request) -> float:
        """Count a wrong token of an address; return the seconds until it may retry. Missing tokens do not count."""
        if "Authorization" not in request.headers:
            return 0.0
        wrong = self._wrong.record(request.remote or "", now_s())
        if wrong.is_news:
            _current.get().reason = f"more than {COUNT_MAX} wrong tokens in a minute from one address"
            _log.warning("api.guessed", extra={"client": request.remote})
        return wrong.wait_s

    def _authorized(self, request: web.Request) -> Grant:
        """The user and role of an authorized request. Raises ``Unauthorized`` or ``Forbidden``."""
        audited = _current.get()
        grant = self._authenticator.authenticate(request.headers.get("Authorization", ""), now_s=wall_s())
        audited.grant = grant
        access, audited.version = _access_of(request)
        audited.access = access
        if not may(grant, access):
            audited.reason = refusal_text(grant, access)
            raise Forbidden(audited.reason)
        if any(name.startswith(_IMPERSONATION) for name in request.headers):
            raise Unsupported("impersonation (--as) is not served here: use a token of that user")
        return grant

    @contextlib.contextmanager
    def part(self, method: str, target: RequestTarget, path: str) -> Iterator[WritePart]:
        """A context for each write of a request with several: the audit log has it, with the code that is set."""
        part = WritePart()
        audited = msgspec.structs.replace(
            _current.get(),
            uri=path,
            access=_access_to(target, _VERBS[method]),
            version=target.kind.version,
            audit_id=str(uuid.uuid4()),
        )
        token = _current.set(audited)
        try:
            yield part
        finally:
            _current.reset(token)
            if self._audit is not None:
                self._audit.record(audited, code=part.code, now_s=wall_s())

    async def log_stream(self, _: web.Request, response: web.StreamResponse) -> None:
        """Log the start of a stream, which may last for hours."""
        audited = _current.get(None)
        if self._audit is not None and audited is not None and audited.is_stream:
            self._audit.record(audited, code=response.status, now_s=wall_s(), has_ended=False)

    async def end_streams(self, _: web.Application) -> None:
        """End watches and followed logs, so that a shutdown does not wait for them."""
        for task in self._streams:
            task.cancel()

    def grant_of(self, token: str) -> Grant | None:
        """The user and role of a token, for TokenReviews; None if the token is unknown or expired."""
        try:
            return self._authenticator.grant_of(token, now_s=wall_s())
        except Unauthorized:
            return None

    @contextlib.asynccontextmanager
    async def stream(self, request: web.Request) -> AsyncIterator[None]:
        """A context for a stream. Its task is cancelled when the server stops or the user's token expires."""
        _current.get().is_stream = True
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        timer: asyncio.TimerHandle | None = None

        def check() -> None:
            nonlocal timer
            try:
                self._authenticator.authenticate(request.headers.get("Authorization", ""), now_s=wall_s())
            except Unauthorized:
                task.cancel()
                return
            timer = loop.call_later(until_beat_s(_TOKEN_CHECK_S), check)

        timer = loop.call_later(until_beat_s(_TOKEN_CHECK_S), check)
        self._streams.add(task)
        try:
            yield
        finally:
            timer.cancel()
            self._streams.discard(task)


def _access_of(request: web.Request) -> tuple[Access, str]:
    """The verb and resource that a request needs, and the API version. For an unknown path, there is no resource."""
    path, method = path_of(request), request.method
    resource = request.match_info.route.resource
    canonical = resource.canonical if resource is not None else ""
    if canonical == KEPT_LOGS_PATH:
        namespace = request.match_info["namespace"]
        return Access(verb="get", resource=POD.plural, subresource="log", namespace=namespace), POD.version
    if method == "POST" and canonical.startswith("/apis/") and canonical.count("/") == _REVIEW_PARTS:
        # A review, which is created but never stored.
        _, _, group, version, plural = canonical.split("/")
        return Access(verb="create", group=group, resource=plural), version
    try:
        target = target_of(path)
    except ClusterError:
        return Access(verb="get" if method == "HEAD" else method.lower(), path=request.path), ""
    if target.subresource in STREAMED:
        # Also over a websocket, whose method is GET.
        verb = "create"
    elif method == "DELETE":
        verb = "delete" if target.name else "deletecollection"
    elif method in {"GET", "HEAD"}:
        is_watch = is_set(request.query, "watch") and not target.subresource
        verb = "watch" if is_watch else "get" if target.name else "list"
    else:
        verb = _VERBS.get(method, method.lower())
    return _access_to(target, verb), target.kind.version


def _access_to(target: RequestTarget, verb: str) -> Access:
    return Access(
        verb=verb,
        group=target.kind.group,
        resource=target.kind.plural,
        subresource=target.subresource,
        namespace=target.namespace,
        name=target.name,
    )


def _subject(request: web.Request) -> RequestTarget | None:
    try:
        target = target_of(path_of(request))
    except ClusterError:
        return None
    audited = _current.get(None)
    if target.name or audited is None or audited.access is None:
        return target
    return msgspec.structs.replace(target, name=audited.access.name)
