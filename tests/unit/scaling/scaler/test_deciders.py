"""The state that a decider keeps and drops when the numbers of its revision change."""

from serving.model.stat import Stat
from serving.scaling.kpa.decide import ScaleDecision
from serving.scaling.scaler.deciders import Inside, KpaDecider
from serving.settings.autoscaler import KpaQuirks
from tests.unit.scaling.kpa_builders import spec_with, stat_of

CONCURRENCY, RPS = spec_with(metric="concurrency"), spec_with(metric="rps")


def test_another_load_metric_begins_with_empty_windows() -> None:
    decider = KpaDecider(CONCURRENCY, quirks=KpaQuirks(), ready_count=1, present_scale=1, now_s=0.0)
    decider._windows.record(stat_of(5.0), 1.0)
    decider.resize(CONCURRENCY, 2.0)
    assert decider._windows.contents().stable.values
    decider.resize(RPS, 2.0)
    assert not decider._windows.contents().stable.values


def test_a_peek_comes_to_the_decision_and_changes_nothing_until_it_is_adopted() -> None:
    decider = KpaDecider(CONCURRENCY, quirks=KpaQuirks(), ready_count=1, present_scale=1, now_s=0.0)
    assert decider.peek(CONCURRENCY, ready_count=1, now_s=2.0) is None
    for number in range(5):
        decider.take_load(500.0, number)
    before = decider.state
    found = decider.peek(CONCURRENCY, ready_count=1, now_s=6.0)
    assert found is not None
    assert decider.state == before
    detail = decider.decide(
        CONCURRENCY, Inside(present=Stat(concurrency=500.0), is_waiting=False), ready_count=1, now_s=6.0
    ).detail
    assert isinstance(detail, ScaleDecision)
    assert found == (decider.state, detail.desired_count, detail.excess_burst_capacity)
    decider._state = before
    decider.adopt(found[0])
    assert decider.state == found[0] != before
