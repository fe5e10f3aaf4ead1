import functools
from collections.abc import Mapping

import msgspec
import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import ServingState
from serving.core.model.stat import Stat
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.decide import ScaleDecision
from serving.core.scaling.revision import ScaledRevision
from serving.core.scaling.scaler.decision_history import DecisionHistory, DecisionRecord
from serving.core.scaling.scaler.explain import headline
from serving.core.scaling.scaler.replay import again, changed_spec, otherwise, read_record
from serving.core.scaling.scaler.scaler import Scaler, StatSource
from serving.core.scaling.spec import WindowKind
from serving.core.settings.autoscaler import CLASSIC_CLASS
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.unit.core.scaling.scaler_builders import SETTINGS, World, facts_of, revision_with

SEVEN = spec_with(target_value=7.0, total_value=10.0)


class Recorder(World):
    """A world that records each decision, as the log does."""

    def __init__(self, *args: object, **more: object) -> None:
        self.records: list[DecisionRecord] = []
        self.story = DecisionHistory(10)
        super().__init__(*args, **more)  # type: ignore[arg-type]

    def decide(self, cause: DecisionCause = DecisionCause.PERIOD) -> ScalerOutcome:
        outcome = super().decide(cause)
        reported = self.story.add(outcome, at_wall_s=self.now_s)
        if reported is not None:
            line = msgspec.json.encode(
                DecisionRecord(
                    namespace="default", revision="hello-00001", entry=reported, windows=self.scaler.windows()
                )
            )
            self.records.append(read_record(line))
        return outcome


@functools.cache
def a_day(**changes: object) -> tuple[DecisionRecord, ...]:
    """Records of a revision that is woken, has load and a burst, scales to zero, and is woken again."""
    class_name = str(changes.pop("class_name", "kpa.autoscaling.knative.dev"))
    spec = msgspec.structs.replace(SEVEN, **changes)
    revision = revision_with(spec, serving_state=ServingState.RESERVE, class_name=class_name)
    world = Recorder(revision, facts_of(0))
    for _ in range(2):
        world.poke(30)
        world.decide(DecisionCause.LOAD)
        world.live(40, load=30.3)
        world.live(12, load=300.7)
        world.live(90, load=11.1)
        world.now_s += 15
        world.live(260, load=0.0)
    return tuple(world.records)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window_kind": WindowKind.WEIGHTED_EXPONENTIAL},
        {"metric": "rps"},
        {"scale_down_delay_s": 30.0, "max_scale": 20, "min_scale": 0, "activation_scale": 4},
        # Each of its records has the points of all pods.
        {"class_name": CLASSIC_CLASS, "max_scale": 4},
    ],
    ids=str,
)
def test_replay_reproduces_every_field(changes: dict[str, object]) -> None:
    records = a_day(**changes)
    assert len(records) > 10
    for record in records:
        assert again(record) == record.entry.outcome


def test_replay_with_unchanged_numbers_has_same_outcomes() -> None:
    assert all(response.is_same for response in otherwise(a_day(), {"max_scale": "0"}))


def test_replay_with_lower_max_scale_differs_only_where_it_limits() -> None:
    responses = list(otherwise(a_day(), {"max-scale": "8"}))
    different = [response for response in responses if not response.is_same]
    assert "31 → 43" in {headline(response.first) for response in different}
    assert {response.second.gate.wanted for response in different} <= {8, 1}


def test_replay_with_high_panic_threshold_has_no_panic() -> None:
    responses = list(otherwise(a_day(), {"panic_threshold_ratio": "1000000"}))
    decisions = [
        response for response in responses if response.second.inputs.kpa and response.second.inputs.kpa.panic_since_s
    ]
    assert decisions == []
    assert any(not response.is_same for response in responses)


class Twin(Recorder):
    """A recorder with a second scaler, which gets the same reports and decides with other windows."""

    def __init__(self, revision: ScaledRevision, facts: ScalerView, changes: Mapping[str, str]) -> None:
        super().__init__(revision, facts)
        other = msgspec.structs.replace(revision, spec=changed_spec(revision.spec, changes))
        self.other = Scaler(other, facts, SETTINGS, is_restart=False, now_s=self.now_s)
        self.observed: dict[float, tuple[float, float]] = {}

    def record(self, stat: Stat, source: StatSource, *, at_s: float | None = None) -> bool:
        self.other.record(msgspec.structs.replace(stat, at_s=self.now_s if at_s is None else at_s), source)
        return super().record(stat, source, at_s=at_s)

    def decide(self, cause: DecisionCause = DecisionCause.PERIOD) -> ScalerOutcome:
        before = self.facts.ready_count
        outcome = super().decide(cause)
        other = self.other.tick(outcome.view, outcome.inputs.cause, self.now_s)
        if (averages := averages_of(other)) is not None:
            self.observed[self.now_s] = averages
        for number in range(self.facts.ready_count, before):
            self.other.forget_pod(f"pod-{number}", self.now_s)
        return outcome


def averages_of(outcome: ScalerOutcome) -> tuple[float, float] | None:
    detail = outcome.decided.detail
    return (detail.observed_stable, detail.observed_panic) if isinstance(detail, ScaleDecision) else None


@pytest.mark.parametrize(
    "changes", [{"panic_window_s": "20"}, {"stable_window_s": "30", "panic_window_s": "3"}], ids=str
)
def test_replay_with_other_windows_has_averages_of_scaler_with_those_windows(changes: dict[str, str]) -> None:
    twin = Twin(revision_with(SEVEN), facts_of(1), changes)
    for load in (30.3, 300.7, 11.1, 0.0, 5.5):
        twin.live(50, load=load)
    # Longer than each window.
    twin.now_s += 70.0
    twin.live(50, load=200.2)
    responses = list(otherwise(twin.records, changes))
    replayed = {response.record.entry.outcome.at_s: averages_of(response.second) for response in responses}
    assert len(replayed) > 10
    assert replayed == {at_s: twin.observed.get(at_s) for at_s in replayed}
    assert any(averages_of(response.first) != averages_of(response.second) for response in responses)
    assert any(not response.is_same for response in responses)


def test_replay_retains_recorded_classic_decisions() -> None:
    records = a_day(class_name=CLASSIC_CLASS)
    for response in otherwise(records, {"target_value": "1", "max_scale": "2"}):
        assert response.second.decided == response.record.entry.outcome.decided
    assert {record.windows for record in records} == {None}


@pytest.mark.parametrize("changes", [{"max_scal": "1"}, {"max_scale": "many"}, {"metric": "rps"}], ids=str)
def test_invalid_changes_are_rejected(changes: dict[str, str]) -> None:
    with pytest.raises(InvalidValue):
        changed_spec(SEVEN, changes)


def test_invalid_record_line_is_rejected() -> None:
    with pytest.raises(InvalidValue, match="a line of the decision log"):
        read_record(b'{"namespace": 1}')


def test_numbers_that_prevent_a_decision_are_rejected_with_record() -> None:
    with pytest.raises(InvalidValue, match=r"the record of hello-00001 at .* is not one that can be decided again"):
        list(otherwise(a_day(), {"target_value": "0"}))
