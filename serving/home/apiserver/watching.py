"""A watch over HTTP: one JSON line per change, until its timeout, the store or the client ends it.

A watch without a version, or from "0", begins with all objects as ADDED. With ``sendInitialEvents`` a watch from any
version begins in this way, followed by an annotated bookmark. If a period is set, a client that allows bookmarks gets
them periodically, with its last version. An error after the first byte is an ERROR event.
"""

import asyncio
import logging
import math
from collections.abc import Mapping

import msgspec
from aiohttp import web

from serving.core.model.errors import ClusterError, Unavailable
from serving.core.model.objects import Object
from serving.home.apiserver.content import JSON_TYPE, Shape, WantedShape, shaped_object
from serving.home.apiserver.requests import Fault, RequestTarget, is_set, refusal
from serving.home.apiserver.tables import partial_metadata, table
from serving.home.store.history import Watch
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s, wall_s
from serving.net.aio.cooperative import turn
from serving.net.aio.periodic import until_beat_s
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Encoded, EventType, Selection, WatchEvent

_log = logging.getLogger(__name__)

# Default duration of a watch, in seconds: the upper end of kube-apiserver's 30 to 60 minutes.
_TIMEOUT_MAX_S = 3600.0
# How often a quiet watch checks for a disconnected client, in seconds.
_CHECK_EVERY_S = 10.0
# Events within this time are written together, because each write costs a TLS record and wakes the client, in seconds.
_GATHER_S = 0.005
_TOGETHER_MAX = 64
# How long after the end of its watch a client that does not read is disconnected, in seconds.
_UNREAD_S = 30.0
_INITIAL_END = {"k8s.io/initial-events-end": "true"}


class WatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a watch.

    ``timeout_s`` is when the watch ends, in seconds after its start. ``bookmarks``: the client accepts bookmarks, one
    per ``bookmark_period_s`` seconds. ``initial_events``: the watch begins with the existing objects and ends them with
    a bookmark. ``wanted`` is the shape of objects, and ``include`` the part of the object in a table's rows.
    """

    selection: Selection
    resource_version: str
    timeout_s: float
    bookmarks: bool
    initial_events: bool
    wanted: WantedShape
    include: str
    bookmark_period_s: float


def watch_options(
    target: RequestTarget, query: Mapping[str, str], wanted: WantedShape, *, bookmark_period_s: float
) -> WatchOptions:
    """Parse a watch request's parameters. Raises ``Fault`` 400."""
    version = query.get("resourceVersion", "")
    if is_set(query, "sendInitialEvents") and query.get("resourceVersionMatch", "NotOlderThan") != "NotOlderThan":
        raise Fault(400, "sendInitialEvents needs resourceVersionMatch=NotOlderThan")
    try:
        timeout_s = float(query.get("timeoutSeconds", "") or _TIMEOUT_MAX_S)
    except ValueError:
        raise Fault(400, "timeoutSeconds is not a number") from None
    return WatchOptions(
        selection=target.selection(query),
        resource_version=version,
        timeout_s=min(timeout_s, _TIMEOUT_MAX_S) if timeout_s > 0 else _TIMEOUT_MAX_S,
        bookmarks=is_set(query, "allowWatchBookmarks"),
        initial_events=is_set(query, "sendInitialEvents")
        or (version in {"", "0"} and not query.get("sendInitialEvents", "")),
        wanted=wanted,
        include=query.get("includeObject", "Metadata"),
        bookmark_period_s=bookmark_period_s,
    )


async def stream_watch(cluster: MemoryCluster, request: web.Request, options: WatchOptions) -> web.StreamResponse:
    """Serve one watch until it ends. Raises only before the first byte."""
    kind = options.selection.kind
    initial: list[bytes] = []
    version = options.resource_version
    if options.initial_events or version in {"", "0"}:
        listing = cluster.list_encoded(options.selection)
        version = listing.resource_version
        initial = listing.items if options.initial_events else []
    until_s = now_s() + options.timeout_s
    async with cluster.watch_selection(options.selection, version) as events:
        response = web.StreamResponse(headers={"Content-Type": JSON_TYPE})
        try:
            async with asyncio.timeout_at(until_s + _UNREAD_S):
                await response.prepare(request)
                for encoded in initial:
                    event = WatchEvent(type=EventType.ADDED, payload=Encoded(encoded))
                    await response.write(_event_line(event, kind, options))
                    await turn()
                if is_set(request.query, "sendInitialEvents"):
                    await response.write(_line(EventType.BOOKMARK, kind, _initial_end(kind, version), options=options))
                since = msgspec.structs.replace(options, resource_version=version)
                await _forward(events, kind, since, request=request, response=response, until_s=until_s)
                await response.write_eof()
        except ConnectionResetError:
            # The client has disconnected.
            return response
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
    return response


async def _forward(
    events: Watch,
    kind: Kind,
    options: WatchOptions,
    *,
    request: web.Request,
    response: web.StreamResponse,
    until_s: float,
) -> None:
    """Write events as they arrive. Events that arrive together share one write."""
    last: WatchEvent | None = None
    bookmark_s = now_s() + options.bookmark_period_s if options.bookmarks else math.inf
    try:
        while (rest_s := until_s - now_s()) > 0 and request.transport is not None:
            if now_s() >= bookmark_s:
                bookmark_s = now_s() + options.bookmark_period_s
                await response.write(_line(EventType.BOOKMARK, kind, _seen_until(last, options), options=options))
            wait_s = min(rest_s, until_beat_s(_CHECK_EVERY_S), max(0.0, bookmark_s - now_s()))
            batch = events.pop_queued(_TOGETHER_MAX)
            if not batch:
                try:
                    async with asyncio.timeout(wait_s):
                        event = await anext(events, None)
                except TimeoutError:
                    continue
                if event is None:
                    return
                batch = [event, *events.pop_queued(_TOGETHER_MAX)]
            last = batch[-1]
            wanted = (queued for queued in batch if queued.type is not EventType.BOOKMARK or options.bookmarks)
            if text := b"".join(_event_line(queued, kind, options) for queued in wanted):
                await response.write(text)
                await asyncio.sleep(_GATHER_S)
    except ClusterError as error:
        await response.write(_error_line(error))
    except ConnectionResetError:
        raise
    except Exception:  # noqa: BLE001 - the response has begun, so the guard cannot answer
        _log.exception("watch of %s failed", kind.resource)
        await response.write(_error_line(Unavailable("the watch failed; its cause is in the server's log")))


def _seen_until(last: WatchEvent | None, options: WatchOptions) -> Object:
    """The object of a bookmark, which has only a resource version.

    It is the version of the last event or, before any event, the version at which the watch began.
    """
    version = options.resource_version if last is None else last.shared["metadata"].get("resourceVersion", "")
    return {"metadata": {"resourceVersion": version, "creationTimestamp": None}}


def _initial_end(kind: Kind, version: str) -> Object:
    metadata = {"resourceVersion": version, "creationTimestamp": None, "annotations": _INITIAL_END}
    return {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata}


def _event_line(event: WatchEvent, kind: Kind, options: WatchOptions) -> bytes:
    """The line of an event. Whole objects reuse the JSON that the store encoded once for all watchers."""
    if event.encoded is None or options.wanted.shape is not Shape.WHOLE or event.type is EventType.BOOKMARK:
        return _line(event.type, kind, event.object, options=options)
    return b'{"type":"%b","object":%b}\n' % (event.type.encode(), event.encoded)


def _line(type_: EventType, kind: Kind, whole: Object, *, options: WatchOptions) -> bytes:
    shape = options.wanted.shape
    if type_ is EventType.BOOKMARK:
        shaped = _shaped_bookmark(kind, whole, options)
    elif shape is Shape.WHOLE:
        shaped = whole
    else:
        shaped = shaped_object(kind, whole, wanted=options.wanted, include=options.include)
    return msgspec.json.encode({"type": type_, "object": shaped}) + b"\n"


def _shaped_bookmark(kind: Kind, bookmark: Object, options: WatchOptions) -> Object:
    """A bookmark in the requested shape. A bookmark as a table has one row of empty cells."""
    if options.wanted.shape is Shape.WHOLE:
        return {"kind": kind.name, "apiVersion": kind.api_version} | bookmark
    if options.wanted.shape is Shape.TABLE:
        metadata = {"resourceVersion": bookmark.get("metadata", {}).get("resourceVersion", "")}
        version = options.wanted.version
        return table(kind, [], metadata, version=version, include=options.include, now_s=wall_s())
    return partial_metadata(bookmark, options.wanted.version)


def _error_line(error: ClusterError) -> bytes:
    return msgspec.json.encode({"type": "ERROR", "object": refusal(error)}) + b"\n"
