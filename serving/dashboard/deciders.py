"""Decision streams of all autoscalers: one event stream per address that the autoscaler's name resolves to.

Several autoscalers share the revisions. A headless Service resolves to all of them, and each one streams its own decisions.
An autoscaler without shards redirects to one that has them; the dashboard follows the redirect only if the name has a single
address. A stream that ends is requested again from the time it began, so no decision is lost.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from serving.aio.clock import wall_s
from serving.dashboard.sources import addresses_of

_log = logging.getLogger("dashboard")

_RETRY_S = 1.0
# How often the name is resolved again.
_LOOK_S = 5.0
_TEMPORARY_REDIRECT = 307
_ANSWER_WITHIN_S = 1.5


class Deciders:
    """The streams of one URL, or of several separated by commas. Run it with ``run``.

    ``on_event`` gets the kind (sample, decision) and the content of each event from ``since_s`` (epoch) on.
    """

    def __init__(
        self, session: aiohttp.ClientSession, urls: str, *, since_s: float, on_event: Callable[[str, Any], None]
    ) -> None:
        self._session = session
        self._urls = [URL(one.strip()) for one in urls.split(",") if one.strip()]
        self._since_s = since_s
        self._on_event = on_event
        self._followed: dict[_DecisionSource, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"Deciders({', '.join(sorted(str(one.url) for one in self._followed))})"

    async def run(self) -> None:
        """Follow every autoscaler until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._keep(await self._places(), group)
                await asyncio.sleep(_LOOK_S if self._followed else _RETRY_S)

    async def policies(self, names: Mapping[str, str]) -> list[Mapping[str, Any]]:
        """What the policies of revisions save, of each autoscaler that answers soon; ``names`` narrow it down."""
        answers = await asyncio.gather(*(self._policies_of(place, names) for place in list(self._followed)))
        return [story for stories in answers for story in stories]

    async def _policies_of(self, place: "_DecisionSource", names: Mapping[str, str]) -> list[Mapping[str, Any]]:
        try:
            async with self._session.get(
                place.url.with_name("policies"),
                params=names,
                headers={"Host": place.host},
                allow_redirects=place.is_alone,
                timeout=aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S),
            ) as answer:
                found: list[Mapping[str, Any]] = json.loads(await answer.read()) if answer.ok else []
                return found
        except (aiohttp.ClientError, OSError, ValueError) as error:
            _log.debug("policies.unread", extra={"url": str(place.url), "error": str(error)})
            return []

    async def _places(self) -> set["_DecisionSource"]:
        found: list[tuple[URL, str]] = []
        for url in self._urls:
            try:
                found += [(url.with_host(host) / "decisions", url.authority) for host in await addresses_of(url)]
            except OSError as error:
                _log.debug("autoscaler.unknown", extra={"url": str(url), "error": str(error)})
        return {_DecisionSource(url=url, host=host, is_alone=len(found) == 1) for url, host in found}

    def _keep(self, wanted: set["_DecisionSource"], group: asyncio.TaskGroup) -> None:
        """Follow exactly these sources. A change from one to several restarts all, because redirects are handled differently."""
        for gone in self._followed.keys() - wanted:
            self._followed.pop(gone).cancel()
        for place in wanted - self._followed.keys():
            self._followed[place] = group.create_task(self._follow(place), name=f"follow {place.url}")

    async def _follow(self, place: "_DecisionSource") -> None:
        since_s = self._since_s
        while True:
            began_s = wall_s()
            asked = {"follow": "", "samples": "", "since": f"{since_s}"}
            headers = {"Host": place.host}
            try:
                async with self._session.get(
                    place.url, params=asked, headers=headers, allow_redirects=place.is_alone
                ) as answer:
                    # An autoscaler without shards may receive some later; all their decisions are then new.
                    if answer.status != _TEMPORARY_REDIRECT:
                        answer.raise_for_status()
                        since_s = began_s
                        await self._read(answer.content)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                _log.debug("autoscaler.lost", extra={"url": str(place.url), "error": str(error)})
            await asyncio.sleep(_RETRY_S)

    async def _read(self, lines: aiohttp.StreamReader) -> None:
        event = ""
        async for line in lines:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                event = value
            elif name == "data":
                self._on_event(event, _decoded(value))


class _DecisionSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where one autoscaler is asked, by which Host, and whether it is the only one that is known."""

    url: URL
    host: str
    is_alone: bool


def _decoded(text: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(text)
    return found
