"""Further metrics are decided on as the first one is: with windows and a panic of their own."""

from serving.model.stat import Stat
from serving.scaling.scaler.deciders import Inside
from serving.scaling.scaler.further import FurtherDeciders
from serving.scaling.sources import Second
from serving.scaling.spec import MeasuredMetric
from serving.settings.autoscaler import KpaQuirks
from tests.unit.scaling.kpa_builders import spec_with

SPEC = spec_with(
    metric="rps",
    further_metrics=(MeasuredMetric(metric="concurrency", target_value=10.0, total_value=10.0),),
)


def loaded(loads: list[float]) -> FurtherDeciders:
    """Deciders after so many seconds of load in one pod."""
    made = FurtherDeciders(SPEC, quirks=KpaQuirks(), now_s=0.0)
    for number, load in enumerate(loads):
        made.take(Second(number=number, pods=(Stat(pod="p", concurrency=load),), activators=None))
    return made


def reason_of(made: FurtherDeciders, now_s: float) -> str:
    (proposal,) = made.decide(SPEC, Inside(present=Stat(), is_waiting=False), ready_count=1, now_s=now_s)
    return proposal.reason


def test_in_panic_the_reason_is_the_load_of_the_panic_window() -> None:
    assert reason_of(loaded([1.0] * 60), 60.0) == "1 in all, target 10 each"
    assert reason_of(loaded([1.0] * 54 + [40.0] * 6), 60.0) == "40 in all, target 10 each"


def test_a_reset_drops_the_load() -> None:
    made = loaded([40.0] * 60)
    made.reset_windows(SPEC)
    assert reason_of(made, 60.0) == "no stat in the stable window"
