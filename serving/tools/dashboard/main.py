"""``python -m serving.tools.dashboard.main``: a page with services, pods and scaling reasons, and actions with a token.

Environment:

- ``KUBECONFIG``: the server whose Services, Revisions, Pods and Nodes it follows; without it the cluster it runs in.
- ``SERVING_LISTEN_FDS``: bound sockets by name, ``{"dashboard": 3}``; without it the settings' address.
- ``SERVING_STATE``: the state folder of ``serving up``, in which it keeps history.
- ``SERVING_QUERY_TOKEN_FILE``: the file of the query token, which opens the page and is sent to the other daemons.
- ``SERVING_DASHBOARD_<FIELD>``: each setting of ``serving.core.settings.dashboard`` in its plain unit.
"""

if __name__ == "__main__":
    # Before the slow imports below; see ``serving.net.aio.startup``.
    from serving.net.aio.startup import exit_on_signals

    exit_on_signals()


import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from serving.core.model.errors import Problem, SettingsError
from serving.core.settings.daemons import DAEMONS, DASHBOARD, PLACEMENT
from serving.core.settings.dashboard import DashboardSettings
from serving.core.settings.load import load
from serving.core.settings.placement import PlacementSettings
from serving.net.aio.clock import wall_s
from serving.net.aio.daemon import inherited_sockets, run_daemon
from serving.net.aio.mutualtls import DaemonQueries
from serving.net.aio.output import write_error
from serving.net.aio.startup import report_serving
from serving.net.cluster.kube import connect
from serving.net.cluster.port import Cluster, PodLogSource
from serving.net.metrics.queries import QueryGate
from serving.tools.dashboard.actions import DashboardActions
from serving.tools.dashboard.board import Board
from serving.tools.dashboard.feed import PERIOD_S, Feed
from serving.tools.dashboard.gate import Gate
from serving.tools.dashboard.keeper import HistoryKeeper
from serving.tools.dashboard.logs import LogPages
from serving.tools.dashboard.marks import Mark
from serving.tools.dashboard.scope import read_users
from serving.tools.dashboard.server import Pages, PageSources
from serving.tools.dashboard.viewers import TokenUsers, Viewers
from serving.tools.dashboard.views import View

_HISTORY_S = 3600.0
# 32 characters of base64 are 192 bits.
_TOKEN_LENGTH_MIN = 32
_TOKEN = f"a file with a random text of at least {_TOKEN_LENGTH_MIN} characters"


class InnerQueries:
    """The settings for queries to other daemons.

    ``file`` contains the certificate authority of their TLS; "" means no TLS. The file may appear later, and change.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._authority = ""
        self._queries = DaemonQueries()

    def present(self) -> DaemonQueries:
        """The queries with the current authority. Raises ``OSError`` until the file exists."""
        if self._file and (authority := Path(self._file).read_text(encoding="ascii")) != self._authority:
            self._authority = authority
            self._queries = DaemonQueries.over_tls(authority) if authority else DaemonQueries()
        return self._queries


class Dashboard:
    """The dashboard with its components.

    ``address`` is set when ``is_serving`` becomes set. ``token`` "" disables actions and logs. ``queries`` decides who
    may see the page, and supplies the token for the other daemons; with None all users may see the page.
    ``proxy_secret`` is the secret of an authenticating proxy.
    """

    def __init__(  # noqa: PLR0913 - its settings, its secrets, and where it reads
        self,
        settings: DashboardSettings,
        cluster: Cluster,
        *,
        token: str = "",
        placement: PlacementSettings | None = None,
        logs: PodLogSource | None = None,
        queries: QueryGate | None = None,
        proxy_secret: str = "",
    ) -> None:
        self._settings = settings
        self._board = Board(int(_HISTORY_S / PERIOD_S), placement)
        gate = Gate(token)
        actions = DashboardActions(cluster, gate, activator_address=settings.activator_address)
        self._feed = Feed(
            cluster,
            self._board,
            settings=settings,
            on_tick=self._tick,
            on_decision=self._decided,
            headers=dict if queries is None else queries.headers,
            queries=InnerQueries(settings.inner_authority_file).present,
        )
        file = history_file(settings.history_file, os.environ.get("SERVING_STATE", ""))
        self._keeper = (
            None
            if file is None
            else HistoryKeeper(file, days=settings.history_days, bytes_max=settings.history_bytes_max)
        )
        self._pages = Pages(
            self._board,
            settings,
            is_well=lambda: self._feed.is_synced,
            policies=self._feed.policies,
            actions=actions,
            viewers=Viewers(
                queries,
                header=settings.proxy_user_header,
                secret=proxy_secret,
                users=read_users(settings.proxy_users),
                tokens=TokenUsers(cluster),
            ),
            logs=None
            if logs is None
            else LogPages(logs, gate, pods=self._board.pods_of_service, gone_pods=self._board.gone_pods_of_service),
            keeper=self._keeper,
            sources=PageSources(
                cold_requests=self._feed.cold_requests,
                recorded=self._feed.recorded,
                hosts=self._feed.hosts,
                service=self._feed.service,
            ),
        )
        self.address: tuple[str, int] = ("", 0)
        self.is_serving = asyncio.Event()

    async def run(self, stop: asyncio.Event, *, listener: socket.socket | None = None) -> None:
        """Run until ``stop`` is set. ``listener`` is a bound socket that replaces the address."""
        # The session closes after the server, because open pages send requests during the shutdown.
        async with self._feed.connected() as session, self._served(listener) as self.address:
            self.is_serving.set()
            report_serving()
            try:
                await self._feed.run(stop, session)
            finally:
                if self._keeper is not None:
                    await self._keeper.close(wall_s())

    def _tick(self, at_s: float, rows: dict[str, list[float | None]], marks: list[Mark]) -> None:
        if self._keeper is not None:
            self._keeper.record(at_s, self._board.rows, marks, owners=self._board.owners)
        self._pages.tick(at_s, rows, marks)

    def _decided(self, decision: View) -> None:
        self._pages.decide(decision)

    @contextlib.asynccontextmanager
    async def _served(self, listener: socket.socket | None) -> AsyncIterator[tuple[str, int]]:
        # Pages stay connected indefinitely; closing their connection signals the end.
        runner = web.AppRunner(self._pages.application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        host, _, port = self._settings.address.rpartition(":")
        site = web.SockSite(runner, listener.dup()) if listener else web.TCPSite(runner, host, int(port))
        await site.start()
        try:
            yield runner.addresses[0][:2]
        finally:
            await runner.cleanup()


def history_file(configured: str, state: str) -> Path | None:
    """The history file; None for no file. ``state`` is the state folder of ``serving up``, or ""."""
    if configured == "none" or not (configured or state):
        return None
    return Path(configured) if configured else Path(state) / "history.db"


def read_token(path: str, *, key: str = "token-file") -> str:
    """The token in the file of the setting ``key``; "" without a path.

    Raises:
        SettingsError: when the file is unreadable, or the token is short enough to guess.
    """
    if not path:
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError([Problem(where=f"{key} {path}", what=str(error), expected=_TOKEN)]) from error
    if len(token) < _TOKEN_LENGTH_MIN:
        what = f"the token has {len(token)} characters"
        raise SettingsError([Problem(where=f"{key} {path}", what=what, expected=_TOKEN)])
    return token


def read_proxy_secret(settings: DashboardSettings) -> str:
    """The secret of the authenticating proxy. Raises ``SettingsError``, also if only the user header is set."""
    read_users(settings.proxy_users)
    secret = read_token(settings.proxy_secret_file, key="proxy-secret-file")
    if settings.proxy_user_header and not secret:
        what = "empty beside proxy-user-header, which any client could send"
        raise SettingsError([Problem(where="proxy-secret-file", what=what, expected=_TOKEN)])
    return secret


def main() -> int:
    """Run until a signal; return the exit code."""

    async def body(stop: asyncio.Event) -> None:
        loaded = load(DASHBOARD, registry=DAEMONS, environment=os.environ)
        for problem in loaded.ignored:
            write_error(f"warning: {problem}")
        placement = load(PLACEMENT, registry=DAEMONS, environment=os.environ).settings
        settings = loaded.settings
        token, proxy_secret = read_token(settings.token_file), read_proxy_secret(settings)
        async with connect("dashboard") as cluster:
            queries = QueryGate.of_environment()
            dashboard = Dashboard(
                settings,
                cluster,
                token=token,
                placement=placement,
                logs=cluster,
                queries=queries,
                proxy_secret=proxy_secret,
            )
            await dashboard.run(stop, listener=inherited_sockets().get("dashboard"))

    return run_daemon("dashboard", body)


if __name__ == "__main__":
    sys.exit(main())
