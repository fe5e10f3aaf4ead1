"""Reads the activators' response counts during checked rollouts, and judges the new revisions.

During a checked rollout all activators are read each 2 s; otherwise none is read. Counts begin with the first reading,
so a restarted controller judges only later responses.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

import aiohttp

from serving.controller.routes.rolloutcheck import RolloutJudgement, judge
from serving.core.model.identities import ACTIVATOR
from serving.core.model.objects import Key
from serving.core.model.rolloutcheck import RolloutWatch
from serving.core.traffic.latencies import FINE_TYPE
from serving.core.traffic.responsecounts import GrowingCounts, MetricsReading, parse
from serving.net.aio.clock import steady_s
from serving.net.aio.mutualtls import DaemonQueries

_log = logging.getLogger(__name__)

_PERIOD_S = 2.0
_TIMEOUT_S = 2.0


class RolloutWatcher:
    """Judges new revisions of Routes. ``judged`` is called with a Route's verdicts by revision.

    ``addresses`` are the activators' metrics pages, which are read with ``headers``.
    """

    def __init__(
        self,
        *,
        addresses: Callable[[], Collection[str]],
        headers: Callable[[], Mapping[str, str]],
        judged: Callable[[Key, Mapping[str, RolloutJudgement]], None],
        queries: DaemonQueries | None = None,
    ) -> None:
        self._queries = queries or DaemonQueries()
        self._addresses = addresses
        self._headers = headers
        self._judged = judged
        self._watched: dict[Key, RolloutWatch] = {}
        self._counts: dict[tuple[Key, str], tuple[float, GrowingCounts]] = {}
        self._is_needed = asyncio.Event()

    def update(self, route: Key, watch: RolloutWatch | None) -> None:
        """Start judging the rollouts of a Route, or stop with None."""
        if watch is None:
            self._watched.pop(route, None)
        else:
            self._watched[route] = watch
            self._is_needed.set()
        watched = () if watch is None else watch.revisions
        for place in [count for count in self._counts if count[0] == route and count[1] not in watched]:
            del self._counts[place]

    async def run(self) -> None:
        """Read and judge until cancelled."""
        async with aiohttp.ClientSession(trust_env=False, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
            while True:
                if not self._watched:
                    self._is_needed.clear()
                    await self._is_needed.wait()
                readings = await asyncio.gather(*(self._read(session, address) for address in self._addresses()))
                self._judge(
                    {source: page for source, page in readings if page is not None},
                    is_whole=bool(readings) and all(page is not None for _, page in readings),
                )
                await asyncio.sleep(_PERIOD_S)

    def _judge(self, pages: Mapping[str, MetricsReading], *, is_whole: bool) -> None:
        now_s = steady_s()
        for route, watch in list(self._watched.items()):
            judgements = {}
            for name in watch.revisions:
                initial = (now_s, GrowingCounts(f"{route[0]}/{name}"))
                begun_s, counts = self._counts.setdefault((route, name), initial)
                seen = counts.add(pages)
                may_wait = now_s - begun_s < watch.wait_max_s
                judgements[name] = judge(watch.check, seen if is_whole else None, may_wait=may_wait)
            self._judged(route, judgements)

    async def _read(self, session: aiohttp.ClientSession, address: str) -> tuple[str, MetricsReading | None]:
        headers = {"Accept": FINE_TYPE, **self._headers()}
        url, options = f"{self._queries.scheme}://{address}/metrics", self._queries.options(ACTIVATOR)
        try:
            async with session.get(url, headers=headers, **options) as response:
                response.raise_for_status()
                return address, parse(await response.text("utf-8"))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            _log.warning("controller.responses-unknown", extra={"address": address, "error": str(error)})
            return address, None
