"""Queries activators until they serve a Route as in its status; the Route is then Ready.

Each waiting Route has one task. It sends ``GET /routes/NAMESPACE/NAME`` to every activator, and compares the returned
digest with the Route's (``serving.core.model.routepolicy``). No request is sent while no Route waits.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from http import HTTPStatus

import aiohttp

from serving.controller.routes.confirmation import ActivatorReplies, retry_delay_s
from serving.core.model.identities import ACTIVATOR
from serving.core.model.objects import Key
from serving.net.aio.clock import steady_s
from serving.net.aio.mutualtls import DaemonQueries
from serving.net.aio.supervise import SupervisedTasks, supervise

_log = logging.getLogger(__name__)

_TIMEOUT_S = 2.0
# Retry of a skipped activator, in seconds; it must not delay each Route by the whole timeout.
_SKIPPED_TIMEOUT_S = 0.1
# Parallel queries, over all Routes.
_QUESTIONS_MAX = 64
_HEADERS = {"K-Network-Probe": "route", "User-Agent": "serving-controller"}


class RouteProber:
    """Probes activators. ``confirmed`` is called with a Route and the digest that all activators serve.

    ``addresses`` are HOST:PORT of the current activators.
    """

    def __init__(
        self,
        *,
        addresses: Callable[[], Collection[str]],
        confirmed: Callable[[Key, str], None],
        queries: DaemonQueries | None = None,
    ) -> None:
        self._addresses = addresses
        self._queries = queries or DaemonQueries()
        self._confirmed = confirmed
        self._replies = ActivatorReplies()
        self._waiting: dict[Key, tuple[str, asyncio.Task[None]]] = {}
        self._slots = asyncio.Semaphore(_QUESTIONS_MAX)
        self._group: SupervisedTasks | None = None
        self._session: aiohttp.ClientSession | None = None

    async def run(self) -> None:
        """Query activators until cancelled."""
        # The addresses are pods of this system, so proxies from the environment do not apply.
        async with aiohttp.ClientSession(trust_env=False) as self._session, supervise() as self._group:
            await asyncio.Event().wait()

    def start(self, route: Key, digest: str) -> None:
        """Probe until all activators serve a digest of a Route. Replaces earlier probes for the Route."""
        if self._group is None or (route in self._waiting and self._waiting[route][0] == digest):
            return
        self.forget(route)
        task = self._group.start(self._confirm(route, digest), name=f"confirm-route-{'/'.join(route)}")
        self._waiting[route] = (digest, task)

    def forget(self, route: Key) -> None:
        """Stop the query for a Route."""
        if waiting := self._waiting.pop(route, None):
            waiting[1].cancel()

    async def _confirm(self, route: Key, digest: str) -> None:
        tries, agreed = 0, set[str]()
        while True:
            pending = [address for address in self._addresses() if address not in agreed]
            self._replies.retain([*pending, *agreed])
            results = await asyncio.gather(*(self._serves(address, route, digest) for address in pending))
            agreed |= {address for address, serves in zip(pending, results, strict=True) if serves}
            # Activators that left are not awaited, and new ones are queried.
            if all(address in agreed or self._is_skipped(address) for address in self._addresses()):
                break
            await asyncio.sleep(retry_delay_s(tries))
            tries += 1
        del self._waiting[route]
        self._confirmed(route, digest)

    def _is_skipped(self, address: str) -> bool:
        return self._replies.is_skipped(address, now_s=steady_s())

    async def _serves(self, address: str, route: Key, digest: str) -> bool:
        assert self._session is not None
        was_skipped = self._is_skipped(address)
        timeout = aiohttp.ClientTimeout(total=_SKIPPED_TIMEOUT_S if was_skipped else _TIMEOUT_S)
        try:
            async with (
                self._slots,
                self._session.get(
                    f"{self._queries.scheme}://{address}/routes/{'/'.join(route)}",
                    headers=_HEADERS,
                    timeout=timeout,
                    **self._queries.options(ACTIVATOR),
                ) as response,
            ):
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._replies.record_silence(address, now_s=steady_s())
            if not was_skipped and self._is_skipped(address):
                _log.warning("controller.activator_skipped", extra={"address": address, "error": repr(error)})
            return False
        self._replies.record_reply(address)
        return response.status == HTTPStatus.OK and body == digest.encode()
