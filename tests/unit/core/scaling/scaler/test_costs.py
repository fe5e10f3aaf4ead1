"""Costs of two policies over the last day."""

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.scaling.scaler.costs import DayCosts

HOUR_S = 3600.0
BEGIN_S = 480_000 * HOUR_S + 60.0


def filled(*, hours: int) -> DayCosts:
    costs = DayCosts(BEGIN_S)
    for hour in range(hours):
        at_s = BEGIN_S + hour * HOUR_S
        costs.add_pods(10.0, 30.0, wall_s=at_s)
        costs.add_cold(1.0, 2.0, wall_s=at_s)
    return costs


def test_costs_are_counted_since_first_record() -> None:
    total = filled(hours=3).total(BEGIN_S + 2 * HOUR_S)
    assert (total.adaptive_pod_seconds, total.knative_pod_seconds) == (30.0, 90.0)
    assert (total.adaptive_cold_requests, total.knative_cold_requests) == (3.0, 6.0)
    assert total.covered_s == 2 * HOUR_S


def test_only_last_24_hours_are_counted() -> None:
    total = filled(hours=30).total(BEGIN_S + 29 * HOUR_S)
    assert total.adaptive_pod_seconds == 240.0
    assert total.covered_s == 23 * HOUR_S + 60.0


def test_hours_without_costs_expire_others() -> None:
    assert filled(hours=5).total(BEGIN_S + 26 * HOUR_S).adaptive_pod_seconds == 20.0
    assert filled(hours=5).total(BEGIN_S + 1000 * HOUR_S).adaptive_pod_seconds == 0.0


def test_costs_before_backward_clock_step_are_counted_for_a_day() -> None:
    costs = filled(hours=3)
    now_s = BEGIN_S - 1000 * HOUR_S
    costs.add_pods(5.0, 0.0, wall_s=now_s)
    assert costs.total(now_s).adaptive_pod_seconds == 35.0
    assert costs.total(now_s).covered_s == 0.0
    assert costs.total(now_s + 24 * HOUR_S).adaptive_pod_seconds == 0.0
    assert costs.total(now_s + 24 * HOUR_S).covered_s == 23 * HOUR_S + 60.0


def test_costs_round_trip_through_dump() -> None:
    costs, other = filled(hours=30), DayCosts(BEGIN_S + 40 * HOUR_S)
    other.load(costs.dump())
    at_s = BEGIN_S + 30 * HOUR_S
    assert other.total(at_s) == costs.total(at_s)


def test_expired_hours_are_not_loaded() -> None:
    costs = DayCosts(BEGIN_S)
    costs.load('{"since_s":0,"hours":{"1":[9,9,9,9],"100":[1,2,3,4]}}')
    assert costs.total(100 * HOUR_S).adaptive_pod_seconds == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"since_s":0,"hours":{}}',
        '{"since_s":0,"hours":{"1":[-1,0,0,0]}}',
        '{"since_s":0,"hours":{"x":[1,1,1,1]}}',
    ],
)
def test_invalid_costs_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValue, match="costs by hour"):
        DayCosts(BEGIN_S).load(text)
