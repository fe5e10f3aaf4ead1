"""The cluster port over HTTP, to any server of the Kubernetes API: a real one or ours (``cluster/api``).

``sessions`` provides connections, TLS and credentials. Requests and responses are plain JSON through ``msgspec``.
``kubernetes.aio`` 37.0.2 is not used for them: its typed lists block the loop for 79 ms at 200 pods, its watch raises
on the first 410, and strategic patches of custom resources fail. Every call has a timeout and is made once. Other
libraries' errors are converted here.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

import aiohttp
import msgspec

from serving.core.model.errors import NotFound, Unavailable
from serving.core.model.objects import Object
from serving.net.cluster.identity import new_identity, user_agent
from serving.net.cluster.kinds import POD, Kind
from serving.net.cluster.kubeclient import (
    SERVER_NAME,
    TOGETHER_PATH,
    WriteCall,
    WriteResult,
    deletion_body,
    dry_run_query,
    error_of,
    event_error,
    eviction_body,
    listed_kind,
    object_path,
    query_of,
    recorder_from_environment,
    with_type,
)
from serving.net.cluster.port import (
    Cluster,
    Create,
    Delete,
    EventType,
    Evict,
    Listing,
    Patch,
    PatchType,
    Replace,
    Selection,
    Subresource,
    WatchEvent,
    Write,
)
from serving.net.cluster.sessions import ServerSession, session_of

if TYPE_CHECKING:
    from types import TracebackType


# Longest line of a watch: one object, which may have 3 MiB on a real server, and a few bytes.
_WATCH_LINE_BYTES_MAX = 8 * 2**20
_ERROR_BODY_BYTES_MAX = 2**20

_KUBECONFIG_VARIABLE = "KUBECONFIG"


class KubeTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of calls to a server, in seconds.

    A connection must open within ``connect_s``. A call other than a watch lasts at most ``call_s``, to the last byte of
    its response. ``watch_s`` is the requested duration of a watch; readers then open a new one. A watch that is silent
    for ``watch_s`` + ``watch_margin_s`` counts as broken.
    """

    connect_s: float = 5.0
    call_s: float = 15.0
    watch_s: float = 240.0
    watch_margin_s: float = 15.0


class KubeCluster(Cluster):
    """A client of a Kubernetes API server: that of a kubeconfig's current context, or (None) of this pod's cluster.

    Use it as a context, or close it. The first call connects. ``user_agent`` appears in the server's audit log. Its
    part before the first "/" is the field manager of this process's writes.
    """

    def __init__(
        self,
        kubeconfig: str | os.PathLike[str] | None,
        *,
        timeouts: KubeTimeouts | None = None,
        user_agent: str = "serving",
    ) -> None:
        self._user_agent = user_agent
        self._kubeconfig = None if kubeconfig is None else os.fspath(kubeconfig)
        self._timeouts = timeouts or KubeTimeouts()
        self._session: ServerSession | None = None
        self._opening = asyncio.Lock()
        self._accepts_several = False
        self._recorder = recorder_from_environment()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. A later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(self, kind: Kind, namespace: str, name: str, *, subresource: Subresource | None = None) -> Object:
        """Read one object."""
        return await self._call("GET", object_path(kind, namespace, name, subresource=subresource))

    async def kind_named(self, api_version: str, name: str) -> Kind | None:
        """Find a kind by the server's discovery."""
        try:
            listing = await self._call("GET", f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}")
        except NotFound:
            return None
        return listed_kind(api_version, name, listing.get("resources") or ())

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        """Read one page of a list."""
        kind = selection.kind
        query = query_of(
            labelSelector=selection.label_selector,
            fieldSelector=selection.field_selector,
            limit=str(page_size or ""),
            **{"continue": page},
        )
        reply = await self._call("GET", object_path(kind, selection.namespace or ""), query=query)
        metadata = reply.get("metadata", {})
        # A real server omits the type in the items of its own kinds.
        typed = {"apiVersion": kind.api_version, "kind": kind.name}
        return Listing(
            items=[typed | _without_managers(item) for item in reply.get("items") or ()],
            resource_version=metadata.get("resourceVersion", ""),
            next_page=metadata.get("continue", ""),
        )

    def watch_selection(
        self, selection: Selection, resource_version: str
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Watch changes after a version. Bookmarks are requested; the server may not send any."""
        query = query_of(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(int(self._timeouts.watch_s)),
            labelSelector=selection.label_selector,
            fieldSelector=selection.field_selector,
        )
        path = object_path(selection.kind, selection.namespace or "")
        return _watched(
            self._stream(path, query, silence_s=self._timeouts.watch_s + self._timeouts.watch_margin_s), path
        )

    @contextlib.asynccontextmanager
    async def pod_log(
        self, namespace: str, pod: str, *, container: str, tail_line_count: int, follow: bool = True
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream the log of a container."""
        path = object_path(POD, namespace, pod, subresource="log")
        query = query_of(container=container, follow="true" if follow else "", tailLines=str(tail_line_count))
        # A container may write nothing for hours.
        async with self._stream(path, query, silence_s=None) as response:
            yield _pieces(response, path)

    async def write(self, write: Write) -> Object:
        """Send a write as one request."""
        call = self._call_of(write)
        return await self._call(
            call.method, call.path, query=call.query, body=call.body, content_type=call.content_type
        )

    async def write_together(self, writes: Sequence[Write]) -> Sequence[Object] | None:
        """Send several writes in a single request, if an earlier response was that of this project's server."""
        if not self._accepts_several:
            return None
        calls = [self._call_of(write) for write in writes]
        if self._recorder is not None:
            for call in calls:
                self._recorder.add(call.method, call.path, call.query)
        reply = await self._call("POST", TOGETHER_PATH, body=calls)
        results = msgspec.convert(reply.get("results"), type=list[WriteResult])
        for index, result in enumerate(results):
            if result.status >= 400:
                if not index:
                    raise error_of(result.status, msgspec.json.encode(result.body), "")
                results = results[:index]
                break
        return [_without_managers(result.body) for result in results]

    def _call_of(self, write: Write) -> WriteCall:
        match write:
            case Create():
                path, body = object_path(write.kind, write.namespace), with_type(write.kind, write.body)
                return WriteCall(method="POST", path=path, query=dry_run_query(write.dry_run), body=body)
            case Replace():
                path = object_path(write.kind, write.namespace, write.name, subresource=write.subresource)
                whole = write.body if write.subresource == "scale" else with_type(write.kind, write.body)
                return WriteCall(method="PUT", path=path, query=dry_run_query(write.dry_run), body=whole)
            case Patch():
                return WriteCall(
                    method="PATCH",
                    path=object_path(write.kind, write.namespace, write.name, subresource=write.subresource),
                    query=dry_run_query(write.dry_run) | self._manager(write.patch_type),
                    body=dict(write.patch) if isinstance(write.patch, Mapping) else list(write.patch),
                    content_type=write.patch_type.value,
                )
            case Delete():
                path = object_path(write.kind, write.namespace, write.name)
                return WriteCall(method="DELETE", path=path, body=deletion_body(write))
            case Evict():
                path = object_path(POD, write.namespace, write.name, subresource="eviction")
                return WriteCall(method="POST", path=path, body=eviction_body(write))

    def _manager(self, patch_type: PatchType) -> dict[str, str]:
        manager = f"serving-{self._user_agent.partition('/')[0]}"
        return {"fieldManager": manager, "force": "true"} if patch_type is PatchType.APPLY else {}

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> Object:
        limits = self._timeouts
        timeout = aiohttp.ClientTimeout(total=limits.call_s, sock_connect=limits.connect_s)
        with _mapped(method, path):
            response = await self._send(
                method, path, query or {}, body=body, content_type=content_type, timeout=timeout
            )
            async with response:
                data = await response.read()
        if response.status >= 400:
            await self._doubt(response.status)
            raise error_of(response.status, data, response.headers.get("Retry-After", ""))
        try:
            reply: Object = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Unavailable(f"{method} {path}: the server's answer is not a JSON object") from error
        return _without_managers(reply)

    @contextlib.asynccontextmanager
    async def _stream(
        self, path: str, query: Mapping[str, str], *, silence_s: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        limits = self._timeouts
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s, sock_read=silence_s)
        with _mapped("GET", path):
            # The response head arrives immediately, whatever the server waits for afterwards.
            async with asyncio.timeout(limits.call_s):
                response = await self._send("GET", path, query, timeout=timeout)
        try:
            if response.status >= 400:
                with _mapped("GET", path):
                    data = await response.content.read(_ERROR_BODY_BYTES_MAX)
                await self._doubt(response.status)
                raise error_of(response.status, data, response.headers.get("Retry-After", ""))
            yield response
        finally:
            # Not reusable: the server still writes to this connection, so TLS is not closed properly either.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - handed down; it bounds each step of the answer too
        body: object = None,
        content_type: str = "application/json",
    ) -> aiohttp.ClientResponse:
        session = self._session or await self._open()
        if self._recorder is not None and path != TOGETHER_PATH:
            self._recorder.add(method, path, query)
        headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": self._user_agent}
        whole = path + (f"?{urlencode(query)}" if query else "")
        response = await session.send(method, whole, headers=headers, body=body, timeout=timeout)
        self._accepts_several = response.headers.get("Server") == SERVER_NAME
        return response

    async def _doubt(self, status: int) -> None:
        """Reload the credentials after a 401, because the token may have been renewed."""
        if status == 401 and self._session is not None:
            await self._session.renew()

    async def _open(self) -> ServerSession:
        async with self._opening:
            if self._session is None:
                self._session = await session_of(self._kubeconfig)
            return self._session


def _without_managers(resource: Object) -> Object:
    """Drop managedFields, often half of an object: no daemon reads them."""
    metadata = resource.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    return resource


@contextlib.asynccontextmanager
async def _watched(
    stream: AbstractAsyncContextManager[aiohttp.ClientResponse], path: str
) -> AsyncIterator[AsyncIterator[WatchEvent]]:
    async with stream as response, contextlib.aclosing(_events(response, path)) as events:
        yield events


async def _events(response: aiohttp.ClientResponse, path: str) -> AsyncGenerator[WatchEvent, None]:
    buffer = bytearray()
    with _mapped("GET", path):
        async for chunk in response.content.iter_any():
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                buffer += line
                if buffer:
                    yield _event_of(bytes(buffer))
                buffer.clear()
            buffer += rest
            if len(buffer) > _WATCH_LINE_BYTES_MAX:
                raise Unavailable(f"watch {path}: a line of more than {_WATCH_LINE_BYTES_MAX} bytes")


async def _pieces(response: aiohttp.ClientResponse, path: str) -> AsyncGenerator[bytes, None]:
    with _mapped("GET", path):
        async for piece in response.content.iter_any():
            yield piece


class _WatchLine(msgspec.Struct):
    type: str
    object: Object


_LINES = msgspec.json.Decoder(_WatchLine)


def _event_of(line: bytes) -> WatchEvent:
    try:
        event = _LINES.decode(line)
        if event.type == "ERROR":
            raise event_error(event.object)
        return WatchEvent(type=EventType(event.type), object=_without_managers(event.object))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise Unavailable("the server's watch sent something that is not an event") from error


@contextlib.contextmanager
def _mapped(method: str, path: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise Unavailable(f"{method} {path}: the server did not answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(f"{method} {path}: {str(error) or type(error).__name__}") from error


def connect(daemon: str, *, identity: str = "", environment: Mapping[str, str] = os.environ) -> KubeCluster:
    """Connect to KUBECONFIG's cluster, or to this pod's cluster by its service account. Sends no request.

    ``daemon`` and ``identity`` name the writer in the server's audit log. Use the result as a context, or close it.
    """
    return KubeCluster(environment.get(_KUBECONFIG_VARIABLE), user_agent=user_agent(daemon, identity or new_identity()))
