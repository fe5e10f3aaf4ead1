"""Serves ``/compare?name=NAMESPACE/SERVICE``: two revisions of a service side by side, as JSON.

``revision=NAMESPACE/REVISION``, given twice, chooses them; without it those with the most traffic are compared. ``from=`` and ``to=``
are a range as of ``/history``, by default the last hour.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence

from aiohttp import web

from serving.core.model.errors import ServingError
from serving.core.model.objects import Object, name_of
from serving.net.aio.clock import wall_s
from serving.tools.dashboard.board import Board
from serving.tools.dashboard.keeper import HistoryKeeper
from serving.tools.dashboard.responses import LIVE_S, RANGE_MAX_S, UNREAD, json_response_of, range_of

_Rows = dict[str, list[float | None]]


class ComparePage:
    """Compares revisions by the rows of a board and a keeper. ``objects`` returns a Service, or None, and its Revisions."""

    def __init__(
        self,
        board: Board,
        keeper: HistoryKeeper | None,
        *,
        objects: Callable[[str, str], tuple[Object | None, Sequence[Object]]],
        prices: Mapping[str, float],
    ) -> None:
        self._board = board
        self._keeper = keeper
        self._objects = objects
        self._prices = prices

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Respond with a ``RevisionComparison``, or with the reason why there is none."""
        # Few dashboards are asked, and what it imports is otherwise not in their memory.
        from serving.tools.dashboard.compare import chosen_pair, compared  # noqa: PLC0415 - as above

        key, now_s = request.query.get("name", ""), wall_s()
        longest_s = RANGE_MAX_S if self._keeper is None else self._keeper.longest_s
        span_s = range_of(request, now_s, longest_s=longest_s) or (now_s - LIVE_S, now_s)
        namespace, _, name = key.partition("/")
        service, revisions = self._objects(namespace, name)
        if service is None:
            raise web.HTTPNotFound(text=f"{key!r} is no service; expected name=NAMESPACE/SERVICE\n")
        requested = [name.removeprefix(f"{namespace}/") for name in request.query.getall("revision", []) if name]
        try:
            older, newer = chosen_pair(service, revisions, requested)
        except ServingError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        keys = [f"{namespace}/{name_of(revision)}" for revision in (older, newer)]
        before, after = [await self._rows(revision_key, span_s, now_s=now_s) for revision_key in keys]
        # Two weeks are thousands of rows.
        comparison = await asyncio.to_thread(
            compared, service, (older, newer), (before, after), span_s=span_s, prices=self._prices
        )
        return json_response_of(key, comparison)

    async def _rows(self, key: str, span_s: tuple[float, float], *, now_s: float) -> _Rows:
        """The rows of a revision: those of this process, and older ones from the disk."""
        from_s, to_s = span_s
        from_s = max(from_s, self._board.created_s(key))
        live = self._board.history.read(key)
        places = [place for place, at_s in enumerate(live["at_s"]) if from_s <= at_s <= to_s]
        rows = {name: [_known(column[place]) for place in places] for name, column in live.items()}
        until_s = min(to_s, live["at_s"][0] - 1) if live["at_s"] else to_s
        if self._keeper is None or until_s <= from_s:
            return rows
        history = await self._keeper.read(key, from_s=from_s, to_s=until_s, now_s=now_s)
        if history is None:
            raise web.HTTPServiceUnavailable(text=UNREAD)
        return {name: [*history.columns[name], *column] for name, column in rows.items()}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
