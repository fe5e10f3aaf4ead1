"""Queries of the dashboard and the controller over inner TLS, with a recorder of the traffic in between."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from serving.controller.io.rollout_watcher import RolloutWatcher
from serving.controller.io.route_prober import RouteProber
from serving.core.model.identities import ACTIVATOR, AUTOSCALER, PodIdentity
from serving.net.aio.mutualtls import DaemonQueries
from serving.net.metrics.page import MetricsPage
from serving.net.metrics.server import serve_page
from serving.net.proxy.tls.connector import RefusalLog
from serving.net.proxy.tls.front import TlsFront
from serving.net.wire.authority import Authority
from serving.net.wire.issuing import DaemonTls
from serving.tools.dashboard.deciders import Deciders, read_pages
from serving.tools.dashboard.main import InnerQueries
from tests.eventually import until
from tests.integration.activator_stage import KEY
from tests.integration.inner_stage import SETTINGS, Relay, secured
from tests.integration.query_token import GATE, HEADERS

CERTIFICATE = Authority(KEY).certificate
QUERIES = DaemonQueries.over_tls(CERTIFICATE)
TOKEN = HEADERS["Authorization"].encode()
ROUTE = ("default", "hello")
POD = PodIdentity(namespace="default", revision="thief-00001", pod="thief-1").spiffe_id


@contextlib.asynccontextmanager
async def paged(identity: str = ACTIVATOR, *, key: bytes = KEY) -> AsyncIterator[Relay]:
    """The metrics page of a daemon behind a recording relay; it accepts TLS and plain connections."""
    tls = DaemonTls(key, identity, SETTINGS).tls
    tls.make_certificates_optional()
    refusals = RefusalLog(tls)
    page = serve_page(
        MetricsPage(()),
        "127.0.0.1:0",
        gate=GATE,
        open_texts={"/routes/{namespace}/{name}": lambda _: "digest"},
        front=lambda make: TlsFront(tls.server, make, refusals=refusals),
    )
    relay = Relay()
    async with page as relay.target, relay.running():
        yield relay


def url_of(relay: Relay, path: str = "/metrics") -> str:
    return "http://{}:{}{}".format(*relay.address, path)


async def test_dashboard_reads_activator_metrics_without_cleartext() -> None:
    async with paged() as relay, aiohttp.ClientSession() as session:
        assert len(await read_pages(session, url_of(relay), headers=HEADERS, queries=lambda: QUERIES)) == 1
        assert [word for word in (b"GET /", b"HTTP/1.1", TOKEN) if word in relay.text] == []
        async with session.get(url_of(relay), headers=HEADERS) as plain:
            assert plain.status == 200
        assert TOKEN in relay.text
        async with session.get(url_of(relay).replace("http", "https"), **QUERIES.options(ACTIVATOR)) as response:
            assert response.status == 401


@pytest.mark.parametrize(
    ("identity", "key"), [(AUTOSCALER, KEY), (POD, KEY), (ACTIVATOR, bytes(32))], ids=["autoscaler", "pod", "other key"]
)
async def test_query_token_is_sent_only_to_the_expected_identity(identity: str, key: bytes) -> None:
    async with paged(identity, key=key) as relay, aiohttp.ClientSession() as session:
        with pytest.raises(OSError, match="certificate"):
            await read_pages(session, url_of(relay), headers=HEADERS, queries=lambda: QUERIES)
        assert TOKEN not in relay.text


async def test_dashboard_follows_decisions_without_cleartext() -> None:
    async with secured() as inner, aiohttp.ClientSession() as session:
        before = len(inner.to_autoscaler.recorded)
        url = url_of(inner.to_autoscaler, "")
        deciders = Deciders(
            session, url, since_s=0.0, on_event=lambda *_: None, headers=lambda: HEADERS, queries=lambda: QUERIES
        )
        following = asyncio.create_task(deciders.run())
        await until(lambda: any(stats_connection.is_follower for stats_connection in inner.stats._all))
        following.cancel()
        assert len(inner.to_autoscaler.recorded) > before
        assert [word for word in (b"GET /", b"HTTP/1.1", TOKEN) if word in inner.to_autoscaler.text] == []


@pytest.mark.parametrize(
    ("path", "scheme", "headers", "status"),
    [
        *(("/decisions", "https", HEADERS, 200), ("/policies", "https", HEADERS, 200)),
        *(("/metrics", "https", HEADERS, 200), ("/metrics", "http", HEADERS, 200)),
        *(("/decisions", "https", {}, 401), ("/metrics", "http", {}, 401)),
        ("/stats?activator=a", "https", HEADERS, 403),
    ],
)
async def test_query_token_authorizes_queries_at_autoscaler(
    path: str, scheme: str, headers: dict[str, str], status: int
) -> None:
    async with secured() as inner, aiohttp.ClientSession() as session:
        url = f"{scheme}://127.0.0.1:{inner.stats_address[1]}{path}"
        options = QUERIES.options(AUTOSCALER) if scheme == "https" else {}
        async with session.get(url, headers=headers, **options) as response:
            assert response.status == status, await response.text()


async def test_controller_queries_activators_without_cleartext() -> None:
    confirmed: list[str] = []
    async with paged() as relay:
        addresses = ["{}:{}".format(*relay.address)]
        prober = RouteProber(
            addresses=lambda: addresses, confirmed=lambda _, digest: confirmed.append(digest), queries=QUERIES
        )
        watcher = RolloutWatcher(
            addresses=lambda: addresses, headers=lambda: HEADERS, judged=lambda *_: None, queries=QUERIES
        )
        probing = asyncio.create_task(prober.run())
        await until(lambda: prober._group is not None)
        prober.start(ROUTE, "digest")
        await until(lambda: confirmed == ["digest"])
        probing.cancel()
        async with aiohttp.ClientSession() as session:
            assert (await watcher._read(session, addresses[0]))[1] is not None
        assert [word for word in (b"GET /", b"HTTP/1.1", TOKEN) if word in relay.text] == []


def test_authority_file_is_read_when_it_appears_or_changes(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    queries = InnerQueries(str(file))
    with pytest.raises(FileNotFoundError):
        queries.present()
    file.write_text(CERTIFICATE)
    daemon_queries = queries.present()
    assert daemon_queries.scheme == "https"
    assert queries.present() is daemon_queries
    file.write_text(Authority(os.urandom(32)).certificate)
    assert queries.present() is not daemon_queries
    file.write_text("")
    assert queries.present().scheme == InnerQueries("").present().scheme == "http"
