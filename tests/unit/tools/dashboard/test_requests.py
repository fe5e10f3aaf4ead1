import random

import pytest

from serving.core.traffic.latencies import FINE_TYPE, bucket_of
from serving.net.metrics.activator import ActivatorMetrics
from serving.tools.dashboard.requests import RequestRates, Requests

KEY = "default/hello-00001"
LABELS = 'kn_namespace_name="default",kn_revision_name="hello-00001"'


def page(counts: dict[float, int], status: str = "2xx") -> str:
    """The lines of a page: counts of requests by their duration in seconds."""
    labels = f'namespace="default",revision="hello-00001",response_code_class="{status}"'
    return "".join(
        f'serving_request_duration_buckets{{{labels},bucket="{bucket_of(took_s)}"}} {count}\n'
        for took_s, count in counts.items()
    )


def test_the_first_reading_says_nothing() -> None:
    assert Requests().read({"a": page({0.1: 4})}, 0.0) == {}


def test_answers_a_second_and_quantiles_are_those_since_the_reading_before() -> None:
    requests = Requests()
    requests.read({"a": page({0.1: 1000})}, 10.0)
    found = requests.read({"a": page({0.1: 1060, 0.2: 40}) + page({3.0: 10}, status="5xx")}, 12.0)[KEY]
    assert found.rates == (50.0, 0.0, 0.0, 5.0)
    # 110 responses: the 55th took 0.1 s, the 105th and the 109th 3 s.
    assert found.quantiles_s == pytest.approx((0.1, 3.0, 3.0), rel=0.02)


def test_a_reset_counter_counts_from_zero() -> None:
    requests = Requests()
    requests.read({"a": page({0.1: 90})}, 0.0)
    assert requests.read({"a": page({0.1: 4})}, 2.0)[KEY].rates[0] == 2.0


def test_what_waits_at_all_activators_is_added_up_from_the_first_reading_on() -> None:
    waiting = f"serving_requests_waiting{{{LABELS}}} "
    found = Requests().read({"a": f"{waiting}2.0", "b": f"{waiting}3.0\nserving_requests_waiting{{}} 9"}, 0.0)
    assert found == {KEY: RequestRates(waiting=5.0)}


def test_several_activators_are_added_up_and_one_that_comes_back_makes_no_spike() -> None:
    requests = Requests()
    requests.read({"a": page({0.1: 100}), "b": page({0.2: 0})}, 0.0)
    found = requests.read({"a": page({0.1: 110}), "b": page({0.2: 30})}, 2.0)[KEY]
    assert found.rates[0] == 20.0
    assert found.quantiles_s[0] == pytest.approx(0.2, rel=0.02)
    assert requests.read({"a": page({0.1: 114})}, 4.0)[KEY].rates[0] == 2.0
    assert requests.read({"a": page({0.1: 118}), "b": page({0.2: 900})}, 6.0)[KEY].rates[0] == 2.0


def test_nothing_new_has_no_latency() -> None:
    requests = Requests()
    requests.read({"a": page({0.1: 9})}, 0.0)
    assert requests.read({"a": page({0.1: 9})}, 2.0) == {
        KEY: RequestRates(rates=(0, 0, 0, 0), quantiles_s=(None, None, None))
    }
    assert requests.read({"a": page({0.1: 9})}, 2.0) == {}


def test_quantiles_of_the_activators_own_page_are_at_most_2_percent_off() -> None:
    key = ("default", "hello-00001")
    metrics = ActivatorMetrics(configuration_of=lambda _: "hello", keys=lambda: [key], inside=list)
    requests, dice = Requests(), random.Random(1)
    metrics.of(key).ended(200, 1.0, at_s=0.0, traceparent=b"")
    requests.read({"a": metrics.page.text(FINE_TYPE)}, 0.0)
    durations_s = sorted(dice.lognormvariate(0, 1) for _ in range(1000))
    for took_s in durations_s:
        metrics.of(key).ended(200, took_s, at_s=0.0, traceparent=b"")
    found = requests.read({"a": metrics.page.text(FINE_TYPE)}, 2.0)[KEY]
    assert found.quantiles_s == pytest.approx([durations_s[at - 1] for at in (500, 950, 990)], rel=0.02)
    assert "serving_request_duration_buckets" not in metrics.page.text("text/plain")
