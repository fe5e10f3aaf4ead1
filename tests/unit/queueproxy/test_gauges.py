"""Gauges that an app reports in a header of its answers."""

import pytest

from serving.queueproxy.gauges import AppGauges, read_gauges


@pytest.mark.parametrize(
    ("value", "gauges"),
    [
        (b"TEXT queue_length=12, named_metrics.gpu=0.4", {"queue_length": 12.0, "gpu": 0.4}),
        (b"queue_length=3", {"queue_length": 3.0}),
        (
            b'JSON {"cpu_utilization": 0.5, "named_metrics": {"queue_length": 7}}',
            {"cpu_utilization": 0.5, "queue_length": 7.0},
        ),
        (b"JSON {broken", {}),
        (b'JSON {"queue_length": "many"}', {}),
        (b"TEXT queue_length", {}),
        (b"TEXT queue_length=nan, a=inf, b=-1, c=1e13, d=2", {"d": 2.0}),
        (b"TEXT 1a=1, a b=1, %s=1" % (b"n" * 64), {}),
        (b"TEXT " + b",".join(b"g%d=1" % number for number in range(40)), {f"g{number}": 1.0 for number in range(16)}),
    ],
)
def test_a_header_is_read_within_bounds(value: bytes, gauges: dict[str, float]) -> None:
    assert read_gauges(value) == gauges


def test_the_latest_answer_with_gauges_counts_for_a_minute() -> None:
    found = AppGauges()
    found.take(b"Content-Type: text/plain\r\nEndpoint-Load-Metrics: TEXT queue_length=5\r\n", 10.0)
    found.take(b"Content-Type: text/plain\r\nX-Endpoint-Kind: a\r\n", 11.0)
    found.take(b"content-type: text/plain\r\nendpoint-load-metrics: TEXT queue_length=6\r\n", 12.0)
    assert found.current(71.9) == {"queue_length": 6.0}
    assert found.current(72.0) == {}
    assert repr(found) == "AppGauges({'queue_length': 6.0})"
