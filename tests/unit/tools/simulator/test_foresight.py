"""The oracle and the clairvoyant: hand-computed examples, and lower bounds of all policies."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, AutoscalerSettings
from serving.tools.simulator.foresight import Demand, Foresight, run_with_foresight
from serving.tools.simulator.results import RevisionResult
from serving.tools.simulator.revision_run import RevisionRun, RunConfig
from tests.unit.tools.simulator.test_revision_run import config

# Requests take 0.5 s, a start takes 2 s, a drain 5 s.
DRAIN_S, START_S, SERVICE_S = 5.0, 2.0, 0.5


def bound(kind: Foresight, *times_s: float, run_config: RunConfig | None = None) -> RevisionResult:
    arrivals = iter([(at_s, math.nan) for at_s in sorted(times_s)])
    return run_with_foresight("f", arrivals, run_config or config(), kind=kind, until_s=600.0)


def worth(worth_s: float, *, concurrency: int = 10) -> RunConfig:
    return config(autoscaler=AutoscalerSettings(cold_start_worth_s=worth_s), concurrency=concurrency)


def test_demand_levels_are_numbered_per_pod_of_slots() -> None:
    demand = Demand([(0.0, 10.0), (1.0, 10.0), (2.0, 1.0), (20.0, 1.0)], slots=2)
    assert demand.levels == [1, 1, 2, 1]
    assert demand.uses == [[[0.0, 11.0], [20.0, 21.0]], [[2.0, 3.0]]]
    assert (demand.next_use_s(1, 0.5), demand.next_use_s(2, 2.0), demand.next_use_s(2, 2.5)) == (20.0, 2.0, math.inf)
    assert (demand.next_use_s(3, 0.0), demand.requests_at(2, 0.0, 30.0), demand.requests_at(1, 1.0, 2.0)) == (
        math.inf,
        1,
        1,
    )


def test_demand_without_a_limit_uses_one_pod() -> None:
    demand = Demand([(0.0, 10.0), (1.0, 1.0), (20.0, 1.0)], slots=0)
    assert demand.uses == [[[0.0, 10.0], [20.0, 21.0]]]


def test_clairvoyant_starts_a_pod_ahead_of_each_use() -> None:
    result = bound(Foresight.CLAIRVOYANT, 100.0, 200.0)
    assert (result.requests, result.cold_requests, result.late_requests, result.pod_starts) == (2, 0, 0, 2)
    assert result.pod_seconds == pytest.approx(2 * (START_S + SERVICE_S + DRAIN_S))
    assert (result.wasted_pod_seconds, result.flaps) == (0.0, 3)


def test_clairvoyant_retains_a_pod_through_a_short_pause() -> None:
    result = bound(Foresight.CLAIRVOYANT, 100.0, 107.0)
    assert result.pod_starts == 1
    assert result.pod_seconds == pytest.approx(START_S + 7.0 + SERVICE_S + DRAIN_S)
    assert result.wasted_pod_seconds == pytest.approx(7.0 - SERVICE_S)


def test_oracle_starts_a_pod_with_the_first_request() -> None:
    result = bound(Foresight.ORACLE, 100.0, 101.0, 103.0, run_config=worth(1.0))
    assert (result.cold_requests, result.late_requests, result.pod_starts) == (2, 2, 1)
    assert result.waits.percentile(1.0, requests=3) == pytest.approx(START_S, rel=0.01)
    # The pod is ready at 102 s, serves until 103.5 s, and drains.
    assert result.pod_seconds == pytest.approx(START_S + 1.5 + DRAIN_S)


@pytest.mark.parametrize(("worth_s", "cold"), [(90.0, 2), (91.0, 1)])
def test_oracle_retains_a_pod_while_cheaper_than_a_cold_request(worth_s: float, cold: int) -> None:
    """The pod is idle from 102.5 s to 200.1 s: 97.6 s, less a drain and a start."""
    assert bound(Foresight.ORACLE, 100.0, 200.1, run_config=worth(worth_s)).cold_requests == cold


def test_oracle_weighs_all_requests_that_would_be_cold() -> None:
    burst = [200.0 + index / 10 for index in range(10)]
    assert bound(Foresight.ORACLE, 100.0, *burst, run_config=worth(10.0)).cold_requests == 1


def test_oracle_starts_one_pod_per_two_slots() -> None:
    result = bound(Foresight.ORACLE, *([100.0] * 5), run_config=worth(1.0, concurrency=2))
    assert (result.cold_requests, result.pod_starts) == (5, 3)
    assert result.pod_seconds == pytest.approx(3 * (START_S + SERVICE_S + DRAIN_S))


def test_pod_seconds_end_with_the_simulation() -> None:
    for kind in Foresight:
        result = bound(kind, 599.9)
        assert 0.0 < result.pod_seconds <= START_S + 0.11
        assert result.pod_series[0] == 0.0


def test_no_requests_cost_nothing() -> None:
    for kind in Foresight:
        result = bound(kind)
        assert (result.requests, result.pod_seconds, result.pod_starts, result.flaps) == (0, 0.0, 0, 0)


@settings(max_examples=80, deadline=None)
@given(
    times_s=st.lists(st.floats(0, 400), max_size=40),
    policy=st.sampled_from([KNATIVE_POLICY, ADAPTIVE_POLICY]),
    retention_s=st.sampled_from([0.0, 60.0, 200.0]),
    worth_s=st.sampled_from([1.0, 30.0, 120.0]),
)
def test_no_policy_costs_less_than_the_bounds(
    times_s: list[float], policy: str, retention_s: float, worth_s: float
) -> None:
    """One pod serves all.

    A cold start delays requests, which may shorten a pause: by a start for each of them at most.
    """
    autoscaler = AutoscalerSettings(
        policy=policy, scale_to_zero_pod_retention_period_s=retention_s, cold_start_worth_s=worth_s
    )
    autoscaler = msgspec.structs.replace(
        autoscaler, adaptive=msgspec.structs.replace(autoscaler.adaptive, pre_warming=False)
    )
    run_config = config(autoscaler=autoscaler, concurrency=100)
    arrivals = iter([(at_s, math.nan) for at_s in sorted(times_s)])
    real = RevisionRun("f", arrivals, run_config, until_s=600.0).run()
    oracle, clairvoyant = (bound(kind, *times_s, run_config=run_config) for kind in Foresight)
    slack_s = START_S * (1 + real.cold_requests)
    assert clairvoyant.pod_seconds <= real.pod_seconds + slack_s
    costs = [result.pod_seconds + worth_s * result.cold_requests for result in (oracle, real)]
    assert costs[0] <= costs[1] + slack_s
    assert oracle.requests == real.requests
    assert sum(oracle.pod_series) / len(oracle.pod_series) * 600.0 == pytest.approx(oracle.pod_seconds)


@settings(max_examples=60, deadline=None)
@given(times_s=st.lists(st.floats(0, 60), max_size=80), concurrency=st.integers(0, 4))
def test_every_request_is_counted_under_foresight(times_s: list[float], concurrency: int) -> None:
    run_config = worth(30.0, concurrency=concurrency)
    for kind in Foresight:
        result = bound(kind, *times_s, run_config=run_config)
        assert result.requests == len(times_s)
        assert result.pod_seconds - result.wasted_pod_seconds >= SERVICE_S * bool(times_s)
