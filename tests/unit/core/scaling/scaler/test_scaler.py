import msgspec
import pytest

from serving.core.model.knative import ServingState, TrafficPath
from serving.core.model.nodata import NoData
from serving.core.scaling.classic.classic import ClassicDecision
from serving.core.scaling.decision.policy import Advice, PolicyView, RevisionPolicy
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.decision.step import conclude
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.decide import ScaleDecision, ScaleLimit
from serving.core.scaling.kpa.merge import MergeDecision, Proposal
from serving.core.scaling.kpa.zero import GateAction, GatePhase, GateReason
from serving.core.scaling.scaler.explain import explain
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.scaling.spec import MeasuredMetric
from serving.core.settings.autoscaler import CLASSIC_CLASS
from tests.unit.core.scaling.kpa_builders import DEFAULTS, spec_with
from tests.unit.core.scaling.scaler_builders import WaitingPolicy, World, facts_of, revision_with, stat_of

SEVEN_A_POD = spec_with(target_value=7.0, total_value=10.0)
ASLEEP = facts_of(0)
SEVERAL = spec_with(
    metric="gauge:waiting",
    target_value=5.0,
    total_value=5.0,
    further_metrics=(
        MeasuredMetric(metric="gauge:cache", target_value=0.8, total_value=0.8),
        MeasuredMetric(metric="concurrency", target_value=14.0, total_value=20.0),
    ),
)


def asleep(**changes: object) -> World:
    """A revision in reserve with room for 10 in a pod and a target of 7."""
    return World(revision_with(SEVEN_A_POD, serving_state=ServingState.RESERVE, **changes), ASLEEP)  # type: ignore[arg-type]


def asleep_waiting() -> World:
    """A revision in reserve under a policy that counts waiting requests."""
    return World(revision_with(SEVEN_A_POD, serving_state=ServingState.RESERVE), ASLEEP, policy=WaitingPolicy())


def awake(count: int = 1, **changes: object) -> World:
    """A revision with that many ready pods, after two minutes of a load of 5 each."""
    world = World(revision_with(SEVEN_A_POD, **changes), facts_of(count))  # type: ignore[arg-type]
    world.live(120, load=5.0 * count)
    return world


def merged_of(outcome: ScalerOutcome) -> MergeDecision:
    assert isinstance(outcome.merged, MergeDecision)
    return outcome.merged


# From zero.


def test_request_at_zero_is_urgent() -> None:
    world = asleep()
    world.decide()
    assert world.poke(1)


def test_all_requests_waiting_at_zero_get_pods_at_once() -> None:
    world = asleep()
    world.decide()
    world.poke(100)
    assert world.decide(DecisionCause.LOAD).apply_count == 15


def test_waiting_policy_adds_pokes_to_requests_in_flight() -> None:
    world = asleep_waiting()
    world.poke(1)
    assert world.decide(DecisionCause.LOAD).apply_count == 1
    world.facts = facts_of(1, 0)
    world.now_s += 0.05
    assert world.poke(99)
    outcome = world.decide(DecisionCause.LOAD)
    assert (outcome.present.concurrency, outcome.apply_count) == (100, 15)


def test_poke_within_wanted_capacity_is_not_urgent() -> None:
    world = asleep_waiting()
    world.poke(1)
    world.decide(DecisionCause.LOAD)
    world.facts = facts_of(1, 0)
    assert not world.poke(6)
    assert world.poke(1)


def test_knative_policy_scales_waiting_requests_by_windows() -> None:
    world = asleep()
    world.poke(1)
    assert world.decide(DecisionCause.LOAD).apply_count == 1
    world.facts = facts_of(1, 0)
    world.now_s += 0.05
    assert not world.poke(99)
    world.now_s += 1.2
    world.poke(0)
    detail = world.decide().decided.detail
    assert isinstance(detail, ScaleDecision)
    assert detail.observed_panic == 100


def test_idle_seconds_before_wake_do_not_lower_average() -> None:
    world = awake()
    world.live(200, load=0.0)
    assert world.facts.present_scale == 0
    world.now_s += 1
    world.poke(100)
    assert world.decide(DecisionCause.LOAD).apply_count == 15
    world.facts = facts_of(15)
    # Only the second of the wake-up counts.
    world.now_s += 1.1
    world.record(stat_of(100), StatSource.ACTIVATOR)
    outcome = world.decide()
    assert isinstance(outcome.decided.detail, ScaleDecision)
    assert outcome.decided.detail.observed_stable == 100
    assert world.facts.present_scale == 15


def test_requests_in_flight_decide_before_first_second_is_complete() -> None:
    world = asleep_waiting()
    world.poke(1)
    world.decide(DecisionCause.LOAD)
    assert world.facts.ready_count == 1
    world.now_s += 0.3
    assert world.poke(99)
    assert world.decide(DecisionCause.LOAD).apply_count == 15


def test_woken_revision_gets_pod_before_load_is_reported() -> None:
    world = asleep()
    world.decide()
    world.facts = facts_of(0, serving_state=ServingState.ACTIVE)
    outcome = world.decide(DecisionCause.CHANGE)
    assert (outcome.apply_count, outcome.phase) == (1, GatePhase.ACTIVATING)
    assert merged_of(outcome).decided_by == "activator"


def test_request_at_zero_gets_pod_before_revision_is_active() -> None:
    world = awake()
    world.live(70, load=0.0)
    world.facts = ASLEEP
    assert world.decide().apply_count in (None, 0)
    world.poke(1)
    outcome = world.decide(DecisionCause.LOAD)
    assert outcome.inputs.view.serving_state is ServingState.RESERVE
    assert (outcome.apply_count, outcome.to_reserve) == (1, False)


def test_unrouted_reserve_revision_remains_at_zero() -> None:
    outcome = asleep().decide()
    assert (outcome.apply_count, outcome.to_reserve, outcome.to_prove) == (None, False, False)
    assert outcome.merged == NoData(missing="no proposal of any decider")


def test_rps_metric_wakes_revision() -> None:
    spec = spec_with(metric="rps", target_value=10.0)
    world = World(revision_with(spec, serving_state=ServingState.RESERVE), ASLEEP)
    assert world.record(stat_of(1, requests=35), StatSource.ACTIVATOR)
    assert world.decide(DecisionCause.LOAD).apply_count == 4


def test_gauge_metric_scales_revision_and_requests_wake_it() -> None:
    spec = spec_with(metric="queue-length", target_value=7.0)
    world = World(revision_with(spec, serving_state=ServingState.RESERVE), ASLEEP)
    assert world.record(stat_of(1), StatSource.ACTIVATOR)
    assert world.decide(DecisionCause.LOAD).apply_count == 1
    for _ in range(4):
        world.record(msgspec.structs.replace(stat_of(1, by="pod-0"), gauges={"queue_length": 30.0}), StatSource.POD)
        world.now_s += 1.0
    assert world.decide().apply_count == 5


def report(world: World, seconds: int, **gauges: float) -> ScalerOutcome:
    for _ in range(seconds):
        for number in range(world.facts.ready_count):
            stat = msgspec.structs.replace(stat_of(1, by=f"pod-{number}"), gauges=gauges)
            world.record(stat, StatSource.POD, at_s=world.now_s + 0.3)
        world.now_s += 1.0
    return world.decide()


def test_tokens_of_requests_waiting_for_first_pod_are_estimated() -> None:
    spec = spec_with(metric="tokens", target_value=1000.0)
    world = World(revision_with(spec), facts_of(1), policy=WaitingPolicy())
    report(world, 10, tokens_in_flight=500.0)
    # The pod ends; 12 requests of 500 tokens wait.
    world.now_s += 100.0
    world.facts = facts_of(0)
    world.poke(12)
    assert world.decide(DecisionCause.LOAD).apply_count == 6


def test_largest_proposal_of_several_metrics_decides() -> None:
    world = World(revision_with(SEVERAL), facts_of(2))
    outcome = report(world, 60, waiting=1.0, cache=0.9)
    # 1.8 of the cache at 0.8 a pod.
    assert outcome.apply_count == 3
    assert "gauge:cache wants 3 (1.8 in all, target 0.8 each)" in explain(outcome)
    assert report(world, 80, waiting=10.0, cache=0.1).apply_count == 6
    assert "6 s average 30.0 waiting over 3 ready pods, target 5 each" in explain(world.outcomes[-1])


def test_activator_requests_are_urgent_by_any_request_metric() -> None:
    world = World(revision_with(SEVERAL), facts_of(1), policy=WaitingPolicy())
    report(world, 10, waiting=1.0, cache=0.1)
    assert not world.poke(5.0)
    assert world.poke(15.0)


def test_loading_pod_remains_without_load_until_ready() -> None:
    loading, is_loading = "pod-1", True
    world = World(revision_with(SEVEN_A_POD), facts_of(2, ready=1))

    def idle(seconds: int) -> ScalerOutcome:
        for _ in range(seconds):
            for name in ("pod-0", loading):
                stat = msgspec.structs.replace(stat_of(0, by=name), is_loading=is_loading and name == loading)
                world.record(stat, StatSource.POD, at_s=world.now_s + 0.3)
            world.now_s += 1.0
        return world.decide()

    outcome = idle(300)
    assert (outcome.apply_count, outcome.view.present_scale) == (None, 2)
    assert "loading wants 2 (1 pod loads)" in explain(outcome)
    world.facts, is_loading = facts_of(2), False
    # The rate takes half of them at most.
    assert idle(3).apply_count == 1


def test_missing_gauge_neither_removes_nor_adds_pods() -> None:
    world = World(revision_with(SEVERAL), facts_of(4))
    report(world, 60, waiting=1.0, cache=0.7)
    outcome = report(world, 120, waiting=1.0)
    assert outcome.apply_count is None
    assert outcome.view.present_scale == 4
    assert "gauge:cache has no data (no pod reports the gauge cache)" in explain(outcome)
    outcome = report(world, 10)
    assert "no data (no pod reports the gauge waiting)" in explain(outcome)
    assert outcome.view.present_scale == 4


def test_metrics_can_be_removed_and_added() -> None:
    world = World(revision_with(SEVERAL), facts_of(2))
    report(world, 60, waiting=1.0, cache=0.8)
    fewer = msgspec.structs.replace(SEVERAL, further_metrics=SEVERAL.further_metrics[1:])
    world.scaler.update(revision_with(fewer), world.now_s)
    assert report(world, 2, waiting=1.0).apply_count == 1
    world.scaler.update(revision_with(SEVERAL), world.now_s)
    assert "gauge:cache has no data" in explain(report(world, 2, waiting=1.0))


def test_request_in_flight_retains_pod_without_gauge_reports() -> None:
    spec = spec_with(metric="queue-length", target_value=7.0)
    world = World(revision_with(spec), facts_of(1))
    world.live(120, load=1.0)
    assert world.facts.present_scale == 1
    world.live(120, load=0.0)
    assert world.facts.present_scale == 0


def test_revision_woken_before_scale_zero_retains_pod() -> None:
    world = awake()
    while world.facts.present_scale:
        world.live(2, load=0.0)
    last = next(outcome for outcome in reversed(world.outcomes) if outcome.to_reserve)
    woken = msgspec.structs.replace(last.inputs, view=msgspec.structs.replace(last.inputs.view, is_woken=True))
    assert conclude(last.inputs, last.decided)[1].to_reserve
    assert not conclude(woken, last.decided)[1].to_reserve


def test_stat_without_load_is_not_urgent() -> None:
    world = asleep()
    assert not world.poke(0)
    assert not world.record(stat_of(0, by="pod-1"), StatSource.POD)


# With load.


def test_load_scales_up_and_idleness_scales_down() -> None:
    world = awake()
    world.live(70, load=70.0)
    assert world.facts.present_scale == 10
    world.live(130, load=14.0)
    assert world.facts.present_scale == 2


def test_load_within_capacity_changes_no_scale() -> None:
    outcome = awake().decide()
    assert (outcome.apply_count, outcome.recheck_in_s) == (None, None)


def test_proxied_requests_are_counted_once() -> None:
    world = awake()
    for _ in range(8):
        world.record(stat_of(20, by="pod-0", proxied=20), StatSource.POD)
        world.record(stat_of(20), StatSource.ACTIVATOR)
        world.now_s += 1
    detail = world.decide().decided.detail
    assert isinstance(detail, ScaleDecision)
    assert detail.observed_panic == pytest.approx(20)


def test_unsynchronized_pod_reports_are_counted_per_complete_second() -> None:
    world = World(revision_with(SEVEN_A_POD), facts_of(10))
    for second in range(10):
        for number in range(10):
            at_s = 1000 + second + number / 10
            world.record(stat_of(7, by=f"pod-{number}"), StatSource.POD, at_s=at_s)
    # In the middle of a second, when half of them have reported: the last five whole seconds, all of 70.
    world.now_s = 1009.55
    detail = world.decide().decided.detail
    assert isinstance(detail, ScaleDecision)
    assert detail.observed_panic == 70


def test_silent_pod_is_dropped_after_a_few_seconds() -> None:
    world = awake(2)
    for _ in range(8):
        world.record(stat_of(5, by="pod-0"), StatSource.POD)
        world.now_s += 1
    assert set(world.scaler.pods) == {"pod-0"}


def test_direct_load_of_pod_is_urgent_after_zero_was_wanted() -> None:
    world = awake()
    world.live(64, load=0.0)
    assert world.outcomes[-1].decided.desired_count == 0
    assert world.record(stat_of(1, by="pod-0"), StatSource.POD)
    assert not world.record(stat_of(1, by="pod-0", proxied=1), StatSource.POD)


def test_proposals_of_other_deciders_are_merged() -> None:
    world = awake()
    outcome = world.scaler.tick(
        world.facts, DecisionCause.PERIOD, world.now_s, proposals=[Proposal(decider="cpu", desired=3, reason="points")]
    )
    assert (outcome.apply_count, merged_of(outcome).decided_by) == (3, "cpu")


def test_changed_spec_applies_at_next_decision() -> None:
    world = awake()
    world.scaler.update(revision_with(msgspec.structs.replace(SEVEN_A_POD, min_scale=3)), world.now_s)
    assert world.decide(DecisionCause.CHANGE).apply_count == 3
    world.scaler.update(revision_with(msgspec.structs.replace(SEVEN_A_POD, target_value=1.0)), world.now_s)
    assert world.decide(DecisionCause.CHANGE).apply_count == 5


# To zero.


def test_idle_revision_scales_to_zero_through_reserve_and_proof() -> None:
    world = awake()
    silent_since_s = world.now_s
    world.live(70, load=0.0)
    zero = next(outcome for outcome in world.outcomes if outcome.apply_count == 0)
    assert 60 <= zero.at_s - silent_since_s <= 66
    assert (zero.inputs.cause, zero.to_reserve, zero.phase) == (DecisionCause.PROOF, True, GatePhase.PROVED)


def test_last_pod_remains_without_hand_off_proof() -> None:
    world, outcome = awake(), None
    for _ in range(40):
        world.record(stat_of(0, by="pod-0"), StatSource.POD)
        world.now_s += 2
        outcome = world.scaler.tick(world.facts, DecisionCause.PERIOD, world.now_s)
        assert outcome.apply_count is None
    assert outcome is not None
    assert outcome.to_prove
    assert outcome.gate.reason is GateReason.HAND_OFF_IN_DOUBT


def test_missing_stats_change_no_scale() -> None:
    world = awake()
    world.now_s += 300
    outcome = world.decide()
    assert (outcome.apply_count, outcome.decided.desired_count) == (None, None)


def test_revision_never_ready_scales_to_zero_after_deadline() -> None:
    world = World(revision_with(SEVEN_A_POD, was_ready=False), facts_of(1, 0))
    assert world.decide().gate.reason is GateReason.ACTIVATION_PENDING
    world.now_s += 631
    outcome = world.decide()
    assert (outcome.apply_count, outcome.to_reserve, outcome.gate.reason) == (
        0,
        True,
        GateReason.ACTIVATION_FAILED,
    )


# After a restart.


@pytest.mark.parametrize("class_name", ["kpa.autoscaling.knative.dev", CLASSIC_CLASS])
def test_restart_removes_no_pod_before_a_full_window(class_name: str) -> None:
    revision = revision_with(SEVEN_A_POD, class_name=class_name)
    world = World(revision, facts_of(8), is_restart=True)
    world.live(58, load=0.5)
    assert world.facts.present_scale == 8
    assert isinstance(world.outcomes[-1].merged, MergeDecision)
    assert world.outcomes[-1].merged.proposals[0].reason in {ScaleLimit.START_HOLD, ScaleLimit.PANIC_HOLD}
    world.live(100, load=0.5)
    assert world.facts.present_scale < 8


def test_restart_scales_up_at_once() -> None:
    world = World(revision_with(SEVEN_A_POD), facts_of(2), is_restart=True)
    world.live(10, load=70.0)
    assert world.facts.present_scale == 10


def test_restart_starts_pod_for_revision_woken_meanwhile() -> None:
    world = World(revision_with(SEVEN_A_POD), facts_of(0, serving_state=ServingState.ACTIVE), is_restart=True)
    assert world.decide().apply_count == 1


def test_new_revision_is_not_subject_to_start_hold() -> None:
    world = World(revision_with(msgspec.structs.replace(SEVEN_A_POD, initial_scale=3)), facts_of(3))
    world.live(10, load=0.5)
    assert world.facts.present_scale == 1


# Classic.


def test_classic_scales_from_zero_by_its_own_rate() -> None:
    world = asleep(class_name=CLASSIC_CLASS)
    world.decide()
    assert world.poke(30)
    # One source with 30 at a target of 1: ten times as many at most.
    outcome = world.decide(DecisionCause.LOAD)
    assert isinstance(outcome.decided.detail, ClassicDecision)
    assert outcome.apply_count == 10


def test_classic_target_is_below_1_for_container_concurrency_1() -> None:
    world = awake(class_name=CLASSIC_CLASS, container_concurrency=1)
    detail = world.outcomes[-1].decided.detail
    assert isinstance(detail, ClassicDecision)
    assert detail.target_concurrency == 0.9


def test_classic_counts_each_request_once() -> None:
    world = World(revision_with(SEVEN_A_POD, class_name=CLASSIC_CLASS), facts_of(2))
    for _ in range(61):
        for pod in ("pod-0", "pod-1"):
            world.record(stat_of(3, by=pod, proxied=3), StatSource.POD)
        world.record(stat_of(6), StatSource.ACTIVATOR)
        world.now_s += 1
    detail = world.decide().decided.detail
    assert isinstance(detail, ClassicDecision)
    assert (detail.observed_pod_count, detail.desired_stable_count) == (2, 6)


def test_classic_scales_to_zero_through_gate() -> None:
    world = awake(class_name=CLASSIC_CLASS)
    world.live(310, load=0.0)
    assert world.facts.present_scale == 0
    assert any(outcome.to_reserve for outcome in world.outcomes)


def test_classic_does_not_count_silent_ready_pods_as_idle() -> None:
    world = awake(class_name=CLASSIC_CLASS)
    world.now_s += 1000
    assert world.decide().decided.desired_count is None


def test_classic_ignores_present_window_annotations() -> None:
    world = awake(class_name=CLASSIC_CLASS)
    world.scaler.update(revision_with(spec_with(stable_window_s=6.0, panic_window_s=1.0)), world.now_s)
    assert world.decide().decided == world.outcomes[-2].decided


def test_decisions_are_alike_except_in_recheck_time() -> None:
    world = awake()
    first, second = world.decide(), world.decide()
    assert first.is_like(second)
    later = msgspec.structs.replace(second, gate=msgspec.structs.replace(second.gate, recheck_in_s=7.0))
    assert first.is_like(later)
    assert not first.is_like(msgspec.structs.replace(second, gate=msgspec.structs.replace(second.gate, wanted=99)))
    assert not first.is_like(msgspec.structs.replace(second, merged=NoData(missing="")))
    assert msgspec.structs.replace(first, merged=NoData(missing="")).is_like(
        msgspec.structs.replace(second, merged=NoData(missing=""))
    )


def test_shortest_windows_average_last_complete_second() -> None:
    spec = msgspec.structs.replace(SEVEN_A_POD, stable_window_s=6.0, panic_window_s=1.0)
    world = World(revision_with(spec), facts_of(1))
    world.live(4, load=70.0)
    detail = world.outcomes[-1].decided.detail
    assert isinstance(detail, ScaleDecision)
    assert detail.observed_panic == pytest.approx(70)


def test_unchanged_spec_retains_windows() -> None:
    world = awake()
    windows = world.scaler._windows
    before = world.decide()
    world.scaler.update(revision_with(SEVEN_A_POD), world.now_s)
    assert world.scaler._windows is windows
    assert world.decide().is_like(before)


def test_waiting_requests_override_lower_averages() -> None:
    world = asleep_waiting()
    for _ in range(3):
        world.poke(7)
        world.now_s += 1
    world.poke(70)
    world.facts = facts_of(0, serving_state=ServingState.ACTIVE)
    detail = world.decide(DecisionCause.LOAD).decided.detail
    assert isinstance(detail, ScaleDecision)
    assert (detail.observed_stable, detail.observed_panic) == (70, 70)


def test_classic_counts_activator_as_pod_while_there_is_none() -> None:
    world = asleep(class_name=CLASSIC_CLASS)
    for _ in range(3):
        world.poke(3)
        world.now_s += 1
    detail = world.decide().decided.detail
    assert isinstance(detail, ClassicDecision)
    assert (detail.observed_pod_count, detail.observed_stable_concurrency) == (1, 3)


def test_in_flight_of_workload_is_known_from_activators_only() -> None:
    """Pods of a workload never report: a load of 0 from an activator is known, and silence is not."""

    class RecordingPolicy(RevisionPolicy):
        def __init__(self) -> None:
            super().__init__()
            self.known: list[float | None] = []

        def propose(self, view: PolicyView) -> Advice:
            self.known.append(view.in_flight)
            return super().propose(view)

    for is_workload, expected in ((True, [None, 0.0]), (False, [None, None])):
        policy = RecordingPolicy()
        revision = msgspec.structs.replace(revision_with(SEVEN_A_POD), is_workload=is_workload)
        world = World(revision, facts_of(1), policy=policy)
        world.decide()
        world.poke(0.0)
        world.decide()
        assert policy.known == expected


def report_of(world: World, mean: float) -> bool:
    """Record an activator's report shortly after a poke with the same requests."""
    stat = msgspec.structs.replace(stat_of(0.0), window_concurrency=mean, window_request_count=mean)
    return world.record(stat, StatSource.ACTIVATOR)


def poke_of(world: World, count: int) -> bool:
    stat = msgspec.structs.replace(stat_of(count), window_concurrency=0.0, window_request_count=0.0)
    return world.record(stat, StatSource.ACTIVATOR)


@pytest.mark.parametrize("further", [(), (MeasuredMetric(metric="concurrency", target_value=7.0, total_value=7.0),)])
def test_burst_of_workload_is_decided_with_its_first_report(further: tuple[MeasuredMetric, ...]) -> None:
    """Averages after minutes of low load hide the burst for seconds."""
    spec = SEVEN_A_POD
    if further:
        spec = msgspec.structs.replace(SEVEN_A_POD, metric="rps", target_value=700.0, further_metrics=further)
    counts: dict[bool, int | None] = {}
    for is_workload in (True, False):
        world = World(msgspec.structs.replace(revision_with(spec), is_workload=is_workload), facts_of(1))
        for second in range(120):
            world.poke(1.0)
            world.now_s += 1
            if second % 2:
                world.decide()
        # A poke alone triggers no decision.
        assert not poke_of(world, 40)
        world.now_s += 0.5
        assert report_of(world, 20.0) is is_workload
        if is_workload:
            counts[is_workload] = world.decide(DecisionCause.LOAD).apply_count
            # The wanted pods suffice.
            world.now_s += 1.0
            assert not report_of(world, 20.0)
        else:
            counts[is_workload] = world.decide().apply_count
    assert counts == {True: 3, False: None}


def test_pod_loads_of_workload_are_its_pod_reports() -> None:
    world = World(msgspec.structs.replace(revision_with(SEVEN_A_POD), is_workload=True), facts_of(2))
    world.record(msgspec.structs.replace(stat_of(3.0), pod_loads={"p": 3.0}), StatSource.ACTIVATOR)
    assert {pod: stat.concurrency for pod, stat in world.scaler.pod_reports.items()} == {"p": 3.0}
    other = awake()
    assert other.scaler.pod_reports == other.scaler.pods
    other.record(msgspec.structs.replace(stat_of(3.0), pod_heats={"p": 3.0}), StatSource.ACTIVATOR)
    assert other.scaler.pod_heats == {"p": 3.0}


SPEC = msgspec.structs.replace(DEFAULTS, target_burst_capacity=0.0)


WINDOW_S = int(SPEC.stable_window_s)


class PublicWorld(World):
    """A world whose slices change only on request."""

    def __init__(self) -> None:
        served = msgspec.structs.replace(facts_of(1), has_public=True, path=TrafficPath.SERVE)
        super().__init__(revision_with(SPEC), served)

    def change(self, **facts: object) -> ScalerView:
        self.facts = msgspec.structs.replace(self.facts, **facts)
        return self.facts

    def step(self) -> ScalerOutcome:
        return self.scaler.tick(self.facts, DecisionCause.PERIOD, self.now_s)

    def idle(self) -> ScalerOutcome:
        """After a whole window without load."""
        for _ in range(WINDOW_S + 10):
            self.now_s += 1.0
            self.record(stat_of(0.0, by="pod-0"), StatSource.POD)
            self.step()
        return self.step()


def test_path_is_serve_with_burst_capacity() -> None:
    world = PublicWorld()
    world.change(path=TrafficPath.PROXY, proxy_since_s=0.0)
    for second in range(4):
        world.now_s += 1.0
        world.poke(float(second + 1))
    assert world.step().path is TrafficPath.SERVE


def test_path_is_proxy_before_zero_and_no_probe_runs_while_slice_has_pods() -> None:
    world = PublicWorld()
    outcome = world.idle()
    assert (outcome.path, outcome.phase) == (TrafficPath.PROXY, GatePhase.INACTIVE)
    world.now_s += SPEC.scale_to_zero_grace_s
    outcome = world.step()
    assert (outcome.gate.action, outcome.to_prove, outcome.apply_count) == (GateAction.PROBE, False, None)


def test_proof_before_path_change_does_not_count() -> None:
    world = PublicWorld()
    world.idle()
    world.now_s += SPEC.scale_to_zero_grace_s
    world.change(proved_at_s=world.now_s)
    assert world.step().phase is GatePhase.INACTIVE
    world.change(proxy_since_s=world.now_s + 0.1)
    assert world.step().phase is GatePhase.INACTIVE
    world.now_s += 0.2
    outcome = world.step()
    assert (outcome.phase, outcome.to_prove) == (GatePhase.INACTIVE, True)


def test_proof_after_path_change_scales_to_zero() -> None:
    world = PublicWorld()
    world.idle()
    world.change(proxy_since_s=world.now_s)
    world.now_s += 0.1
    world.change(proved_at_s=world.now_s, path=TrafficPath.PROXY)
    assert world.step().phase is GatePhase.PROVED
    world.now_s += SPEC.scale_to_zero_grace_s
    world.change(proved_at_s=world.now_s)
    assert world.step().apply_count == 0


def test_return_to_serve_path_revokes_proof() -> None:
    world = PublicWorld()
    world.idle()
    world.change(proxy_since_s=world.now_s, proved_at_s=world.now_s)
    assert world.step().phase is GatePhase.PROVED
    world.change(proxy_since_s=None)
    assert world.step().phase is GatePhase.INACTIVE


def test_path_is_unchanged_without_public_service() -> None:
    world = PublicWorld()
    world.change(has_public=False)
    assert world.idle().path is TrafficPath.SERVE
