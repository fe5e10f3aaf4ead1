"""Reads node loads from the configured source, and creates a ``LoadReport``.

Each call is one attempt; the next follows a period later. A failing source raises ``Unavailable``, and invalid data
raise ``InvalidValue``; the messages never contain the token. The token is read from its file for each call. Redirects
are not followed, because they would disclose the token.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import aiohttp
import msgspec

from serving.core.model.errors import InvalidCertificate, InvalidValue, Unavailable
from serving.core.settings.placement import (
    METRICS_SERVER,
    PROMETHEUS,
    LoadSourceSettings,
    PlacementSettings,
)
from serving.net.cluster.kinds import NODE_METRICS
from serving.net.cluster.port import Cluster
from serving.nodes.extender.loadreport import (
    WINDOWS_S,
    LoadReport,
    node_usages,
    queries,
    read_vector,
    read_watcher_body,
)
from serving.nodes.placement.book import NodeFacts, NodeLoads
from serving.nodes.placement.scores.metrics import NodeUsage


class LoadSource(Protocol):
    """Measures all nodes. ``now_s`` is the monotonic time that scores use, ``wall_s`` is seconds since the epoch."""

    async def read(self, now_s: float, wall_s: float) -> LoadReport:
        """Read one report. Raises ``ClusterError`` or ``InvalidValue``."""
        ...


class _MetricsServer:
    """The cluster's metrics.k8s.io. Mean and deviation are computed from its latest single measurements."""

    def __init__(self, settings: PlacementSettings, cluster: Cluster, node: Callable[[str], NodeFacts | None]) -> None:
        self._settings = settings
        self._cluster = cluster
        self._node = node
        self._loads = NodeLoads(settings.load_samples_max)

    async def read(self, now_s: float, wall_s: float) -> LoadReport:
        """Implement ``LoadSource.read``."""
        listing = await self._cluster.list(NODE_METRICS)
        usages = self._loads.update(listing.items, self._node, now_s)
        window_s = self._settings.load_period_s * self._settings.load_samples_max
        return LoadReport(source="KubernetesMetricsServer", at_s=wall_s, window_s=window_s, usages=usages)


class _Caller:
    def __init__(self, settings: LoadSourceSettings, session: aiohttp.ClientSession) -> None:
        self.settings = settings
        self._session = session

    async def get(self, path: str, parameters: Mapping[str, str], *, accepted: tuple[int, ...] = (200,)) -> bytes:
        """The body of a response. Raises ``Unavailable``."""
        where = f"{self.settings.address}{path}"
        try:
            headers = await asyncio.to_thread(self._headers)
            async with self._session.get(where, params=parameters, headers=headers, allow_redirects=False) as response:
                body = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise Unavailable(f"{where}: {str(error) or type(error).__name__}") from error
        if response.status not in accepted:
            raise Unavailable(f"{where}: status {response.status}")
        return body

    def _headers(self) -> dict[str, str]:
        path = self.settings.token_file
        token = Path(path).read_text().strip() if path else ""
        return {"Authorization": f"Bearer {token}"} if token else {}


def _body(response: bytes | BaseException) -> bytes:
    if isinstance(response, BaseException):
        raise response
    return response


class _PrometheusSource:
    """A source with PromQL queries over HTTP. A wide window may exceed the server's limit of samples."""

    def __init__(self, caller: _Caller) -> None:
        self._caller = caller

    async def read(self, now_s: float, wall_s: float) -> LoadReport:
        """Read the load with the widest window that has data (see ``LoadSource.read``)."""
        failure: Exception | None = None
        for window_s in WINDOWS_S:
            try:
                usages = await self._usages(window_s, now_s)
            except (Unavailable, InvalidValue) as error:
                failure = failure or error
                continue
            if usages:
                return LoadReport(source="Prometheus", at_s=wall_s, window_s=window_s, usages=usages)
        if failure is not None:
            raise failure
        return LoadReport(source="Prometheus", at_s=wall_s, window_s=WINDOWS_S[-1], usages={})

    async def _usages(self, window_s: float, now_s: float) -> dict[str, NodeUsage]:
        settings = self._caller.settings
        texts = queries(settings, window_s)
        calls = (
            self._caller.get("/api/v1/query", {"query": text}, accepted=(200, 400, 422)) for text in texts.values()
        )
        # All calls end before a failure is reported, because the session closes after this read.
        responses = await asyncio.gather(*calls, return_exceptions=True)
        vectors = {key: read_vector(_body(response), settings) for key, response in zip(texts, responses, strict=True)}
        return node_usages(vectors, at_s=now_s)


class _WatcherSource:
    def __init__(self, caller: _Caller, settings: PlacementSettings) -> None:
        self._caller = caller
        self._settings = settings

    async def read(self, now_s: float, wall_s: float) -> LoadReport:
        """Implement ``LoadSource.read``. The service chooses the window."""
        body = await self._caller.get("/watcher", {})
        report = read_watcher_body(body, quirks=self._settings.quirks)
        # Its timestamps are wall-clock time, but scores measure age on a monotonic clock.
        at_s = now_s - max(0.0, wall_s - report.at_s)
        usages = {name: msgspec.structs.replace(usage, at_s=at_s) for name, usage in report.usages.items()}
        return msgspec.structs.replace(report, usages=usages)


@asynccontextmanager
async def load_source(
    settings: PlacementSettings, cluster: Cluster, node: Callable[[str], NodeFacts | None]
) -> AsyncIterator[LoadSource]:
    """The configured load source; ``node`` finds a node by name. Raises ``InvalidCertificate`` for an invalid CA."""
    load = settings.load
    if load.source == METRICS_SERVER:
        yield _MetricsServer(settings, cluster, node)
        return
    timeout = aiohttp.ClientTimeout(total=load.timeout_s)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=_context(load))) as session:
        caller = _Caller(load, session)
        yield _PrometheusSource(caller) if load.source == PROMETHEUS else _WatcherSource(caller, settings)


def _context(settings: LoadSourceSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise InvalidCertificate(where=settings.ca_file, reason=error.strerror or str(error)) from error
    if settings.skip_verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
