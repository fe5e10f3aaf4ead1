import bisect
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.dashboard.requests import MetricsReading, RequestRates, Requests, parse, quantile
from serving.metrics.names import BUCKETS_S

KEY = "default/hello-00001"
LABELS = 'kn_namespace_name="default",kn_revision_name="hello-00001"'

RATIOS = (0.5, 0.95, 0.99)
# Seconds: exponential, log-normal and of several stages, as servers answer; the worst error that each p95 and p99 may have.
SHAPES: dict[str, tuple[Callable[[random.Random], float], float]] = {
    "exponential 100 ms": (lambda dice: dice.expovariate(10), 0.06),
    "exponential 30 ms": (lambda dice: dice.expovariate(33), 0.25),
    "log-normal 80 ms": (lambda dice: dice.lognormvariate(math.log(0.08), 0.5), 0.12),
    "log-normal 300 ms": (lambda dice: dice.lognormvariate(math.log(0.3), 0.4), 0.15),
    "two stages 20 ms": (lambda dice: dice.gammavariate(2, 0.02), 0.30),
    "long tail": (lambda dice: 0.02 * dice.paretovariate(1.8), 0.05),
}


def page(*counts: int, status: str = "200", family: str = "http_server_request_duration_seconds") -> str:
    bounds = ("0.1", "0.2", "0.4", "+Inf")
    return "".join(
        f'{family}_bucket{{{LABELS},http_response_status_code="{status}",le="{bound}"}} {count}\n'
        for bound, count in zip(bounds, counts, strict=True)
    )


def test_the_first_reading_says_nothing() -> None:
    assert Requests().read({"a": page(1, 2, 3, 4)}, 0.0) == {}


def test_answers_a_second_and_quantiles_are_those_since_the_reading_before() -> None:
    requests = Requests()
    requests.read({"a": page(1000, 1000, 1000, 1000)}, 10.0)
    found = requests.read({"a": page(1050, 1100, 1100, 1100) + page(0, 0, 0, 10, status="503")}, 12.0)[KEY]
    assert found.rates == (50.0, 0.0, 0.0, 5.0)
    # 110 answers, of which the 55th is the 5th of 50 between 0.1 and 0.2 s; the last ten are beyond the last bound.
    counts = [(0.1, 50.0), (0.2, 100.0), (0.4, 100.0), (math.inf, 110.0)]
    assert found.quantiles_s == pytest.approx((quantile(counts, 0.5), 0.4, 0.4))


def test_a_reset_counter_counts_from_zero() -> None:
    requests = Requests()
    requests.read({"a": page(90, 90, 90, 90)}, 0.0)
    assert requests.read({"a": page(4, 4, 4, 4)}, 2.0)[KEY].rates[0] == 2.0


def test_what_waits_at_all_activators_is_added_up_from_the_first_reading_on() -> None:
    waiting = f"serving_requests_waiting{{{LABELS}}} "
    found = Requests().read({"a": f"{waiting}2.0", "b": f"{waiting}3.0\nserving_requests_waiting{{}} 9"}, 0.0)
    assert found == {KEY: RequestRates(waiting=5.0)}


def test_several_activators_are_added_up_and_one_that_comes_back_makes_no_spike() -> None:
    requests = Requests()
    requests.read({"a": page(100, 100, 100, 100), "b": page(0, 0, 0, 0)}, 0.0)
    found = requests.read({"a": page(110, 110, 110, 110), "b": page(0, 30, 30, 30)}, 2.0)[KEY]
    assert found.rates[0] == 20.0
    # The 20th of 40 is the 10th of 30 between 0.1 and 0.2 s.
    counts = [(0.1, 10.0), (0.2, 40.0), (0.4, 40.0), (math.inf, 40.0)]
    assert found.quantiles_s[0] == pytest.approx(quantile(counts, 0.5))
    assert requests.read({"a": page(114, 114, 114, 114)}, 4.0)[KEY].rates[0] == 2.0
    back = {"a": page(118, 118, 118, 118), "b": page(0, 900, 900, 900)}
    assert requests.read(back, 6.0)[KEY].rates[0] == 2.0


def test_nothing_new_has_no_latency() -> None:
    requests = Requests()
    requests.read({"a": page(9, 9, 9, 9)}, 0.0)
    assert requests.read({"a": page(9, 9, 9, 9)}, 2.0) == {
        KEY: RequestRates(rates=(0, 0, 0, 0), quantiles_s=(None, None, None))
    }
    assert requests.read({"a": page(9, 9, 9, 9)}, 2.0) == {}


def test_other_names_of_the_same_thing_are_understood_and_others_left_out() -> None:
    old = (
        'activator_request_latencies_bucket{namespace_name="a",revision_name="b",response_code_class="5xx",le="+Inf"} 3\n'
        'activator_request_latencies_bucket{namespace_name="a",response_code_class="5xx",le="+Inf"} 3\n'
        'activator_request_latencies_bucket{namespace_name="a",revision_name="b",response_code_class="1xx",le="+Inf"} 3\n'
        '# HELP x y\nother_bucket{le="1"} 3\n'
    )
    assert parse(old) == MetricsReading(buckets={("a/b", "5"): {float("inf"): 3.0}}, waiting={})


def histogram(values: list[float]) -> list[tuple[float, float]]:
    values = sorted(values)
    return [(bound, float(bisect.bisect_right(values, bound))) for bound in (*BUCKETS_S, math.inf)]


def straight(counts: list[tuple[float, float]], ratio: float) -> float:
    """The quantile by Prometheus' formula."""
    rank, low, passed = ratio * counts[-1][1], 0.0, 0.0
    for bound, count in counts:
        if count >= rank:
            return low + (bound - low) * (rank - passed) / (count - passed)
        low, passed = bound, count
    raise AssertionError


@pytest.mark.parametrize("name", SHAPES)
def test_latencies_as_servers_have_them_come_out_nearer_than_on_a_straight_line(name: str) -> None:
    shape, error_max = SHAPES[name]
    dice = random.Random(1)
    values = sorted(shape(dice) for _ in range(20_000))
    counts, errors, straight_errors = histogram(values), [], []
    for ratio in (0.95, 0.99):
        true = values[math.ceil(ratio * len(values)) - 1]
        found = quantile(counts, ratio)
        assert found is not None
        errors.append(abs(found / true - 1))
        straight_errors.append(abs(straight(counts, ratio) / true - 1))
    assert max(errors) < error_max
    assert sum(errors) < 0.7 * sum(straight_errors)


@given(st.lists(st.floats(0.0001, 50.0), min_size=1), st.sampled_from(RATIOS))
def test_a_quantile_is_in_the_bucket_where_it_lies_and_more_is_never_less(values: list[float], ratio: float) -> None:
    counts = histogram(values)
    true = sorted(values)[math.ceil(ratio * len(values)) - 1]
    found = quantile(counts, ratio)
    assert found is not None
    place = bisect.bisect_left(BUCKETS_S, true)
    low = BUCKETS_S[place - 1] if place else BUCKETS_S[0] / 2
    assert low * 0.999 <= found <= BUCKETS_S[place] * 1.001
    found_all = [quantile(counts, one) or 0.0 for one in RATIOS]
    assert found_all == sorted(found_all)


def test_beyond_the_last_bound_nothing_is_known_but_that() -> None:
    assert quantile([(0.1, 1.0), (0.4, 2.0), (math.inf, 100.0)], 0.95) == 0.4


def test_nothing_has_no_quantile() -> None:
    assert quantile([], 0.5) is None
    assert quantile([(0.1, 0.0), (math.inf, 0.0)], 0.5) is None
    assert quantile([(math.inf, 3.0)], 0.5) is None
