"""Spans and metrics of a running ``serving up``, exported over OTLP/HTTP to a real receiver."""

import asyncio
import json
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.e2e.cli_stage import ROOT, staged
from tests.integration.metrics.otlp_receiver import Receiver, otlp_receiver

pytestmark = pytest.mark.timeout(300)

APP = """
import json, os
from http.server import BaseHTTPRequestHandler, HTTPServer

class Echo(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps([[name.lower(), value] for name, value in self.headers.items()]).encode()
        self.send_response(500 if self.path.startswith("/broken") else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Echo).serve_forever()
"""
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
NS = 1_000_000_000


class Client:
    """A client of the echo service."""

    def __init__(self, session: aiohttp.ClientSession, ports: dict[str, int]) -> None:
        self._session, self.ports = session, ports

    async def get(self, path: str, **headers: str) -> list[str]:
        """The traceparent headers that the app received. The activator traces no request before it knows the service."""
        url = f"http://127.0.0.1:{self.ports['public']}{path}"
        while True:
            async with self._session.get(url, headers={"Host": "echo.default.localhost", **headers}) as response:
                if response.status != 404:
                    return [value for name, value in json.loads(await response.text()) if name == "traceparent"]


async def test_cold_request_is_traced_and_all_metrics_are_exported(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(APP)
    async with otlp_receiver() as receiver:
        environment = {
            "SERVING_ACTIVATOR_OTLP_ENDPOINT": receiver.url,
            "SERVING_ACTIVATOR_TRACE_RATIO": "0",
            "SERVING_AUTOSCALER_DECISION_PERIOD_S": "0.5",
            **{
                f"SERVING_{daemon}_OTLP_{name}": value
                for daemon in ("ACTIVATOR", "AUTOSCALER", "CONTROLLER")
                for name, value in (("ENDPOINT", receiver.url), ("METRICS_PERIOD_S", "0.2"))
            },
        }
        system = staged(tmp_path / "state", **environment)
        stage = await asyncio.to_thread(system.__enter__)
        try:
            await deployed(stage.state, tmp_path)
            ports = json.loads((stage.state / "ports.json").read_text())
            async with aiohttp.ClientSession() as session:
                client = Client(session, ports)
                await check_spans_of_cold_request(client, receiver)
                await check_spans_of_failed_warm_request(client, receiver)
                await check_traceparent_of_unsampled_requests(client, receiver)
                await check_exported_metrics_match_pages(
                    session, ports, receiver, token=(stage.state / "query-token").read_text()
                )
        finally:
            await asyncio.to_thread(system.__exit__, None, None, None)


async def deployed(state: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "serving", "deploy", "echo", str(folder), "--initial-scale", "0"]
    run = f"{sys.executable} {folder}/echo.py"
    process = await asyncio.create_subprocess_exec(*command, "--command", run, "--state", str(state), cwd=ROOT)
    assert await process.wait() == 0


async def check_spans_of_cold_request(client: Client, receiver: Receiver) -> None:
    begun_ns = time.time_ns()
    [seen] = await client.get("/a?secret=1", traceparent=SAMPLED)
    ended_ns = time.time_ns()
    await receiver.until(lambda: len(receiver.spans) >= 4)
    spans = {span.name: span for span in receiver.spans}
    assert spans.keys() == {"GET", "queue", "cold start", "upstream"}
    assert receiver.services == {"serving/activator"}
    server, queue, cold, upstream = (spans[name] for name in ("GET", "queue", "cold start", "upstream"))
    assert {span.trace_id.hex() for span in receiver.spans} == {TRACE}
    assert server.parent_span_id.hex() == PARENT
    assert {span.parent_span_id for span in (queue, cold, upstream)} == {server.span_id}
    assert len({span.span_id for span in receiver.spans}) == 4
    assert seen == f"00-{TRACE}-{upstream.span_id.hex()}-01"
    assert (server.kind, queue.kind, upstream.kind) == (
        Span.SPAN_KIND_SERVER,
        Span.SPAN_KIND_INTERNAL,
        Span.SPAN_KIND_CLIENT,
    )
    # The test and the daemon use the clock of the same machine.
    slack_ns = NS // 20
    assert begun_ns - slack_ns <= server.start_time_unix_nano <= server.end_time_unix_nano <= ended_ns + slack_ns
    assert server.start_time_unix_nano == queue.start_time_unix_nano == cold.start_time_unix_nano
    assert cold.end_time_unix_nano <= queue.end_time_unix_nano + slack_ns
    assert queue.end_time_unix_nano == upstream.start_time_unix_nano < upstream.end_time_unix_nano
    assert upstream.end_time_unix_nano == server.end_time_unix_nano
    # The queue span includes the start of a process.
    assert queue.end_time_unix_nano - queue.start_time_unix_nano > NS // 100
    reported = attributes(server)
    assert reported["url.path"] == "/a"
    assert reported["http.response.status_code"] == 200
    assert reported["kn.revision.name"] == "echo-00001"
    assert reported["serving.cold_start"] is True
    receiver.spans.clear()


async def check_spans_of_failed_warm_request(client: Client, receiver: Receiver) -> None:
    [seen] = await client.get("/broken", traceparent=SAMPLED)
    await receiver.until(lambda: len(receiver.spans) >= 2)
    spans = {span.name: span for span in receiver.spans}
    assert spans.keys() == {"GET", "upstream"}
    assert {span.status.code for span in receiver.spans} == {Status.STATUS_CODE_ERROR}
    assert seen.split("-")[2] == spans["upstream"].span_id.hex()
    assert attributes(spans["upstream"])["serving.try.count"] == 1
    receiver.spans.clear()


async def check_traceparent_of_unsampled_requests(client: Client, receiver: Receiver) -> None:
    assert await client.get("/", traceparent=UNSAMPLED) == [UNSAMPLED]
    assert await client.get("/") == []
    # The next, sampled request is exported; the two before are not.
    await client.get("/last", traceparent=SAMPLED)
    await receiver.until(lambda: len(receiver.spans) >= 2)
    assert {attributes(span).get("url.path") for span in receiver.spans} == {"/last", None}


async def check_exported_metrics_match_pages(
    session: aiohttp.ClientSession, ports: dict[str, int], receiver: Receiver, *, token: str
) -> None:
    pages = {"activator": "activator-metrics", "autoscaler": "stats", "control": "control-metrics"}
    await receiver.until(lambda: receiver.metrics.keys() >= {f"serving/{name}" for name in pages})
    for daemon, port in pages.items():
        async with session.get(
            f"http://127.0.0.1:{ports[port]}/metrics",
            headers={"Accept": OPENMETRICS, "Authorization": f"Bearer {token}"},
        ) as response:
            page = await response.text()
        families = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
        with_rows = {name for name in families if f"\n{name}" in page}
        sent = receiver.metrics[f"serving/{daemon}"]
        await receiver.until(lambda sent=sent, with_rows=with_rows: sent.keys() >= with_rows)  # type: ignore[misc]
    metrics = receiver.metrics["serving/activator"]
    durations = metrics["http_server_request_duration_seconds"]
    await receiver.until(lambda: count_of(receiver) == 5)
    assert durations.unit == "s"
    [point] = [
        data_point
        for data_point in receiver.metrics["serving/activator"][
            "http_server_request_duration_seconds"
        ].histogram.data_points
        if "2xx" in {label.value.string_value for label in data_point.attributes}
    ]
    assert point.count == sum(point.bucket_counts) == 4
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert {label.key for label in point.attributes} >= {"kn_revision_name", "k8s_namespace_name"}
    assert metrics["serving_cold_start_duration_seconds"].histogram.data_points[0].count == 1
    assert metrics["serving_wakes"].sum.is_monotonic
    # The next decision is up to half a second away.
    await receiver.until(lambda: desired_of(receiver) == [1.0])


def count_of(receiver: Receiver) -> int:
    points = receiver.metrics["serving/activator"]["http_server_request_duration_seconds"].histogram.data_points
    return sum(point.count for point in points)


def desired_of(receiver: Receiver) -> list[float]:
    points = receiver.metrics["serving/autoscaler"]["kn_revision_pods_desired"].gauge.data_points
    return [point.as_double for point in points]


def attributes(span: Span) -> dict[str, object]:
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in span.attributes
    }
