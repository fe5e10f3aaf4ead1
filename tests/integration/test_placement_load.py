"""The sources of node loads: Prometheus, a load-watcher, and the load-watcher API of the extender."""

import asyncio
import contextlib
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from aiohttp import web

from serving.core.model.errors import InvalidCertificate, InvalidValue, Unavailable
from serving.core.settings.placement import LOAD_WATCHER, PROMETHEUS, LoadSourceSettings, PlacementSettings
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import NODE_METRICS
from serving.nodes.extender.io.loadsources import load_source
from serving.nodes.extender.loadreport import LoadReport
from serving.nodes.placement.scores.metrics import Usage
from tests.integration.test_placement import put, staged

_PROMETHEUS = shutil.which("prometheus") or ""
_TOKEN = "not to be shown"  # noqa: S105 - of a test
HttpResponse = Callable[[web.Request], Awaitable[web.Response]]


@contextlib.asynccontextmanager
async def served(respond: HttpResponse, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """An HTTP server that responds with `respond`; yields its URL."""
    application = web.Application()
    application.router.add_get("/{path:.*}", respond)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def report_of(now_s: float = 100.0, wall_s: float = 10_000.0, **load: Any) -> LoadReport:  # noqa: ANN401 - settings
    settings = PlacementSettings(load=LoadSourceSettings(**load))
    assert list(settings.check()) == []
    async with load_source(settings, MemoryCluster(), lambda _: None) as source:
        return await source.read(now_s, wall_s)


def means(report: LoadReport) -> dict[str, tuple[float | None, float | None]]:
    """Mean cpu and memory by node."""
    return {
        name: tuple(load.mean_percent if isinstance(load, Usage) else None for load in (usage.cpu, usage.memory))  # type: ignore[misc]
        for name, usage in report.usages.items()
    }


def vector(**values: float) -> dict[str, Any]:
    result = [{"metric": {"instance": f"{name}:9100"}, "value": [1.0, str(value)]} for name, value in values.items()]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


async def test_prometheus_query_falls_back_to_a_shorter_window() -> None:
    requests: list[str] = []

    async def respond(request: web.Request) -> web.Response:
        query = request.query["query"]
        requests.append(query)
        if "[15m]" in query:
            body = {
                "status": "error",
                "errorType": "execution",
                "error": "query processing would load too many samples",
            }
            return web.json_response(body, status=422)
        if "memory" in query:
            return web.json_response(vector())
        return web.json_response(vector(a=0.25, b=0.5))

    async with served(respond) as url:
        report = await report_of(source=PROMETHEUS, url=url)
    assert report.window_s == 600
    assert means(report) == {"a": (25.0, None), "b": (50.0, None)}
    assert report.usages["a"].at_s == 100.0
    assert "avg_over_time(instance:node_cpu:ratio[15m])" in requests
    assert "stddev_over_time(instance:node_memory_utilisation:ratio[10m])" in requests


async def test_failed_source_is_reported_without_its_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{_TOKEN}\n")
    seen: list[str | None] = []

    async def respond(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"})

    async with served(respond) as url:
        with pytest.raises(Unavailable, match="status 302") as failure:
            await report_of(source=PROMETHEUS, url=url, token_file=str(tmp_path / "token"))
    assert set(seen) == {f"Bearer {_TOKEN}"}
    assert _TOKEN not in str(failure.value)
    with pytest.raises(Unavailable, match="No such file"):
        await report_of(source=PROMETHEUS, url=url, token_file=str(tmp_path / "none"))


async def test_certificate_is_verified_unless_disabled(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    async def respond(_: web.Request) -> web.Response:
        return web.json_response(vector(a=0.5))

    async with served(respond, context) as url:
        with pytest.raises(Unavailable, match=r"(?i)certificate verify failed"):
            await report_of(source=PROMETHEUS, url=url)
        assert means(await report_of(source=PROMETHEUS, url=url, ca_file=str(tmp_path / "ca.pem"))) == {"a": (50, 50)}
        assert means(await report_of(source=PROMETHEUS, url=url, skip_verify=True)) == {"a": (50, 50)}
        for reason in ("No such file", "certificate"):
            with pytest.raises(InvalidCertificate, match=reason):
                await report_of(source=PROMETHEUS, url=url, ca_file=str(tmp_path / "none.pem"))
            (tmp_path / "none.pem").write_text("nonsense")


async def test_invalid_prometheus_response_raises_invalid_value() -> None:
    async def respond(_: web.Request) -> web.Response:
        return web.Response(text="<html>")

    async with served(respond) as url:
        with pytest.raises(InvalidValue, match="an answer of Prometheus"):
            await report_of(source=PROMETHEUS, url=url)


async def test_failed_query_is_raised_after_the_other_queries_end() -> None:
    begun: list[str] = []
    ended: list[str] = []

    async def respond(request: web.Request) -> web.Response:
        begun.append(request.query["query"])
        if len(begun) % 4 == 1:
            raise web.HTTPServiceUnavailable
        while len(begun) % 4:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        ended.append(request.query["query"])
        return web.json_response(vector())

    async with served(respond) as url:
        with pytest.raises(Unavailable, match="status 503"):
            await report_of(source=PROMETHEUS, url=url)
        assert len(ended) == len(begun) / 4 * 3


async def test_load_watcher_report_has_the_age_of_its_timestamp() -> None:
    body = {
        "timestamp": 9900,
        "window": {"duration": "15m", "start": 9000, "end": 9900},
        "source": "Prometheus",
        "data": {
            "NodeMetricsMap": {
                "a": {"metrics": [{"type": "CPU", "operator": "AVG", "rollup": "15m", "value": 33.0}]},
                "b": {"metrics": None},
            }
        },
    }

    async def respond(request: web.Request) -> web.Response:
        return web.json_response(body) if request.path == "/watcher" else web.Response(status=404)

    async with served(respond) as url:
        report = await report_of(source=LOAD_WATCHER, url=url)
    assert means(report) == {"a": (33.0, None)}
    assert report.usages["a"].at_s == 0.0
    assert report.window_s == 900


async def test_measurements_are_served_in_load_watcher_format() -> None:
    async with staged() as client:
        async with client.session.get(f"{client.url}/watcher") as early:
            assert early.status == 404
        await put(client.cluster, "a")
        body = {
            "apiVersion": "metrics.k8s.io/v1beta1",
            "kind": "NodeMetrics",
            "metadata": {"name": "a"},
            "timestamp": "then",
            "usage": {"cpu": "1", "memory": "2Gi"},
        }
        await client.cluster.create(NODE_METRICS, body)
        async with asyncio.timeout(60):
            while (await client.session.get(f"{client.url}/watcher?host=a")).status != 200:  # noqa: ASYNC110 - as a client would
                await asyncio.sleep(0.01)
        report = await report_of(source=LOAD_WATCHER, url=client.url)
        assert means(report) == {"a": (25.0, 25.0)}
        (entry,) = await client.query("/explain", "a")
        assert 0 <= entry["usage_age_s"] < 60
        assert (await client.session.get(f"{client.url}/watcher?host=b")).status == 404
        assert (await client.session.get(f"{client.url}/watcher/health")).status == 200


@pytest.mark.skipif(not _PROMETHEUS, reason="prometheus is not on PATH: make system-packages")
async def test_real_prometheus_is_queried_for_node_load(tmp_path: Path) -> None:
    async def exporter(_: web.Request) -> web.Response:
        lines = ['instance:node_cpu:ratio{instance="a"} 0.25', 'share_of_memory{node="a"} 0.75', ""]
        return web.Response(text="\n".join(lines))

    # Prometheus does not report a port that the system selected, so it gets a loopback address that is unique to it.
    address = f"127.79.{os.getpid() >> 8 & 255}.{os.getpid() & 255}:9090"
    async with served(exporter) as url:
        job = {
            "job_name": "nodes",
            "honor_labels": True,
            "static_configs": [{"targets": [url.removeprefix("http://")]}],
        }
        # A subquery takes its steps at whole evaluation intervals: with the usual minute it finds nothing before the
        # next one.
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": [job]}
        (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
        options = [f"--config.file={tmp_path}/prometheus.yaml", f"--storage.tsdb.path={tmp_path}/data"]
        process = await asyncio.create_subprocess_exec(
            _PROMETHEUS, *options, f"--web.listen-address={address}", stderr=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(120):
                while True:
                    try:
                        report = await report_of(
                            source=PROMETHEUS,
                            url=f"http://{address}",
                            memory_metric='label_replace(share_of_memory, "instance", "$1", "node", "(.*)") * 1',
                        )
                    except Unavailable:
                        report = None
                    if report is not None and means(report).get("a") == (25.0, 75.0):
                        break
                    await asyncio.sleep(0.1)
        finally:
            process.terminate()
            await process.wait()


async def test_empty_source_yields_no_usages_and_unreachable_source_raises() -> None:
    async def respond(_: web.Request) -> web.Response:
        return web.json_response(vector())

    async with served(respond) as url:
        assert (await report_of(source=PROMETHEUS, url=url)).usages == {}
    with pytest.raises(Unavailable, match="/api/v1/query"):
        await report_of(source=PROMETHEUS, url="http://127.0.0.1:1")
