"""Gauges of the app from headers and pages, and their bounds."""

import time

import pytest

from serving.core.model.stat import GAUGES_MAX
from serving.queueproxy.gauges import AppGauges, read_gauges, read_page

WAITING = "vllm:num_requests_waiting"
PAGE = b"""# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a \\"b\\" } 9"} 3.0
vllm:num_requests_waiting{engine="1",model_name="x"} 4
vllm:num_requests_waiting_total{engine="1"} 99
other_vllm:num_requests_waiting 50
vllm:kv_cache_usage_perc 1.5e-1 1712345678000
plain	7"""


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
def test_gauge_header_is_parsed_within_limits(value: bytes, gauges: dict[str, float]) -> None:
    assert read_gauges(value) == gauges


def test_latest_response_with_gauges_counts_for_60_s() -> None:
    app_gauges = AppGauges()
    app_gauges.record_headers(b"Content-Type: text/plain\r\nEndpoint-Load-Metrics: TEXT queue_length=5\r\n", 10.0)
    app_gauges.record_headers(b"Content-Type: text/plain\r\nX-Endpoint-Kind: a\r\n", 11.0)
    app_gauges.record_headers(b"content-type: text/plain\r\nendpoint-load-metrics: TEXT queue_length=6\r\n", 12.0)
    assert app_gauges.current(71.9) == {"queue_length": 6.0}
    assert app_gauges.current(72.0) == {}


def test_header_with_same_prefix_changes_no_gauge() -> None:
    app_gauges = AppGauges()
    app_gauges.record_headers(b"endpoint-load-metrics: TEXT queue_length=5\r\n", 10.0)
    app_gauges.record_headers(b"endpoint-load-metrics-format: TEXT queue_length=6\r\n", 11.0)
    app_gauges.record_headers(b"content-type: text/plain\r\n", 11.0)
    assert app_gauges.current(12.0) == {"queue_length": 5.0}


@pytest.mark.parametrize(
    ("name", "gauges"),
    [
        (WAITING, {WAITING: 7.0}),
        ("vllm:kv_cache_usage_perc", {"vllm:kv_cache_usage_perc": 0.15}),
        ("plain", {"plain": 7.0}),
        ("num_requests_waiting", {}),
        ("absent", {}),
    ],
)
def test_page_is_read_for_chosen_gauges(name: str, gauges: dict[str, float]) -> None:
    assert read_page(PAGE, [name]) == pytest.approx(gauges)


@pytest.mark.parametrize(
    "line",
    [b"NaN", b"+Inf", b"-1", b"1e13", b"1e999", b"many", b"1 2 3", b"", b"0x10", b"1_000"],
)
def test_gauge_with_any_invalid_line_is_omitted(line: bytes) -> None:
    assert read_page(b'g 1\ng{a="b"} %b\n' % line, ["g"]) == {}


@pytest.mark.parametrize(
    "page",
    [
        b'g{a="',
        b"g{" + b"}" * 500_000,
        b'g{a="\\' + b'"\\' * 300_000,
        b"g " * 400_000,
        b"g{" * 400_000,
        b"g" * 900_000,
        b"g 1\n" * 250_000,
    ],
)
def test_hostile_page_is_parsed_in_bounded_cpu_time(page: bytes) -> None:
    began_s = time.process_time()
    assert read_page(page, ["g"]) == {}
    # A parser with quadratic backtracking would take minutes.
    assert time.process_time() - began_s < 10.0


def test_page_counts_for_3_5_s_and_overrides_header() -> None:
    app_gauges = AppGauges(["vllm:waiting"])
    app_gauges.record_headers(b'endpoint-load-metrics: JSON {"named_metrics": {"waiting": 2}}\r\n', 10.0)
    assert app_gauges.current(10.0) == {"vllm:waiting": 2.0, "waiting": 2.0}
    app_gauges.record_page(b"vllm:waiting 5\n", 11.0)
    assert app_gauges.current(12.0) == {"vllm:waiting": 5.0, "waiting": 2.0}
    app_gauges.record_page(b"", 13.0)
    assert app_gauges.current(13.0)["vllm:waiting"] == 2.0
    app_gauges.record_page(b"vllm:waiting 6\n", 70.0)
    assert app_gauges.current(73.4) == {"vllm:waiting": 6.0}
    assert app_gauges.current(73.5) == {}


def test_report_has_chosen_gauges_first_and_bounded_count() -> None:
    app_gauges = AppGauges(["chosen"])
    app_gauges.record_headers(
        b"endpoint-load-metrics: TEXT " + b",".join(b"g%d=1" % number for number in range(16)) + b"\r\n", 0.0
    )
    app_gauges.record_page(b"chosen 1\n", 0.0)
    assert len(app_gauges.current(0.0)) == GAUGES_MAX
    assert next(iter(app_gauges.current(0.0))) == "chosen"
