"""The windows of a revision's metrics, and the state of their decisions."""

from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.decision.policy import RevisionPolicy
from serving.core.scaling.decision.records import DecisionCause, InFlight
from serving.core.scaling.decision.step import StepInputs, step
from serving.core.scaling.kpa.zero import GatePhase, GateState
from serving.core.scaling.scaler.windows import RevisionWindows, starting_revision_state, with_metrics
from serving.core.scaling.spec import MeasuredMetric, ScalingSpec
from serving.core.settings.autoscaler import SAFE
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.unit.core.scaling.scaler_builders import facts_of

CONCURRENCY, RPS = spec_with(metric="concurrency"), spec_with(metric="rps")
SEVERAL = spec_with(
    metric="rps",
    further_metrics=(MeasuredMetric(metric="concurrency", target_value=10.0, total_value=10.0),),
)
GATE = GateState(since_s=0.0, phase=GatePhase.ACTIVE, is_initialized=True)


def recorded(spec: ScalingSpec, loads: list[float]) -> RevisionWindows:
    """Windows after one second of each load."""
    windows = RevisionWindows(spec, quirks=SAFE)
    for number, load in enumerate(loads):
        windows.record(number, Stat(concurrency=load))
    return windows


def reason_of(windows: RevisionWindows, now_s: float) -> str:
    """The reason of the further metric's proposal."""
    inputs = StepInputs(
        at_s=now_s,
        cause=DecisionCause.PERIOD,
        view=facts_of(1),
        in_flight=InFlight(present=Stat(), is_waiting=False),
        observed=windows.query(now_s),
        further=windows.query_further(now_s),
        spec=SEVERAL,
        quirks=SAFE,
    )
    state = starting_revision_state(SEVERAL, GATE, now_s=0.0, quirks=SAFE)
    (proposal,) = step(state, inputs, RevisionPolicy())[1].inputs.proposals
    return proposal.reason


def test_changed_load_metric_clears_windows() -> None:
    windows = recorded(CONCURRENCY, [5.0])
    windows.resize(CONCURRENCY, 2.0)
    assert not isinstance(windows.query(2.0), NoData)
    windows.resize(RPS, 2.0)
    assert isinstance(windows.query(2.0), NoData)


def test_panic_reason_has_load_of_panic_window() -> None:
    assert reason_of(recorded(SEVERAL, [1.0] * 60), 60.0) == "1 in all, target 10 each"
    assert reason_of(recorded(SEVERAL, [1.0] * 54 + [40.0] * 6), 60.0) == "40 in all, target 10 each"


def test_reset_clears_load_but_retains_contents_of_last_query() -> None:
    windows = recorded(SEVERAL, [40.0] * 60)
    windows.query(60.0)
    windows.reset(SEVERAL)
    assert windows.contents().stable.values
    assert reason_of(windows, 60.0) == "no stat in the stable window"
    assert not windows.contents().stable.values


def test_unchanged_metrics_retain_state() -> None:
    state = starting_revision_state(SEVERAL, GATE, now_s=0.0, quirks=SAFE)
    assert len(state.further) == 1
    assert with_metrics(state, SEVERAL, before=SEVERAL, now_s=9.0, quirks=SAFE).further[0] is state.further[0]
    assert with_metrics(state, RPS, before=SEVERAL, now_s=9.0, quirks=SAFE).further == ()


def test_load_in_unit_of_metric_applies_only_to_first_metric() -> None:
    windows = RevisionWindows(SEVERAL, quirks=SAFE)
    windows.record_load(0, 7.0)
    observed = windows.query(1.5)
    assert not isinstance(observed, NoData)
    assert observed.panic == 7.0
    assert isinstance(windows.query_further(1.5)[0], NoData)
