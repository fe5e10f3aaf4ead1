"""``POST /logs`` streams the logs of a service's pods to the holder of the token, because logs may contain secrets.

The body is ``{"namespace", "service"}``. The response has one JSON object per line, a ``LogBatch``: first the last
lines of each pod, including the last deleted pods, then new lines, also of new pods. A page that reads slowly loses
lines and gets their number.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Annotated

import msgspec
from aiohttp import web

from serving.core.model.errors import UNREADABLE, ClusterError, Invalid, NotFound, Unavailable
from serving.net.aio.clock import now_s
from serving.net.aio.supervise import supervise
from serving.net.cluster.port import PodLogSource
from serving.tools.dashboard.gate import Gate
from serving.tools.dashboard.viewers import current_actor
from serving.tools.dashboard.views import View

# A log line may be a whole JSON document; the page shows the beginning.
_LINE_BYTES_MAX = 4096
_CUT = " … (cut)"

_log = logging.getLogger("dashboard")

_PAGES_MAX = 4
# Each log uses a connection to the API server, and is a container that the kubelet follows.
_PODS_MAX = 32
# Number of first lines of all pods together, with a minimum per pod.
_TAIL_LINES = 200
_TAIL_LINES_MIN = 20
# The number of lines that a page keeps.
_WAITING_LINES_MAX = 2000
_BATCH_LINES_MAX = 500
# Time between two batches, between two listings of the pods, and between two requests for a missing log.
_PAUSE_S = 0.1
_CHECK_S = 0.5
# An ended log continues after a restart of the container; without a restart the server may have ended the response.
_ENDED_S = 10.0
# An empty batch detects that the page was closed.
_ALIVE_S = 5.0
# A new pod has no log yet, and a restarting server is unavailable for a moment.
_NOT_YET = frozenset({Invalid.status, NotFound.status})
_FAILED_MAX = 10
_encode = msgspec.json.Encoder().encode

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class LogBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One message to a page: log lines, and the number of lines dropped before them."""

    lines: list[tuple[str, str]]
    """Pod and text of each line, oldest first; a pod of "" marks a remark of the dashboard."""

    dropped: int
    """Number of dropped lines before these, because the reader was too slow."""


class LineSplitter:
    """Splits the pieces of one log into lines. The part of a line beyond 4 KiB is dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_cut = False

    def feed(self, piece: bytes) -> list[str]:
        """The lines that a piece completes."""
        *ends, rest = piece.split(b"\n")
        lines = []
        for end in ends:
            self._grow(end)
            lines.append(self._text())
        self._grow(rest)
        return lines

    def finish(self) -> list[str]:
        """The rest of the log as a line, if its last line has no line end; else an empty list."""
        return [self._text()] if self._rest else []

    def _grow(self, part: bytes) -> None:
        whole = self._rest + part[: _LINE_BYTES_MAX + 1 - len(self._rest)]
        self._is_cut = self._is_cut or len(self._rest) + len(part) > _LINE_BYTES_MAX
        self._rest = whole[:_LINE_BYTES_MAX]

    def _text(self) -> str:
        text = self._rest.decode("utf-8", "replace").removesuffix("\r") + (_CUT if self._is_cut else "")
        self._rest = b""
        self._is_cut = False
        return text


class LogQueue:
    """The newest ``lines_max`` lines queued for one reader."""

    def __init__(self, lines_max: int) -> None:
        self._lines: deque[tuple[str, str]] = deque(maxlen=lines_max)
        self._lines_max = lines_max
        self._dropped = 0

    def add(self, pod: str, text: str) -> None:
        """Append a line. A full queue drops its oldest line."""
        self._dropped += len(self._lines) == self._lines_max
        self._lines.append((pod, text))

    def pop_batch(self, count_max: int) -> LogBatch:
        """Remove and return the oldest lines, at most ``count_max``."""
        lines = [self._lines.popleft() for _ in range(min(count_max, len(self._lines)))]
        dropped, self._dropped = self._dropped, 0
        return LogBatch(lines=lines, dropped=dropped)


class _LogRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    namespace: _Name
    service: _Name


class LogPages:
    """Serves the logs of all open pages.

    For a namespace and a service, ``pods`` returns the present pods, and ``gone_pods`` the pods deleted last.
    """

    def __init__(
        self,
        source: PodLogSource,
        gate: Gate,
        *,
        pods: Callable[[str, str], list[View]],
        gone_pods: Callable[[str, str], list[View]],
    ) -> None:
        self._source = source
        self._gate = gate
        self._pods = pods
        self._gone_pods = gone_pods
        self._open_count = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Stream the logs of one service until the page is closed."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        actor = current_actor()
        refused = self._gate.judge(headers, now_s=now_s(), user=None if actor is None else actor.user)
        if refused is not None:
            _log.warning("logs.refused", extra={"why": refused.why, "peer": request.remote or ""})
            return _error(refused.status, refused.why)
        try:
            log_request = msgspec.json.decode(await request.read(), type=_LogRequest)
        except UNREADABLE as error:
            return _error(400, str(error))
        if actor is not None and not actor.may_read(log_request.namespace):
            return _error(403, f"the user {actor.user} may not read logs of this namespace")
        if self._open_count >= _PAGES_MAX:
            return _error(503, f"{_PAGES_MAX} pages show logs already; close one")
        _log.info(
            "logs.opened",
            extra={"service": f"{log_request.namespace}/{log_request.service}", "peer": request.remote or ""},
        )
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        self._open_count += 1
        try:
            await response.prepare(request)
            place = log_request.namespace, log_request.service
            follower = _Follower(self._source, lambda: self._pods(*place), self._gone_pods(*place))
            await self._stream(response, follower)
        except ConnectionResetError:
            # The page was closed.
            pass
        finally:
            self._open_count -= 1
        return response

    async def _stream(self, response: web.StreamResponse, follower: "_Follower") -> None:
        async with supervise() as tasks:
            tasks.start_background(follower.run(), name="dashboard logs")
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ALIVE_S):
                        await follower.has_lines.wait()
                follower.has_lines.clear()
                is_full = True
                while is_full:
                    batch = follower.queue.pop_batch(_BATCH_LINES_MAX)
                    # The write blocks while the page does not read; meanwhile the queue drops lines.
                    await response.write(_encode(batch) + b"\n")
                    is_full = len(batch.lines) == _BATCH_LINES_MAX
                await asyncio.sleep(_PAUSE_S)


class _Follower:
    def __init__(self, source: PodLogSource, pods: Callable[[], list[View]], gone_pods: list[View]) -> None:
        self.queue = LogQueue(_WAITING_LINES_MAX)
        self.has_lines = asyncio.Event()
        self._source = source
        self._pods = pods
        self._gone_pods = gone_pods
        self._views: dict[str, View] = {}
        self._is_crowded = False

    async def run(self) -> None:
        """Read the last deleted pods, then follow existing and new pods until cancelled."""
        for pod in self._gone_pods:
            await self._read_gone(pod)
        tasks: dict[str, asyncio.Task[None]] = {}
        async with supervise() as group:
            while True:
                self._views = {pod["name"]: pod for pod in self._pods()}
                for name in [name for name, task in tasks.items() if task.done()]:
                    del tasks[name]
                waiting = [name for name in self._views if name not in tasks]
                tail = max(_TAIL_LINES_MIN, _TAIL_LINES // max(1, len(waiting)))
                for name in waiting[: _PODS_MAX - len(tasks)]:
                    tasks[name] = group.start(self._read(name, tail), name=f"dashboard log of {name}")
                self._log_crowded()
                await asyncio.sleep(_CHECK_S)

    def _log_crowded(self) -> None:
        is_crowded = len(self._views) > _PODS_MAX
        if is_crowded and not self._is_crowded:
            self._add("", f"{len(self._views)} pods: the logs of {_PODS_MAX} are shown")
        self._is_crowded = is_crowded

    async def _read_gone(self, pod: View) -> None:
        """Add the last lines of a deleted pod. A cluster does not store them, so there nothing is added."""
        splitter, lines = LineSplitter(), []
        with contextlib.suppress(ClusterError):
            async with self._source.pod_log(
                pod["namespace"],
                pod["name"],
                container=pod["container"],
                tail_line_count=_TAIL_LINES // len(self._gone_pods),
                follow=False,
            ) as pieces:
                async for piece in pieces:
                    lines += splitter.feed(piece)
        for line in [*lines, *splitter.finish()]:
            self._add(pod["name"], line)
        if lines:
            self._add("", f"{pod['name']} is gone")

    async def _read(self, name: str, tail: int) -> None:
        """Follow one pod across restarts of its container until the pod is deleted."""
        failed_count, is_reported = 0, False
        while (pod := self._views.get(name)) is not None:
            splitter = LineSplitter()
            try:
                async with self._source.pod_log(
                    pod["namespace"], name, container=pod["container"], tail_line_count=tail
                ) as pieces:
                    async for piece in pieces:
                        for line in splitter.feed(piece):
                            self._add(name, line)
                        tail, failed_count, is_reported = 0, 0, False
            except ClusterError as error:
                failed_count += error.status not in _NOT_YET
                needed_count = _FAILED_MAX if isinstance(error, Unavailable) else 1
                if failed_count >= needed_count and not is_reported:
                    is_reported = True
                    self._add("", f"the log of {name} cannot be read: {error}")
                await asyncio.sleep(_CHECK_S)
            else:
                tail = await self._restarted(pod)
            for line in splitter.finish():
                self._add(name, line)

    async def _restarted(self, pod: View) -> int:
        """Wait for the container's next run; return the number of its lines that the reader has not seen."""
        for _ in range(int(_ENDED_S / _CHECK_S)):
            now = self._views.get(pod["name"])
            if now is None or now["restarts"] != pod["restarts"]:
                return _TAIL_LINES
            await asyncio.sleep(_CHECK_S)
        return 0

    def _add(self, pod: str, line: str) -> None:
        self.queue.add(pod, line)
        self.has_lines.set()


def _error(status: int, why: str) -> web.Response:
    return web.Response(status=status, body=_encode({"error": why}), content_type="application/json")
