"""A receiver of OTLP over HTTP: an aiohttp server that decodes and stores the protobuf messages."""

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_PROTOBUF = "application/x-protobuf"


class Receiver:
    """The received data: spans, and the latest metrics by daemon and name."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.metrics: dict[str, dict[str, Metric]] = {}
        self._arrived = asyncio.Condition()

    async def traces(self, request: web.Request) -> web.Response:
        """Handle /v1/traces."""
        reported = ExportTraceServiceRequest.FromString(await _body(request))
        async with self._arrived:
            for resource in reported.resource_spans:
                self.services.add(_name(resource.resource.attributes))
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self._arrived.notify_all()
        return web.Response(body=ExportTraceServiceResponse().SerializeToString(), content_type=_PROTOBUF)

    async def numbers(self, request: web.Request) -> web.Response:
        """Handle /v1/metrics."""
        reported = ExportMetricsServiceRequest.FromString(await _body(request))
        async with self._arrived:
            for resource in reported.resource_metrics:
                metrics = self.metrics.setdefault(_name(resource.resource.attributes), {})
                metrics.update({metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics})
            self._arrived.notify_all()
        return web.Response(body=ExportMetricsServiceResponse().SerializeToString(), content_type=_PROTOBUF)

    async def until(self, holds: Callable[[], object], *, within_s: float = 100) -> None:
        """Wait until the received data satisfies a condition."""
        async with asyncio.timeout(within_s), self._arrived:
            await self._arrived.wait_for(lambda: bool(holds()))


@contextlib.asynccontextmanager
async def otlp_receiver() -> AsyncIterator[Receiver]:
    """A receiver on a free port."""
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/v1/traces", receiver.traces)
    app.router.add_post("/v1/metrics", receiver.numbers)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        receiver.url = f"http://{host}:{port}"
        yield receiver
    finally:
        await runner.cleanup()


async def _body(request: web.Request) -> bytes:
    assert request.content_type == _PROTOBUF
    body = await request.read()
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


def _name(attributes: object) -> str:
    by_key = {attribute.key: attribute.value.string_value for attribute in attributes}  # type: ignore[attr-defined] # protobuf's containers
    return f"{by_key['service.namespace']}/{by_key['service.name']}"
