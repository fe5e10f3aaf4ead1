"""Decision streams of all autoscalers: one event stream per address of the autoscaler's host name.

Several autoscalers share the revisions. A headless Service resolves to all of them, and each streams its decisions.
An autoscaler without shards redirects to another one; the dashboard follows the redirect only if the name has a single
address. A new request for an ended stream starts at the end of the old one, so no decision is lost.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from serving.core.model.identities import ACTIVATOR, AUTOSCALER
from serving.core.traffic.latencies import FINE_TYPE
from serving.net.aio.clock import wall_s
from serving.net.aio.mutualtls import DaemonQueries
from serving.net.aio.periodic import next_beat
from serving.net.aio.supervise import SupervisedTasks, supervise

_RESPONSE_MAX_S = 1.5
_PAGE_BYTES_MAX = 32 * 2**20

_log = logging.getLogger("dashboard")

_RETRY_S = 1.0
# Interval for resolving the name again.
_CHECK_S = 5.0
_TEMPORARY_REDIRECT = 307
# The session's limit.
_NO_LIMIT = aiohttp.ClientTimeout(total=None, connect=5)

# Half of the CPU of ``json``, for some 17 events of 3 KiB in a pod's life.
_EVENT = msgspec.json.Decoder(Mapping[str, Any])
_STORIES = msgspec.json.Decoder(list[Mapping[str, Any]])


async def read_pages(
    session: aiohttp.ClientSession,
    urls: str,
    *,
    path: str = "",
    headers: Mapping[str, str] = MappingProxyType({}),
    queries: Callable[[], DaemonQueries] = DaemonQueries,
) -> dict[str, str]:
    """Read the metrics pages at ``urls`` (comma-separated), or other pages at ``path``; return texts by address.

    ``headers`` are sent with each query. ``queries`` returns the settings for queries to activators.

    Raises:
        OSError: when no name resolves, no activator responds, or the certificate authority is unknown.
    """
    secured = queries()
    bases = [URL(address.strip()) for address in urls.split(",") if address.strip()]
    bases = [base.with_path(path) for base in bases] if path else bases
    resolved = await asyncio.gather(*(addresses_of(url) for url in bases), return_exceptions=True)
    errors = [error for error in resolved if isinstance(error, BaseException)]
    places = [
        (url, url.with_host(host).with_scheme(secured.scheme))
        for url, hosts in zip(bases, resolved, strict=True)
        if not isinstance(hosts, BaseException)
        for host in hosts
    ]
    responses = await asyncio.gather(
        *(_read(session, place, {**headers, "Host": url.authority}, secured=secured) for url, place in places),
        return_exceptions=True,
    )
    errors += [response for response in responses if isinstance(response, BaseException)]
    pages = {str(place): page for (_, place), page in zip(places, responses, strict=True) if isinstance(page, str)}
    for error in errors:
        # Any other exception is a bug and is raised.
        if not isinstance(error, aiohttp.ClientError | OSError):
            raise error
    if errors and not pages:
        raise OSError(f"no activator's metrics can be read: {errors[0]}") from errors[0]
    return pages


async def addresses_of(url: URL) -> list[str]:
    """The addresses of a URL's host. Only one address family is used, because both lead to the same process.

    Raises ``OSError`` if the host is unknown.
    """
    with contextlib.suppress(ValueError):
        # The resolver would use a thread for it.
        return [str(ipaddress.ip_address(url.host or ""))]
    infos = await asyncio.get_running_loop().getaddrinfo(url.host or "", url.port or 80, type=socket.SOCK_STREAM)
    family = socket.AF_INET if any(info[0] == socket.AF_INET for info in infos) else socket.AF_INET6
    return sorted({str(info[4][0]) for info in infos if info[0] == family})


async def _read(
    session: aiohttp.ClientSession, place: URL, headers: Mapping[str, str], *, secured: DaemonQueries
) -> str:
    limit = aiohttp.ClientTimeout(total=_RESPONSE_MAX_S)
    # Uncompressed: the dashboard reads the page every two seconds, from the same machine or the same cluster.
    wanted = {**headers, "Accept": FINE_TYPE, "Accept-Encoding": "identity"}
    async with session.get(place, headers=wanted, timeout=limit, **secured.options(ACTIVATOR)) as response:
        response.raise_for_status()
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > _PAGE_BYTES_MAX:
                raise OSError(f"the page of {place} is larger than {_PAGE_BYTES_MAX} bytes")
    return body.decode()


class Deciders:
    """Reads the streams of decisions of all autoscalers at one or more comma-separated URLs.

    ``on_event`` is called with the kind (sample, decision) and the content of each event since ``since_s`` (epoch).
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        urls: str,
        *,
        since_s: float,
        on_event: Callable[[str, Any], None],
        headers: Callable[[], Mapping[str, str]] = dict,
        queries: Callable[[], DaemonQueries] = DaemonQueries,
    ) -> None:
        self._session = session
        self._headers = headers
        self._queries = queries
        self._urls = [URL(url.strip()) for url in urls.split(",") if url.strip()]
        self._since_s = since_s
        self._on_event = on_event
        self._followed: dict[_DecisionSource, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Watch every autoscaler until cancelled."""
        async with supervise() as group:
            while True:
                self._update_watches(await self._places(), group)
                await next_beat(_CHECK_S if self._followed else _RETRY_S)

    async def policies(self, names: Mapping[str, str]) -> list[Mapping[str, Any]]:
        """Fetch the policies' savings from each autoscaler that responds; ``names`` filter the result."""
        responses = await asyncio.gather(*(self._policies_of(place, names) for place in list(self._followed)))
        return [story for stories in responses for story in stories]

    async def _policies_of(self, place: "_DecisionSource", names: Mapping[str, str]) -> list[Mapping[str, Any]]:
        try:
            limit = aiohttp.ClientTimeout(total=_RESPONSE_MAX_S)
            async with self._query(place, "policies", names, limit=limit) as response:
                return _STORIES.decode(await response.read()) if response.ok else []
        except (aiohttp.ClientError, OSError, ValueError) as error:
            _log.debug("policies.unread", extra={"url": str(place.url), "error": str(error)})
            return []

    @contextlib.asynccontextmanager
    async def _query(
        self,
        place: "_DecisionSource",
        name: str,
        params: Mapping[str, str],
        *,
        limit: aiohttp.ClientTimeout = _NO_LIMIT,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Query a source. With a single source, follow a redirect and keep the token, which aiohttp would drop."""
        secured = self._queries()
        options: dict[str, Any] = {"allow_redirects": False, "timeout": limit, **secured.options(AUTOSCALER)}
        url, own = place.url.with_name(name).with_scheme(secured.scheme), {**self._headers(), "Host": place.host}
        async with self._session.get(url, params=params, headers=own, **options) as response:
            if response.status != _TEMPORARY_REDIRECT or not place.is_alone:
                yield response
                return
            there = URL(response.headers.get("Location", ""), encoded=True)
        async with self._session.get(there, headers=self._headers(), **options) as response:
            yield response

    async def _places(self) -> set["_DecisionSource"]:
        places: list[tuple[URL, str]] = []
        for url in self._urls:
            try:
                places += [(url.with_host(host) / "decisions", url.authority) for host in await addresses_of(url)]
            except OSError as error:
                _log.debug("autoscaler.unknown", extra={"url": str(url), "error": str(error)})
        return {_DecisionSource(url=url, host=host, is_alone=len(places) == 1) for url, host in places}

    def _update_watches(self, wanted: set["_DecisionSource"], group: SupervisedTasks) -> None:
        """Start watches of new sources, and cancel the watches of sources that are no longer ``wanted``.

        A single source is another source (``is_alone``) than the same URL among several.
        """
        for gone in self._followed.keys() - wanted:
            self._followed.pop(gone).cancel()
        for place in wanted - self._followed.keys():
            self._followed[place] = group.start(self._watch(place), name=f"follow {place.url}")

    async def _watch(self, place: "_DecisionSource") -> None:
        since_s = self._since_s
        while True:
            began_s = wall_s()
            params = {"follow": "", "samples": "", "since": f"{since_s}"}
            try:
                async with self._query(place, "decisions", params) as response:
                    # An autoscaler without shards may receive some later; all their decisions are then new.
                    if response.status != _TEMPORARY_REDIRECT:
                        response.raise_for_status()
                        since_s = began_s
                        await self._read(response.content)
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
                self._on_event(event, _EVENT.decode(value))


class _DecisionSource(msgspec.Struct, frozen=True, kw_only=True):
    """The URL and Host header of one autoscaler. ``is_alone``: there is no other autoscaler."""

    url: URL
    host: str
    is_alone: bool
