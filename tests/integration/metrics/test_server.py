import asyncio
import gc

import pytest
from aiohttp import ClientSession, web

from serving.core.model.errors import SettingsError
from serving.net.metrics.names import ACTIVATOR_METRICS
from serving.net.metrics.page import OPENMETRICS_TYPE, TEXT_TYPE, MetricsPage
from serving.net.metrics.server import measured, serve_page
from tests.eventually import until
from tests.integration.activator_stage import HOST, send_request, staged
from tests.integration.query_token import GATE, HEADERS

TRACE = "0af7651916cd43dd8448eb211c80319c"


async def test_metrics_page_is_served_in_requested_format() -> None:
    page = MetricsPage(ACTIVATOR_METRICS)
    async with (
        serve_page(page, "127.0.0.1:0", gate=GATE) as (host, port),
        ClientSession(f"http://{host}:{port}", headers=HEADERS) as session,
    ):
        async with session.get("/metrics") as response:
            assert response.headers["Content-Type"] == TEXT_TYPE
            assert "process_cpu_seconds_total" in await response.text()
        async with session.get("/metrics", headers={"Accept": OPENMETRICS_TYPE}) as response:
            assert response.headers["Content-Type"] == OPENMETRICS_TYPE
            assert (await response.text()).endswith("# EOF\n")
        async with session.get("/healthz") as response:
            assert await response.text() == "ok\n"


async def test_metrics_server_serves_additional_texts() -> None:
    responses = {"/routes/{namespace}/{name}": lambda parts: "found" if parts["name"] == "hello" else None}
    async with (
        serve_page(MetricsPage(()), "127.0.0.1:0", gate=GATE, texts=responses) as (host, port),
        ClientSession(f"http://{host}:{port}", headers=HEADERS) as session,
        session.get("/routes/default/hello") as response,
        session.get("/routes/default/other") as missing,
    ):
        assert (response.status, await response.text(), missing.status) == (200, "found", 404)


async def test_metrics_require_token_and_probes_do_not() -> None:
    texts, open_texts = {"/private": lambda _: "private"}, {"/open": lambda _: "open"}
    async with (
        serve_page(MetricsPage(()), "127.0.0.1:0", gate=GATE, texts=texts, open_texts=open_texts) as (host, port),
        ClientSession(f"http://{host}:{port}") as session,
    ):
        statuses = {}
        for path in ("/metrics", "/private", "/open", "/healthz"):
            async with session.get(path) as response:
                statuses[path] = response.status
        assert statuses == {"/metrics": 401, "/private": 401, "/open": 200, "/healthz": 200}


async def test_occupied_or_invalid_address_is_reported() -> None:
    async with serve_page(MetricsPage(()), "127.0.0.1:0", gate=GATE) as (host, port):
        with pytest.raises(SettingsError, match=f"{host}:{port}: cannot be listened on"):
            async with serve_page(MetricsPage(()), f"{host}:{port}", gate=GATE):
                pass
    with pytest.raises(SettingsError):
        async with serve_page(MetricsPage(()), "nowhere", gate=GATE):
            pass
    gc.collect()


async def test_api_calls_are_measured_by_verb_and_status() -> None:
    reported: list[tuple[str, int]] = []

    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=201 if request.query else 404)

    app = web.Application(middlewares=[measured(lambda verb, status, _: reported.append((verb, status)))])
    app.router.add_route("*", "/", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    [(host, port)] = runner.addresses
    async with ClientSession(f"http://{host}:{port}", headers=HEADERS) as session:
        for method, target in (("GET", "/"), ("POST", "/?a=1"), ("GET", "/?watch=1"), ("OPTIONS", "/")):
            async with session.request(method, target) as response:
                await response.read()
    await runner.cleanup()
    assert reported == [("GET", 404), ("POST", 201), ("watch", 201), ("other", 404)]


async def test_cold_request_appears_on_activator_metrics_page() -> None:
    async with staged() as stage:
        await stage.service()
        await until(lambda: stage.activator.ingress.router.directory.revision(("default", "hello-00001")))
        task = asyncio.create_task(
            send_request(stage.public, headers=(f"traceparent: 00-{TRACE}-b7ad6b7169203331-01",))
        )
        await until(lambda: stage.level)
        await stage.pod("one")
        assert (await task).status == 200
        await send_request(stage.public, host=f"no.{HOST}")
        page = stage.activator.ingress.metrics.page.text(OPENMETRICS_TYPE)
    for line in (
        'response_code_class="2xx"} 1.0',
        f'trace_id="{TRACE}"',
        'serving_cold_start_duration_seconds_count{k8s_namespace_name="default"',
        'reason="first"} 1.0',
        "serving_requests_unmatched_total 1.0",
    ):
        assert line in page


@pytest.mark.parametrize(("host", "status"), [("evil.example", 421), ("activator.ns.svc:9090", 200), ("[::1]:1", 200)])
async def test_foreign_host_header_is_rejected_with_421(host: str, status: int) -> None:
    page = MetricsPage(ACTIVATOR_METRICS)
    async with serve_page(page, "127.0.0.1:0", gate=GATE) as (address, port), ClientSession() as session:
        for path in ("metrics", "healthz"):
            async with session.get(f"http://{address}:{port}/{path}", headers=HEADERS | {"Host": host}) as response:
                assert response.status == status
