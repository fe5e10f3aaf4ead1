"""Sends spans and metrics as OTLP over HTTP. Only this module imports opentelemetry (extra ``serving[otel]``).

``serving.net.metrics.export`` imports this module if there is an endpoint. Spans arrive here complete, and metrics are
those of ``prometheus_client``. So the module uses only OpenTelemetry's records and exporters, and no global provider,
instrumentation or context. Its code runs in an outbox's thread and may block. Exporters read further options from the
environment, such as OTEL_EXPORTER_OTLP_HEADERS.
"""

import logging
import os
import socket
from collections.abc import Iterable, Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from serving import __version__
from serving.net.aio.clock import wall_s
from serving.net.metrics.spans import Span, Traced, spans_of
from serving.net.metrics.spans import SpanKind as Kind

# A missing receiver is logged once per abandoned batch, not at each attempt.
logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)

_SCOPE = InstrumentationScope("serving", __version__)
_KINDS = {Kind.SERVER: SpanKind.SERVER, Kind.INTERNAL: SpanKind.INTERNAL, Kind.CLIENT: SpanKind.CLIENT}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)
_NS_PER_S = 1_000_000_000
_SECONDS = "_seconds"
_INFINITE = "+Inf"


class SpanSender:
    """Sends spans of one daemon. ``endpoint`` is the receiver's base URL."""

    def __init__(self, endpoint: str, *, service: str, instance: str, timeout_s: float) -> None:
        self._exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=timeout_s)
        self._resource = _resource(service, instance)

    def send(self, ended: Sequence[Traced]) -> None:
        """Send the spans of ended requests; the exporter retries within its timeout and logs failures."""
        self._exporter.export(
            [
                self._readable(span, traced.ended_wall_s - traced.ended_s)
                for traced in ended
                for span in spans_of(traced)
            ]
        )

    def _readable(self, span: Span, offset_s: float) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context=_context(span.trace_id, span.span_id, is_remote=False),
            parent=_context(span.trace_id, span.parent_id, is_remote=span.kind is Kind.SERVER)
            if span.parent_id
            else None,
            resource=self._resource,
            attributes=span.attributes,
            kind=_KINDS[span.kind],
            status=_ERROR if span.is_error else _UNSET,
            start_time=int((span.start_s + offset_s) * _NS_PER_S),
            end_time=int((span.end_s + offset_s) * _NS_PER_S),
            instrumentation_scope=_SCOPE,
        )


class MetricSender:
    """Sends the metric families of one daemon's page under their names and labels."""

    def __init__(self, endpoint: str, *, service: str, instance: str, timeout_s: float) -> None:
        self._exporter = OTLPMetricExporter(endpoint=f"{endpoint.rstrip('/')}/v1/metrics", timeout=timeout_s)
        self._resource = _resource(service, instance)
        self._begun_ns = int(wall_s() * _NS_PER_S)

    def send(self, pages: Sequence[Sequence[Family]]) -> None:
        """Send only the latest of several pages, because each page has totals since the start."""
        now_ns = int(wall_s() * _NS_PER_S)
        metrics = [self._metric(family, now_ns) for family in pages[-1] if family.samples]
        scope = ScopeMetrics(scope=_SCOPE, metrics=metrics, schema_url="")
        resource = ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")
        self._exporter.export(MetricsData(resource_metrics=[resource]))

    def _metric(self, family: Family, now_ns: int) -> Metric:
        unit = "s" if family.name.endswith(_SECONDS) else "1"
        data: Gauge | Sum | Histogram
        if family.type == "histogram":
            points = list(self._histograms(family.samples, now_ns))
            data = Histogram(data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE)
        elif family.type == "counter":
            data = Sum(
                data_points=self._numbers(family.samples, now_ns),
                aggregation_temporality=AggregationTemporality.CUMULATIVE,
                is_monotonic=True,
            )
        else:
            data = Gauge(data_points=self._numbers(family.samples, now_ns))
        return Metric(name=family.name, description=family.documentation, unit=unit, data=data)

    def _numbers(self, samples: Iterable[Sample], now_ns: int) -> list[NumberDataPoint]:
        return [
            NumberDataPoint(
                attributes=sample.labels, start_time_unix_nano=self._begun_ns, time_unix_nano=now_ns, value=sample.value
            )
            for sample in samples
        ]

    def _histograms(self, samples: Iterable[Sample], now_ns: int) -> Iterable[HistogramDataPoint]:
        below: list[int] = []
        bounds: list[float] = []
        for sample in samples:
            if sample.name.endswith("_bucket"):
                below.append(int(sample.value))
                if sample.labels["le"] != _INFINITE:
                    bounds.append(float(sample.labels["le"]))
            elif sample.name.endswith("_sum"):
                yield HistogramDataPoint(
                    attributes=sample.labels,
                    start_time_unix_nano=self._begun_ns,
                    time_unix_nano=now_ns,
                    count=below[-1],
                    sum=sample.value,
                    bucket_counts=[count - before for count, before in zip(below, [0, *below], strict=False)],
                    explicit_bounds=bounds,
                    # Unknown values are not sent.
                    min=None,  # type: ignore[arg-type]
                    max=None,  # type: ignore[arg-type]
                )
                below, bounds = [], []


def _context(trace_id: int, span_id: int, *, is_remote: bool) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=is_remote, trace_flags=_SAMPLED)


def _resource(service: str, instance: str) -> Resource:
    # OTEL_RESOURCE_ATTRIBUTES adds further attributes.
    return Resource.create(
        {
            "service.namespace": "serving",
            "service.name": service,
            "service.version": __version__,
            "service.instance.id": f"{instance or socket.gethostname()}:{os.getpid()}",
        }
    )
