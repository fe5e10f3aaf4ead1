import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics

from serving.net.metrics.activator import Durations, trace_id_of
from serving.net.metrics.names import BUCKETS_S

TRACE = "0af7651916cd43dd8448eb211c80319c"
OTHER = "1af7651916cd43dd8448eb211c80319d"


def parent(trace: str) -> bytes:
    return f"00-{trace}-b7ad6b7169203331-01".encode()


@given(st.lists(st.floats(0, 100) | st.sampled_from(BUCKETS_S)))
def test_samples_equal_prometheus_client_histogram(times_s: list[float]) -> None:
    disable_created_metrics()
    registry = CollectorRegistry()
    reference = Histogram("took_seconds", "Time.", ["of"], registry=registry, buckets=BUCKETS_S).labels("a")
    durations = Durations()
    for took_s in times_s:
        reference.observe(took_s)
        durations.record(took_s, at_s=0.0)
    (family,) = registry.collect()
    assert list(durations.samples("took_seconds", {"of": "a"})) == family.samples


def test_bucket_has_one_exemplar_per_second() -> None:
    row = Durations(clock=lambda: 1_000.0)
    row.record(0.3, at_s=5.0, traceparent=parent(TRACE))
    row.record(0.4, at_s=5.9, traceparent=parent(OTHER))
    row.record(3.0, at_s=5.9, traceparent=parent(OTHER))
    result = {
        samples.exemplar.labels["trace_id"]: samples.exemplar for samples in row.samples("a", {}) if samples.exemplar
    }
    assert {trace: values.value for trace, values in result.items()} == {TRACE: 0.3, OTHER: 3.0}
    assert result[TRACE].timestamp == 1_000.0
    row.record(0.4, at_s=6.0, traceparent=parent(OTHER))
    assert [samples.exemplar.value for samples in row.samples("a", {}) if samples.exemplar] == [0.4, 3.0]


def test_invalid_traceparent_does_not_occupy_exemplar() -> None:
    row = Durations()
    row.record(0.3, at_s=5.0, traceparent=b"nonsense")
    row.record(0.3, at_s=5.0, traceparent=parent(TRACE))
    assert [samples.exemplar.labels for samples in row.samples("a", {}) if samples.exemplar] == [{"trace_id": TRACE}]


@pytest.mark.parametrize(
    ("text", "trace"), [(f"00-{TRACE}-b7ad6b7169203331-01", TRACE), (f"00-{TRACE}", None), ("", None)]
)
def test_trace_id_is_read_from_valid_traceparent_only(text: str, trace: str | None) -> None:
    assert trace_id_of(text.encode()) == trace
