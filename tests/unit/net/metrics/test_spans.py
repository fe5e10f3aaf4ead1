import msgspec
import pytest

from serving.net.metrics.spans import RequestTrace, Span, SpanKind, Traced, spans_of

TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


def new_trace() -> RequestTrace:
    return RequestTrace(trace_id=TRACE, parent_id=PARENT, server_id=2, upstream_id=3)


def traced(of: RequestTrace, *, status: int = 200, upstream: str = "10.0.0.1:8012", try_count: int = 1) -> Traced:
    return Traced(
        trace=of,
        namespace="default",
        revision="hello-00001",
        method="GET",
        host="hello.example",
        path="/a",
        status=status,
        upstream=upstream,
        try_count=try_count,
        started_s=10.0,
        ended_s=14.0,
        ended_wall_s=1014.0,
    )


def by_name(spans: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


def test_request_with_ready_pod_has_server_and_upstream_spans() -> None:
    spans = spans_of(traced(new_trace()))
    assert [(span.name, span.kind) for span in spans] == [("GET", SpanKind.SERVER), ("upstream", SpanKind.CLIENT)]
    server, upstream = spans
    assert (server.parent_id, server.span_id, upstream.parent_id, upstream.span_id) == (PARENT, 2, 2, 3)
    assert (upstream.start_s, upstream.end_s) == (server.start_s, server.end_s) == (10.0, 14.0)
    assert upstream.attributes["server.port"] == 8012
    assert server.attributes["http.response.status_code"] == 200
    assert not server.is_error


def test_cold_request_has_queue_and_cold_start_spans() -> None:
    request_trace = new_trace()
    request_trace.is_queued, request_trace.is_cold, request_trace.granted_s, request_trace.cold_until_s = (
        True,
        True,
        13.0,
        12.0,
    )
    spans = by_name(spans_of(traced(request_trace)))
    times = {name: (span.start_s, span.end_s) for name, span in spans.items()}
    assert times == {"GET": (10.0, 14.0), "queue": (10.0, 13.0), "cold start": (10.0, 12.0), "upstream": (13.0, 14.0)}
    # A cold start that ended before the request arrived has a duration of zero, not a negative one.
    request_trace.cold_until_s = 9.0
    cold = by_name(spans_of(traced(request_trace)))["cold start"]
    assert cold.start_s == cold.end_s == 10.0


def test_retries_share_one_upstream_span() -> None:
    at_once, waiting = new_trace(), new_trace()
    waiting.is_queued = True
    for request_trace in (at_once, waiting):
        request_trace.grant(11.0)
        request_trace.grant(12.0)
    times = [by_name(spans_of(traced(trace, try_count=2)))["upstream"].start_s for trace in (at_once, waiting)]
    assert times == [10.0, 11.0]


def test_refused_request_has_error_spans_and_reason() -> None:
    request_trace = new_trace()
    request_trace.is_queued, request_trace.is_cold, request_trace.refused = True, True, "waited"
    spans = by_name(spans_of(traced(request_trace, status=503, upstream="")))
    assert spans.keys() == {"GET", "queue", "cold start"}
    assert all(span.is_error and span.end_s == 14.0 for span in spans.values())
    assert spans["GET"].attributes["serving.refused"] == "waited"


@pytest.mark.parametrize(("status", "is_error"), [(0, True), (200, False), (404, False), (500, True), (502, True)])
def test_missing_and_5xx_responses_are_error_spans(status: int, is_error: bool) -> None:
    spans = spans_of(traced(new_trace(), status=status, try_count=3))
    assert {span.is_error for span in spans} == {is_error}
    assert spans[1].attributes["serving.try.count"] == 3
    assert ("http.response.status_code" in spans[0].attributes) is bool(status)


@pytest.mark.parametrize(
    ("host", "address", "port"),
    [
        ("h.example", "h.example", None),
        ("h.example:81", "h.example", 81),
        ("[::1]", "::1", None),
        ("[::1]:82", "::1", 82),
    ],
)
def test_host_is_split_into_address_and_port_attributes(host: str, address: str, port: int | None) -> None:
    server = spans_of(msgspec.structs.replace(traced(new_trace()), host=host))[0]
    assert (server.attributes["server.address"], server.attributes.get("server.port")) == (address, port)


def test_span_id_is_never_zero() -> None:
    assert all(span.span_id for span in spans_of(traced(new_trace()), draw=lambda _: 0))
