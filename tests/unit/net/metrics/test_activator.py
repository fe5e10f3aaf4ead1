import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from serving.core.traffic.latencies import FINE_DURATIONS, FINE_TYPE
from serving.core.traffic.prefixes import PrefixMatch
from serving.net.aio.clock import now_s, wall_s
from serving.net.metrics.activator import ActivatorMetrics

KEY = ("default", "hello-00001")
LABELS = 'k8s_namespace_name="default",kn_configuration_name="hello",kn_revision_name="hello-00001"'
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01".encode()
OPEN = "application/openmetrics-text"


def new_metrics(*keys: tuple[str, str]) -> ActivatorMetrics:
    return ActivatorMetrics(
        configuration_of=lambda _: "hello",
        keys=lambda: keys,
        inside=lambda: [(KEY, 3, 2)],
        lost_frames=lambda: 7,
    )


def test_requests_are_counted_by_status_class_with_incoming_trace() -> None:
    metrics = new_metrics(KEY)
    rows = metrics.of(KEY)
    rows.ended(200, 0.3, at_s=1.0, traceparent=PARENT)
    rows.ended(204, 0.3, at_s=1.0, traceparent=b"")
    rows.ended(0, 0.3, at_s=1.0, traceparent=b"")
    rows.ended(999, 0.3, at_s=1.0, traceparent=b"")
    page = metrics.page.text(OPEN)
    for by_class, count in (("2xx", 2.0), ("none", 1.0), ("5xx", 1.0)):
        assert (
            f'http_server_request_duration_seconds_count{{{LABELS},response_code_class="{by_class}"}} {count}' in page
        )
    assert f'# {{trace_id="{TRACE}"}} 0.3' in page


def test_request_histograms_have_parseable_exemplars() -> None:
    metrics = new_metrics(KEY)
    rows = metrics.of(KEY)
    rows.ended(200, 0.3, at_s=1.0, traceparent=PARENT)
    rows.waited(0.2, traceparent=PARENT)
    rows.waited(0.003, traceparent=b"no trace")
    rows.started_cold(0.2, rows.cold_turn, at_s=1.0, traceparent=PARENT)
    result: dict[str, set[tuple[str, float]]] = {}
    for family in text_string_to_metric_families(metrics.page.text(OPEN)):
        for sample in family.samples:
            if sample.exemplar is not None:
                results = (sample.exemplar.labels["trace_id"], sample.exemplar.value)
                result.setdefault(family.name, set()).add(results)
                assert sample.name == f"{family.name}_bucket"
                assert sample.exemplar.value <= float(sample.labels["le"])
    assert result == {
        "http_server_request_duration_seconds": {(TRACE, 0.3)},
        "serving_request_queue_seconds": {(TRACE, 0.2)},
        "serving_cold_start_duration_seconds": {(TRACE, 0.2)},
    }
    # The older format has no place for them.
    assert TRACE not in metrics.page.text("")


def test_cold_start_is_counted_once_for_all_waiting_requests() -> None:
    metrics = new_metrics(KEY)
    rows = metrics.of(KEY)
    turn = rows.cold_turn
    for _ in range(5):
        rows.started_cold(0.4, turn, at_s=1.4)
    rows.started_cold(0.2, rows.cold_turn, at_s=2.2)
    assert f"serving_cold_start_duration_seconds_count{{{LABELS}}} 2.0" in metrics.page.text("")


def test_prefix_matches_are_counted_as_hits_and_misses() -> None:
    metrics = new_metrics(KEY)
    rows = metrics.of(KEY)
    rows.matched(PrefixMatch(known_count=3, block_count=8))
    rows.matched(PrefixMatch(known_count=0, block_count=2))
    rows.is_gone = True
    rows.matched(PrefixMatch(known_count=1, block_count=1))
    page = metrics.page.text("")
    for name, result, count in (
        ("requests", "hit", 1),
        ("requests", "miss", 1),
        ("blocks", "known", 3),
        ("blocks", "new", 7),
    ):
        assert f'serving_prefix_{name}_total{{{LABELS},result="{result}"}} {count}.0' in page


def test_refusals_wakes_queue_times_and_gauges_are_reported() -> None:
    metrics = new_metrics(KEY)
    rows = metrics.of(KEY)
    rows.refused("waited")
    rows.woken("flip")
    rows.waited(0.1)
    page = metrics.page.text("")
    for line in (
        f'serving_requests_refused_total{{{LABELS},reason="waited"}} 1.0',
        f'serving_wakes_total{{{LABELS},reason="flip"}} 1.0',
        f"serving_request_queue_seconds_count{{{LABELS}}} 1.0",
        f"kn_revision_request_concurrency{{{LABELS}}} 3.0",
        f"serving_requests_waiting{{{LABELS}}} 2.0",
        "serving_stat_frames_lost_total 7.0",
    ):
        assert line in page


def test_fine_durations_page_has_only_fine_durations_and_queue_length() -> None:
    metrics = new_metrics(KEY)
    rows = metrics.of(KEY)
    rows.ended(200, 0.1, at_s=1.0, traceparent=b"")
    rows.woken("flip")
    heads = [line for line in metrics.page.text(FINE_TYPE).splitlines() if line.startswith("# TYPE")]
    assert heads == [f"# TYPE {FINE_DURATIONS} gauge", "# TYPE serving_requests_waiting gauge"]


def test_rows_of_deleted_revisions_are_dropped() -> None:
    metrics = new_metrics()
    metrics.of(("default", "gone")).ended(200, 0.1, at_s=1.0, traceparent=b"")
    rows = metrics.of(("default", "going"))
    assert "gone" not in metrics.page.text("")
    rows.ended(200, 0.1, at_s=1.0, traceparent=b"")
    rows.waited(0.1)
    rows.started_cold(0.1, 0, at_s=1.1)
    rows.refused("waited")
    rows.woken("flip")
    assert "going" not in metrics.page.text("")
    for index in range(1000):
        metrics.of(("default", f"r{index}"))
    assert len(metrics._rows) < 102


async def test_cold_starts_of_a_namespace_are_the_last_20_with_epoch_times() -> None:
    metrics = new_metrics(KEY, ("shop", "x-00001"))
    rows = metrics.of(KEY)
    at_s = now_s()
    for number in range(30):
        rows.started_cold(0.25, rows.cold_turn, at_s=at_s + number)
    metrics.of(("shop", "x-00001")).started_cold(0.5, 0, at_s=at_s)
    document = msgspec.json.decode(metrics.cold_starts({"namespace": "default"}))
    assert len(document) == 20
    assert {(entry["revision"], entry["waited_s"]) for entry in document} == {("hello-00001", 0.25)}
    # The clocks were read a moment apart.
    assert document[-1]["asked_s"] - wall_s() == pytest.approx(at_s - now_s() + 29 - 0.25, abs=1.0)
    assert metrics.cold_starts({"namespace": "other"}) == "[]"
