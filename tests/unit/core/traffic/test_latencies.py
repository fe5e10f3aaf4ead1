import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.traffic.latencies import bucket_of, quantile_s

RATIOS = (0.0, 0.5, 0.95, 0.99, 1.0)


@given(st.lists(st.floats(2e-6, 9e5), min_size=1), st.sampled_from(RATIOS))
def test_quantile_error_is_at_most_2_percent(durations_s: list[float], ratio: float) -> None:
    estimated_s = quantile_s(Counter(map(bucket_of, durations_s)), ratio)
    true_s = sorted(durations_s)[max(math.ceil(ratio * len(durations_s)) - 1, 0)]
    assert estimated_s == pytest.approx(true_s, rel=0.02)


@given(st.lists(st.floats(0, 100)), st.lists(st.floats(0, 100)), st.sampled_from(RATIOS))
def test_quantile_of_merged_counts_equals_quantile_of_all_durations(
    some_s: list[float], more_s: list[float], ratio: float
) -> None:
    merged = Counter(map(bucket_of, some_s)) + Counter(map(bucket_of, more_s))
    assert quantile_s(merged, ratio) == quantile_s(Counter(map(bucket_of, some_s + more_s)), ratio)


@pytest.mark.parametrize("duration_s", [0.0, -1.0, math.inf, 1e9])
def test_number_of_buckets_is_bounded(duration_s: float) -> None:
    assert -353 <= bucket_of(duration_s) <= 353


def test_empty_counts_have_no_quantile() -> None:
    assert quantile_s({}, 0.5) is None
    assert quantile_s({3: 0.0}, 0.5) is None


def test_duration_of_2500_ms_is_reported_within_2_percent() -> None:
    assert quantile_s({bucket_of(2.5): 10.0}, 0.5) == pytest.approx(2.5, rel=0.02)
