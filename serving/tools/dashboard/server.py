"""HTTP server of the page: static files, the history of a revision, and server-sent events.

Paths:

- ``/``: the page.
- ``/events?revision=NAMESPACE/NAME``: the whole state, then each change, with the pods of that revision; without a
  revision, the sparklines of all. Several ``revision=`` share a stream; an event's id is the index of its revision.
- ``/coldstarts?name=``: the last cold starts of a service or revision, in steps.
- ``/requests?revision=``: the requests that activators recorded.
- ``/history?revision=``: the last hour, or with ``from=`` and ``to=`` a range of the stored history.
- ``/cost``: the usage of all services in a range.
- ``/map``: the hosts of services, and the nodes of their pods.
- ``/compare?name=``: two revisions of a service; two ``revision=`` select them, by default those with the most traffic.
- ``/policy?revision=``: the rates by which its pods are kept, and the savings.
- ``POST /logs``: follows the logs of a service (``logs``).
- ``/state``: the whole state once as JSON, for the terminal.
- ``/healthz``: the health of the server.

``viewers`` finds the user of a request, and ``scope`` removes other namespaces' data from each response. Only the
holder of the dashboard's token can change anything (``actions``) or read logs. The server refuses a request for an
unknown Host, so another site cannot read the page by DNS rebinding. The page loads only its own files.
"""

import asyncio
import importlib.resources
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web

from serving.core.model.errors import ServingError
from serving.core.model.grants import Grant, Role
from serving.core.model.objects import Object, name_of
from serving.core.model.ports import PORT_MAX
from serving.core.settings.dashboard import DashboardSettings
from serving.core.traffic.requesthistory import RequestReport, since
from serving.net.aio.clock import wall_s
from serving.net.aio.supervise import supervise
from serving.tools.dashboard.actions import DashboardActions
from serving.tools.dashboard.archive import DAY_S
from serving.tools.dashboard.board import COLUMNS, Board
from serving.tools.dashboard.coldstarts import ColdRequest
from serving.tools.dashboard.cost import UsageReport, knative_ratios, service_costs
from serving.tools.dashboard.keeper import HistoryKeeper
from serving.tools.dashboard.logs import LogPages
from serving.tools.dashboard.marks import Mark
from serving.tools.dashboard.scope import visible
from serving.tools.dashboard.topology import ServedHost, pod_counts
from serving.tools.dashboard.viewers import REVIEW_VALID_S, Viewers, current_actor, current_grant
from serving.tools.dashboard.views import View

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
LIVE_S = 3600.0
"""The range shown by default, in seconds."""
RANGE_MAX_S = 366 * 86_400.0
"""The longest range of a query, in seconds."""

UNREAD = "the history cannot be read; the dashboard's log says why\n"
# Two clocks differ a little.
_AHEAD_S = 60.0
encode = msgspec.json.Encoder().encode


def refusal_of(request: web.Request) -> web.Response | None:
    """The refusal of a request for a namespace that the user may not see; None if the request is allowed."""
    keys = [key for name in ("revision", "name") for key in request.query.getall(name, ()) if key]
    if all(current_grant().may_read(key) for key in keys):
        return None
    return web.Response(status=403, text="you have no right to see this namespace\n")


def json_response(body: Mapping[str, Any]) -> web.Response:
    """A JSON response with the parts of a body that the user may see."""
    return web.Response(body=encode(visible(body, current_grant())), content_type="application/json")


def json_response_of(owner: str, body: object) -> web.Response:
    """A JSON response whose whole body belongs to one namespace. ``owner`` is the key of a revision or service."""
    shown = body if current_grant().may_read(owner) else None
    return web.Response(body=encode(shown), content_type="application/json")


def range_of(request: web.Request, now_s: float, *, longest_s: float) -> tuple[float, float] | None:
    """The time range in a request, in seconds since the epoch; None without a range. Raises ``HTTPBadRequest``."""
    texts = [request.query.get(name) for name in ("from", "to")]
    if texts == [None, None]:
        return None
    try:
        from_s, to_s = (now_s if text is None else float(text) for text in texts)
    except ValueError:
        from_s, to_s = math.nan, math.nan
    if not (0 <= from_s < to_s <= now_s + _AHEAD_S and to_s - from_s <= longest_s):
        expected = f"two times in seconds since the epoch, not in the future, at most {longest_s:.0f} s apart"
        raise web.HTTPBadRequest(text=f"from={texts[0]} and to={texts[1]} are no range; expected {expected}\n")
    return from_s, to_s


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers of all responses."""
    del request
    response.headers.update(HEADERS)


_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
_STREAMS = ("events", "logs")
_LOCAL = {"localhost", "127.0.0.1", "[::1]"}
# The largest body has a traffic share for each revision of a service.
_BODY_BYTES_MAX = 64 * 1024
# Maximum number of queued events per page; a page further behind is disconnected and starts over.
_WAITING_MAX = 30
# The same as history-days.


async def _no_cold_requests(_namespace: str) -> list[ColdRequest]:
    return []


async def _no_requests(_namespace: str, _name: str) -> None:
    return None


async def _no_hosts() -> list[ServedHost]:
    return []


class _OpenPage:
    """One page that is open in a browser. Pages may share a connection and its queue; ``place`` is the page's id."""

    def __init__(self, place: int, revision: str, *, version: int, grant: Grant, waiting: asyncio.Queue[bytes]) -> None:
        self.place = place
        self.revision = revision
        self.grant = grant
        self.version = version
        self.nodes: View | None = None
        self.waiting = waiting
        self.is_lost = False

    def send(self, event: str, body: Mapping[str, Any]) -> None:
        """Queue the parts of an event that the user may see.

        Of the event "decision", only the decision is sent, or nothing if the user may not see the decision.
        """
        parts = visible(body, self.grant)
        shown = parts["decision"] if event == "decision" else parts
        if shown is None:
            return
        if self.waiting.full():
            self.is_lost = True
            return
        self.waiting.put_nowait(b"id: %d\nevent: %b\ndata: %b\n\n" % (self.place, event.encode(), encode(shown)))


class PageSources(msgspec.Struct, frozen=True, kw_only=True):
    """The data sources of pages in addition to the board.

    ``cold_requests`` returns the last cold starts in a namespace, ``recorded`` the recorded requests of a revision, and
    ``hosts`` the hosts of all services. ``service`` returns a Service (or None) and its Revisions.
    """

    cold_requests: Callable[[str], Awaitable[list[ColdRequest]]] = _no_cold_requests
    recorded: Callable[[str, str], Awaitable[RequestReport | None]] = _no_requests
    hosts: Callable[[], Awaitable[list[ServedHost]]] = _no_hosts
    service: Callable[[str, str], tuple[Object | None, Sequence[Object]]] = lambda _namespace, _name: (None, ())


class Pages:
    """Serves all open pages of one board. Without a ``keeper`` the history is the last hour, in memory."""

    def __init__(  # noqa: PLR0913 - what it shows, and who may see it
        self,
        board: Board,
        settings: DashboardSettings,
        *,
        is_well: Callable[[], bool],
        policies: Callable[[Mapping[str, str]], Awaitable[list[Mapping[str, Any]]]],
        actions: DashboardActions | None = None,
        logs: LogPages | None = None,
        viewers: Viewers | None = None,
        keeper: HistoryKeeper | None = None,
        sources: PageSources | None = None,
    ) -> None:
        self._board = board
        self._logs = logs
        self._viewers = viewers or Viewers()
        self._actions = actions if actions is not None and actions.is_open else None
        self._is_well = is_well
        self._policies = policies
        self._sources = sources or PageSources()
        self._keeper = keeper
        self._hosts = _LOCAL | {name.strip().lower() for name in settings.host_names.split(",") if name.strip()}
        self._pages_max = settings.connections_max
        # Of an hour; 0 is none.
        self._prices = {"pod_hour": settings.price_pod_hour, "gib_hour": settings.price_gib_hour}
        self._pages: set[_OpenPage] = set()
        folder = importlib.resources.files("serving.tools.dashboard") / "static"
        self._files = {
            path.name: path.read_bytes() for path in folder.iterdir() if path.name.rsplit(".", 1)[-1] in _TYPES
        }

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[self._guard], client_max_size=_BODY_BYTES_MAX)
        app.on_response_prepare.append(add_headers)
        app.router.add_get("/", self._file)
        app.router.add_get("/events", self._events, allow_head=False)
        app.router.add_get("/history", self._history)
        app.router.add_get("/map", self._map)
        app.router.add_get("/policy", self._policy)
        app.router.add_get("/coldstarts", self._cold_starts)
        app.router.add_get("/cost", self._cost)
        app.router.add_get("/requests", self._requests)
        app.router.add_get("/state", self._state)
        app.router.add_get("/compare", self._compare)
        app.router.add_get("/healthz", self._health)
        if self._actions is not None:
            app.router.add_post("/actions/{action}", self._actions.handle)
        if self._logs is not None:
            app.router.add_post("/logs", self._logs.handle)
        app.router.add_get("/{name}", self._file)
        return app

    def tick(self, at_s: float, rows: dict[str, list[float | None]], marks: Sequence[Mark] = ()) -> None:
        """Send the changes to all pages."""
        changes: dict[int, list[View]] = {}
        for page in self._pages:
            if page.version not in changes:
                changes[page.version] = self._board.since(page.version)
            body = {
                "at_s": at_s,
                "rows": rows,
                "objects": changes[page.version],
                "pods": self._board.pods(page.revision),
                "decision": self._board.present(page.revision),
                "marks": [mark for mark in marks if mark.key == page.revision],
            }
            nodes = self._board.nodes.shown(page.revision, at_s)
            if nodes != page.nodes:
                page.nodes = body["nodes"] = nodes
            page.send("tick", body)
            page.version = self._board.version

    def decide(self, decision: View) -> None:
        """Send a decision to all pages."""
        for page in self._pages:
            page.send("decision", {"decision": decision})

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        host = request.host.lower()
        # The name may include a port, as may an IPv6 address in brackets.
        before, _, port = host.rpartition(":")
        name = before if re.fullmatch("[0-9]{1,5}", port) and int(port) <= PORT_MAX else host
        if name not in self._hosts:
            text = f"{name!r} is not one of this dashboard's host names; add it to host-names\n"
            return web.Response(status=421, text=text)
        name = request.path.removeprefix("/")
        if name == "healthz" or name in self._files.keys() - {"index.html"}:
            return await handler(request)
        refused = await self._viewers.admit(request) or (None if name == "events" else refusal_of(request))
        if refused is not None or name not in _STREAMS:
            return refused or await handler(request)
        async with supervise() as tasks:
            # A stream without rechecks of its rights must end.
            tasks.start_background(self._watch_grant(request), name="dashboard rights")
            return await handler(request)

    async def _watch_grant(self, request: web.Request) -> None:
        """Wait while a stream is open and its user's grant stays the same. Otherwise close the connection."""
        before = current_grant(), current_actor()
        while await self._viewers.admit(request) is None and (current_grant(), current_actor()) == before:  # noqa: ASYNC110 - rights are reviewed, nothing announces their end
            await asyncio.sleep(REVIEW_VALID_S)
        if request.transport is not None:
            request.transport.close()

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info.get("name", "index.html")
        if name not in self._files:
            raise web.HTTPNotFound(text="no such file\n")
        return web.Response(body=self._files[name], content_type=_TYPES[name.rsplit(".", 1)[-1]], charset="utf-8")

    async def _health(self, request: web.Request) -> web.StreamResponse:
        del request
        well = self._is_well()
        return web.Response(status=200 if well else 503, text="ok\n" if well else "the cluster has not been seen yet\n")

    async def _history(self, request: web.Request) -> web.StreamResponse:
        revision, now_s = request.query.get("revision", ""), wall_s()
        span_s = self._range_of(request, now_s)
        from_s, to_s = span_s or (now_s - LIVE_S, now_s)
        from_s = max(from_s, self._board.created_s(revision))
        # The last row has the time of its tick, which may be later than ``now_s``.
        live = self._board.history.read(revision, from_s=from_s, to_s=to_s if span_s else math.inf)
        marks = self._board.marks.recent(revision, from_s=from_s, to_s=to_s)
        archived = None
        # Without a range, the disk supplies only rows from before this process's start.
        if self._keeper is not None and revision:
            until_s = to_s if span_s or not live["at_s"] else live["at_s"][0] - 1
            archived = await self._keeper.read(revision, from_s=from_s, to_s=max(from_s, until_s), now_s=now_s)
            if archived is None:
                raise web.HTTPServiceUnavailable(text=UNREAD)
        body: dict[str, Any] = live if archived is None else archived.columns
        if span_s is None and archived is not None:
            body = {name: [*archived.columns[name], *live[name]] for name in live}
        # The last seconds of those are not on the disk yet.
        marks = sorted({*marks, *(() if archived is None else archived.marks)}, key=lambda mark: mark.at_s)
        more = {"marks": marks, "step_s": None if archived is None else archived.step_s}
        body = {**body, **more, "decisions": self._board.decisions(revision)}
        return json_response_of(revision, body)

    async def _cost(self, request: web.Request) -> web.StreamResponse:
        now_s = wall_s()
        from_s, to_s = range_of(request, now_s, longest_s=RANGE_MAX_S) or (now_s - DAY_S, now_s)
        if self._keeper is None:
            used: UsageReport | None = self._board.history.usage(self._board.owners, from_s=from_s, to_s=to_s)
        else:
            used = await self._keeper.usage(from_s=from_s, to_s=to_s, now_s=now_s)
        if used is None:
            raise web.HTTPServiceUnavailable(text=UNREAD)
        ratios = knative_ratios(await self._policies({}))
        services = service_costs(used, ratios=ratios, prices=self._prices, kinds=self._board.workload_kinds())
        return json_response({"from_s": from_s, "to_s": to_s, "prices": self._prices, "services": services})

    async def _compare(self, request: web.Request) -> web.StreamResponse:
        # Few dashboards use the comparison, and its imports take memory.
        from serving.tools.dashboard.compare import chosen_pair, compared  # noqa: PLC0415 - as above

        key, now_s = request.query.get("name", ""), wall_s()
        span_s = self._range_of(request, now_s) or (now_s - LIVE_S, now_s)
        namespace, _, name = key.partition("/")
        service, revisions = self._sources.service(namespace, name)
        if service is None:
            raise web.HTTPNotFound(text=f"{key!r} is no service; expected name=NAMESPACE/SERVICE\n")
        requested = [name.removeprefix(f"{namespace}/") for name in request.query.getall("revision", []) if name]
        try:
            pair = chosen_pair(service, revisions, requested)
        except ServingError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        keys = [f"{namespace}/{name_of(revision)}" for revision in pair]
        before, after = [await self._stored_rows(revision_key, span_s, now_s=now_s) for revision_key in keys]
        # Two weeks are thousands of rows.
        comparison = await asyncio.to_thread(
            compared, service, pair, (before, after), span_s=span_s, prices=self._prices
        )
        return json_response_of(key, comparison)

    async def _stored_rows(
        self, key: str, span_s: tuple[float, float], *, now_s: float
    ) -> dict[str, list[float | None]]:
        """The rows of a revision, from memory as far as possible, and older rows from the disk."""
        from_s, to_s = span_s
        from_s = max(from_s, self._board.created_s(key))
        live = self._board.history.read(key)
        places = [place for place, at_s in enumerate(live["at_s"]) if from_s <= at_s <= to_s]
        rows = {
            name: [None if math.isnan(column[place]) else column[place] for place in places]
            for name, column in live.items()
        }
        until_s = min(to_s, live["at_s"][0] - 1) if live["at_s"] else to_s
        if self._keeper is None or until_s <= from_s:
            return rows
        history = await self._keeper.read(key, from_s=from_s, to_s=until_s, now_s=now_s)
        if history is None:
            raise web.HTTPServiceUnavailable(text=UNREAD)
        return {name: [*history.columns[name], *column] for name, column in rows.items()}

    def _range_of(self, request: web.Request, now_s: float) -> tuple[float, float] | None:
        """The time range of a query, limited to the stored history; None without one. Raises ``HTTPBadRequest``."""
        return range_of(request, now_s, longest_s=RANGE_MAX_S if self._keeper is None else self._keeper.longest_s)

    async def _map(self, request: web.Request) -> web.StreamResponse:
        del request
        hosts = await self._sources.hosts()
        pods = {key: views.values() for key, views in self._board.revision_pods.items()}
        return json_response({"hosts": hosts, "pods": pod_counts(pods)})

    async def _policy(self, request: web.Request) -> web.StreamResponse:
        namespace, _, name = request.query.get("revision", "").partition("/")
        stories = await self._policies({"namespace": namespace, "revision": name, "curve": ""}) if name else []
        own = (story for story in stories if (story["namespace"], story["revision"]) == (namespace, name))
        return json_response_of(namespace, next(own, None))

    async def _cold_starts(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        revisions = self._board.revisions_of(name)
        if not revisions:
            raise web.HTTPNotFound(text=f"{name!r} is neither a service nor a revision, as NAMESPACE/NAME\n")
        namespace = name.partition("/")[0]
        requests = await self._sources.cold_requests(namespace)
        body = [self._board.cold_starts(revision, requests) for revision in revisions]
        return json_response_of(name, body)

    async def _requests(self, request: web.Request) -> web.StreamResponse:
        revision = request.query.get("revision", "")
        namespace, _, name = revision.partition("/")
        report = await self._sources.recorded(namespace, name) if revision in self._board.rows else None
        own = None if report is None else since(report, self._board.created_s(revision))
        return json_response_of(revision, own)

    async def _state(self, request: web.Request) -> web.StreamResponse:
        body = {
            **self._all(request.query.get("revision", ""), current_grant()),
            "decisions": self._board.last_decisions(),
            "policies": await self._policies({}),
            "prices": self._prices,
        }
        return json_response(body)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        revisions = request.query.getall("revision", [""])
        if len(self._pages) + len(revisions) > self._pages_max:
            raise web.HTTPServiceUnavailable(text="too many pages are open\n")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        grant, waiting = current_grant(), asyncio.Queue[bytes](_WAITING_MAX * len(revisions))
        pages = [
            # A page that requests a forbidden revision does not end the stream of the other pages.
            _OpenPage(
                place,
                revision if grant.may_read(revision) else "",
                version=self._board.version,
                grant=grant,
                waiting=waiting,
            )
            for place, revision in enumerate(revisions)
        ]
        overview = {"sparklines": self._board.sparklines.read(), "changed_s": self._board.changed_s()}
        for page in pages:
            page.send("all", {**self._all(page.revision, grant), **({} if page.revision else overview)})
        self._pages.update(pages)
        try:
            while not any(page.is_lost for page in pages):
                await response.write(await waiting.get())
        except ConnectionResetError:
            # The page was closed.
            pass
        finally:
            self._pages.difference_update(pages)
        return response

    def _all(self, revision: str, grant: Grant) -> View:
        actor = current_actor()
        may_act = self._actions is not None and (not grant.user or grant.role is not Role.VIEW)
        return {
            "columns": COLUMNS,
            "rows": self._board.rows,
            "objects": self._board.since(0),
            "nodes": self._board.nodes.shown(revision, wall_s()),
            "pods": self._board.pods(revision),
            "may_act": may_act,
            # The cookie of a user gives no access to logs, and a user without the right to act has no field for the
            # token.
            "may_read_logs": may_act or (self._actions is not None and actor is not None),
            "user": "" if actor is None else actor.user,
        }
