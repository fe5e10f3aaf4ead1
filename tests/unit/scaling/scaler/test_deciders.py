"""The state that a decider keeps and drops when the numbers of its revision change."""

from serving.scaling.scaler.deciders import KpaDecider
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
