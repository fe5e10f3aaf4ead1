"""Counts and durations of a pod's requests, as text."""

from serving.queueproxy.metrics import BOUNDS_S, AppResponses, RequestMetrics, refusal_lines, series, tls_lines


def test_requests_are_counted_by_status_class() -> None:
    metrics = RequestMetrics()
    for status in (200, 204, 404, 0, 503, 799):
        metrics.record(status, 0.01)
    assert metrics.counts() == {"none": 1, "1xx": 0, "2xx": 2, "3xx": 0, "4xx": 1, "5xx": 2}


def test_duration_counts_in_its_bucket_and_all_larger_ones() -> None:
    metrics = RequestMetrics()
    metrics.record(200, 0.03)
    lines = metrics.page(revision="r")
    start = 'kn_serving_invocation_duration_seconds_bucket{kn_revision_name="r",status_class="2xx",le='
    values = [line.rpartition(" ")[2] for line in lines if line.startswith(start)]
    below_count = sum(bound_s < 0.03 for bound_s in BOUNDS_S)
    assert values == ["0"] * below_count + ["1"] * (len(BOUNDS_S) + 1 - below_count)
    assert 'kn_serving_invocation_duration_seconds_sum{kn_revision_name="r",status_class="2xx"} 0.03' in lines
    assert 'kn_serving_invocation_duration_seconds_count{kn_revision_name="r",status_class="2xx"} 1' in lines


def test_status_class_without_requests_has_no_histogram() -> None:
    assert not [line for line in RequestMetrics().page(revision="r") if "bucket" in line]


def test_status_above_599_counts_in_histogram_of_5xx() -> None:
    metrics = RequestMetrics()
    metrics.record(500, 1.0)
    metrics.record(999, 2.0)
    lines = metrics.page(revision="r")
    assert 'kn_serving_invocation_duration_seconds_count{kn_revision_name="r",status_class="5xx"} 2' in lines
    assert 'kn_serving_invocation_duration_seconds_sum{kn_revision_name="r",status_class="5xx"} 3' in lines


def test_series_has_only_labels_that_are_set() -> None:
    assert series("a_total", 3, revision="r") == 'a_total{kn_revision_name="r"} 3'


def test_pop_responses_returns_count_and_mean_since_last_call() -> None:
    metrics = RequestMetrics()
    assert metrics.pop_responses() == AppResponses(count=0, mean_s=0.0)
    metrics.record(200, 0.25)
    metrics.record(404, 0.75)
    assert metrics.pop_responses() == AppResponses(count=2, mean_s=0.5)
    metrics.record(200, 2.0)
    assert metrics.pop_responses() == AppResponses(count=1, mean_s=2.0)
    assert metrics.pop_responses() == AppResponses(count=0, mean_s=0.0)


def test_failed_and_aborted_requests_are_excluded_from_mean_duration() -> None:
    metrics = RequestMetrics()
    for status in (500, 503, 0):
        metrics.record(status, 0.001)
    assert metrics.pop_responses() == AppResponses(count=0, mean_s=0.0)


def test_inner_tls_page_has_refused_handshakes_and_expiry() -> None:
    assert tls_lines({"no certificate": 2, "expired": 1}, 1e9) == [
        'queueproxy_tls_refused_total{reason="expired"} 1',
        'queueproxy_tls_refused_total{reason="no certificate"} 2',
        "queueproxy_certificate_expiry_timestamp_seconds 1000000000",
    ]


def test_refusal_page_has_a_line_per_code() -> None:
    lines = refusal_lines({"host": 2, "body": 1})
    assert lines == ['queueproxy_http_refused_total{code="body"} 1', 'queueproxy_http_refused_total{code="host"} 2']
