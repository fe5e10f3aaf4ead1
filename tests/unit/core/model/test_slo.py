"""Latency SLOs: their text form, and the bins of requests."""

import math

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.slo import BINS_BELOW, Slo, SloMeter, add_bins, bin_of, late_sum, quantile_s, read_slo
from serving.core.model.stat import BINS_MAX

P95 = Slo(share=0.95, limit_s=0.3)


def test_slo_is_parsed_for_responses_and_waits() -> None:
    assert read_slo("p95<300ms") == P95
    assert read_slo(" p99.9-wait < 1.5s ") == Slo(share=0.999, limit_s=1.5, is_wait=True)
    assert [read_slo(text).name for text in ("p95<1s", "p99.9-wait<1s")] == ["p95", "p99.9-wait"]


@pytest.mark.parametrize(
    "text",
    ["", "p95", "p95<", "p95<0ms", "p95<300", "p49<1s", "p100<1s", "p95<11m", "95<1s", "p95>1s", "p95-wai<1s", "p95<1s,p99<2s"],
)  # fmt: skip
def test_invalid_slo_is_rejected_with_example(text: str) -> None:
    with pytest.raises(InvalidValue, match="p95<300ms"):
        read_slo(text)


def test_duration_equal_to_limit_is_on_time() -> None:
    assert bin_of(0.3, 0.3) == BINS_BELOW
    assert bin_of(math.nextafter(0.3, 1.0), 0.3) == BINS_BELOW + 1
    assert [bin_of(took_s, 0.3) for took_s in (0.0, 0.01, 1e9, math.inf)] == [0, 0, BINS_MAX - 1, BINS_MAX - 1]


def test_drain_returns_counts_and_resets_meter() -> None:
    meter = SloMeter(P95)
    for took_s in (math.inf, 0.3, 0.31):
        meter.record(took_s)
    bins = meter.drain()
    assert (sum(bins), late_sum(bins), meter.drain()) == (3, 2, ())


def test_bins_of_pods_are_added() -> None:
    assert add_bins((1, 2), (1, 0, 5)) == (2, 2, 5)
    assert add_bins((), (1,)) == add_bins((1,), ()) == (1,)


def test_percentile_is_interpolated_within_its_bin() -> None:
    bins = (*(0,) * (BINS_BELOW - 1), 90, 10)
    assert quantile_s(bins, P95) == pytest.approx(0.3 * 2 ** (-0.5 / 4))
    assert quantile_s((), P95) == 0.0
    assert quantile_s((*(0,) * 20, 10), P95) > P95.limit_s


def test_slo_allows_its_share_of_late_requests() -> None:
    assert P95.allows(5, 100)
    assert not P95.allows(6, 100)
    assert P95.allows(0, 0)
