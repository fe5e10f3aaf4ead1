import random
from types import SimpleNamespace

from serving.net.metrics.spans import Traced, spans_of
from serving.net.metrics.tracing import Tracer

TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
SAMPLED = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def tracer(ratio: float) -> Tracer:
    return Tracer(ratio, send=lambda _: None, draw=random.Random(1).getrandbits)


def test_incoming_traceparent_determines_sampling_and_trace() -> None:
    request_trace = tracer(0.0).begin(SAMPLED)
    assert request_trace is not None
    assert (request_trace.trace_id, request_trace.parent_id) == (TRACE, PARENT)
    assert request_trace.traceparent == b"00-0af7651916cd43dd8448eb211c80319c-%016x-01" % request_trace.upstream_id
    assert tracer(1.0).begin(SAMPLED[:-2] + b"00") is None


def test_requests_without_parent_are_sampled_by_ratio_with_new_traces() -> None:
    some = tracer(0.1)
    request_traces = [
        request_trace for request_trace in (some.begin(b"") for _ in range(10_000)) if request_trace is not None
    ]
    assert 850 < len(request_traces) < 1150
    assert len({request_trace.trace_id for request_trace in request_traces}) == len(request_traces)
    assert {request_trace.parent_id for request_trace in request_traces} == {0}
    assert tracer(0.0).begin(b"") is None
    assert all(tracer(1.0).begin(b"no traceparent") is not None for _ in range(100))


def test_trace_and_span_ids_are_never_zero() -> None:
    request_trace = Tracer(1.0, send=lambda _: None, draw=lambda _: 0).begin(b"")
    assert request_trace is not None
    assert (request_trace.trace_id, request_trace.server_id, request_trace.upstream_id) == (1, 1, 1)


def test_ended_request_is_reported_without_query_string() -> None:
    sent: list[Traced] = []
    traces = Tracer(1.0, send=sent.append)
    trace = traces.begin(b"")
    assert trace is not None
    head = SimpleNamespace(method=b"GET", host=b"h.example", target=b"/a?password=1")
    ended = SimpleNamespace(head=head, upstream_text="127.0.0.1:1", started_s=1.0)
    traces.end(trace, ended, key=("default", "hello-00001"), status=200, try_count=2, at_s=3.0)
    [traced] = sent
    assert (traced.path, traced.host, traced.method, traced.try_count, traced.ended_s - traced.started_s) == (
        "/a",
        "h.example",
        "GET",
        2,
        2,
    )
    assert "password" not in repr(spans_of(traced))
