from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.traffic.latencies import bucket_of
from serving.core.traffic.responsecounts import GrowingCounts, MetricsReading, ResponseCounts, parse

KEY = "default/hello-00001"


def page(counts: dict[float, int], status: str = "2xx", revision: str = "hello-00001") -> str:
    """The lines of a metrics page: the number of requests per duration in seconds."""
    labels = f'namespace="default",revision="{revision}",response_code_class="{status}"'
    return "".join(
        f'serving_request_duration_buckets{{{labels},bucket="{bucket_of(took_s)}"}} {count}\n'
        for took_s, count in counts.items()
    )


def test_invalid_and_unrelated_lines_of_page_are_ignored() -> None:
    waiting = 'serving_requests_waiting{kn_namespace_name="default",kn_revision_name="hello-00001"} 2.0\n'
    other = 'serving_request_duration_buckets{broken\nother{bucket="1"} 3\nserving_requests_waiting{} 9\n'
    assert parse(waiting + other + page({0.1: 3}, "1xx") + page({0.1: 3}, "none") + page({0.1: 3}, "5xx")) == (
        MetricsReading(durations={(KEY, "5"): {bucket_of(0.1): 3.0}}, waiting={KEY: 2.0})
    )


def test_page_without_bucket_label_is_invalid() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse(page({0.1: 3}).replace("bucket=", "le="))


def test_responses_are_counted_since_first_reading_of_each_activator() -> None:
    counts = GrowingCounts(KEY)
    assert counts.add({"a": parse(page({0.1: 100}))}).count == 0
    now = {"a": parse(page({0.1: 103}) + page({0.2: 2}, "5xx")), "b": parse(page({0.1: 50}))}
    assert counts.add(now) == ResponseCounts(count=5, error_count=2, durations={bucket_of(0.1): 3, bucket_of(0.2): 2})
    # Activator a was restarted, and b did not respond.
    response_counts = counts.add({"a": parse(page({0.1: 4}) + page({9.0: 7}, revision="other"))})
    assert (response_counts.count, response_counts.error_count) == (9, 2)
    assert counts.add({"b": parse(page({0.1: 51}))}).count == 10


@given(st.lists(st.tuples(st.sampled_from([0.01, 0.1, 2.0]), st.sampled_from("25")), max_size=30), st.data())
def test_sums_are_independent_of_reading_times(responses: list[tuple[float, str]], data: st.DataObject) -> None:
    counts, total = GrowingCounts(KEY), Counter[tuple[float, str]]()
    counts.add({"a": parse("")})
    seen = ResponseCounts(count=0, error_count=0, durations={})
    for pair in responses:
        total[pair] += 1
        if data.draw(st.booleans()):
            text = "".join(page({took_s: count}, f"{status}xx") for (took_s, status), count in total.items())
            seen = counts.add({"a": parse(text)})
    text = "".join(page({took_s: count}, f"{status}xx") for (took_s, status), count in total.items())
    seen = counts.add({"a": parse(text)})
    assert (seen.count, seen.error_count) == (len(responses), sum(status == "5" for _, status in responses))
