"""Further metrics are decided on as the first one is: with windows and a panic of their own."""

from serving.model.stat import Stat
from serving.scaling.scaler.deciders import Inside
from serving.scaling.scaler.further import FurtherDeciders, kept_while_loading
from serving.scaling.sources import Second
from serving.scaling.spec import MeasuredMetric
from serving.settings.autoscaler import KpaQuirks
from tests.unit.scaling.kpa_builders import spec_with
from tests.unit.scaling.scaler_builders import facts_of

LOADING = Stat(is_loading=True)
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


def test_pods_that_load_are_kept_and_never_more_than_there_are() -> None:
    (proposal,) = kept_while_loading([LOADING, Stat(), LOADING], facts_of(5, ready=2))
    assert (proposal.desired, proposal.reason) == (4, "2 pods load")
    (proposal,) = kept_while_loading([LOADING], facts_of(1, ready=1))
    assert (proposal.desired, proposal.reason) == (1, "1 pod loads")


def test_without_a_pod_that_loads_nothing_is_kept() -> None:
    assert kept_while_loading([Stat()], facts_of(5, ready=2)) == ()
    assert kept_while_loading([LOADING], facts_of(0)) == ()
