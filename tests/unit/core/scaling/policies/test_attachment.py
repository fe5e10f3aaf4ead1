import msgspec
import pytest

from serving.core.model.nodata import NoData
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.policies.attachment import Triggered, reason_of
from serving.core.scaling.policies.scalingpolicy import Direction, ScalingPolicySpec, Trigger
from serving.core.scaling.policies.tick import TriggerState, decide
from serving.core.scaling.policies.triggertypes import ObservedPods
from serving.core.settings.triggers import TriggerSettings
from tests.unit.core.scaling.policies.builders import pods, policy, trigger, using

SETTINGS = TriggerSettings()
UP = policy(up=(trigger(70, time_s=10),))
BOTH = policy(up=(trigger(70, time_s=10),), down=(msgspec.structs.replace(trigger(30, time_s=10), limit_percent=None),))
PANIC = ScalingPolicySpec(
    up=Direction(trigger=Trigger(type="fixed-step", usage_percent=50, limit_percent=60), delta=3), panic_scale=True
)

LIMITED = policy(up=(trigger(70, time_s=10, limit=80),), max_count=11)
OWN = policy(up=(trigger(70, kind="own", time_s=10),))
CPU = policy(up=(trigger(50, kind="cpu", time_s=10, limit=1000),))


def new_triggered(spec: ScalingPolicySpec = BOTH, settings: TriggerSettings = SETTINGS) -> Triggered:
    return Triggered("p", spec, settings, state=TriggerState(), now_s=0.0)


def wanted(triggered: Triggered, now_s: float = 0.0) -> list[int | NoData]:
    return [proposal.desired for proposal in triggered.proposals(now_s)]


def test_proposal_is_retained_until_next_evaluation() -> None:
    triggered = new_triggered()
    assert triggered.proposals(0.0) == ()
    assert triggered.is_due(0.0)
    triggered.evaluate("r", pods(idle=1, occupied=9), 0.0)
    assert not triggered.is_due(9.9)
    assert wanted(triggered, 9.9) == [13]
    assert triggered.is_due(10.0)
    assert triggered.last is not None
    assert (triggered.last.revision, triggered.last.at_s) == ("r", 0.0)


def test_late_evaluation_retains_schedule() -> None:
    triggered = new_triggered()
    triggered.evaluate("r", pods(idle=1), 1.5)
    assert triggered.due_s == 10.0


def test_schedule_restarts_after_long_absence() -> None:
    triggered = new_triggered()
    triggered.evaluate("r", pods(idle=1), 100.0)
    assert triggered.due_s == 110.0


def test_applied_change_starts_cooldown() -> None:
    triggered = new_triggered()
    triggered.evaluate("r", pods(idle=1, occupied=9), 0.0)
    triggered.settle(10)
    assert triggered.state.last_change_at_s is None
    triggered.settle(11)
    assert triggered.state.last_change_at_s == 0.0


def test_outvoted_proposal_starts_no_cooldown() -> None:
    triggered = new_triggered()
    triggered.evaluate("r", pods(idle=9, occupied=1), 0.0)
    assert wanted(triggered) == [3]
    # Requests want more.
    triggered.settle(12)
    triggered.evaluate("r", pods(idle=11, occupied=1), 10.0)
    assert triggered.state.last_change_at_s is None
    triggered.settle(4)
    assert triggered.state.last_change_at_s == 10.0


def test_changed_policy_is_evaluated_at_once() -> None:
    triggered = new_triggered()
    triggered.evaluate("r", pods(idle=1, occupied=9), 0.0)
    triggered.update(BOTH, 1.0)
    assert not triggered.is_due(1.0)
    triggered.update(UP, 1.0)
    assert triggered.is_due(1.0)


def test_state_of_other_process_is_continued() -> None:
    first = new_triggered(policy(up=(trigger(70, time_s=100),)))
    for tick in range(7):
        first.evaluate("r", pods(idle=1, occupied=9), tick * 10.0)
    last = Triggered("p", policy(up=(trigger(70, time_s=100, limit=100),)), SETTINGS, state=first.state, now_s=70.0)
    last.evaluate("r", pods(idle=1, occupied=9), 70.0)
    assert last.last is not None
    assert "8 of 8 points" in last.last.reason


def test_panic_proposes_pods_until_they_are_idle() -> None:
    triggered = new_triggered(PANIC)
    assert triggered.process_report("a", concurrency=1.0)
    triggered.panic(pods(idle=0, occupied=1), 0.0)
    # No pod has been requested yet, so the proposal remains.
    triggered.panic(pods(idle=0, occupied=1), 0.1)
    assert triggered.proposals(0.1) == (
        Proposal(decider="panic of policy p", desired=4, reason="1 pods are occupied, so 3 more at once"),
    )
    triggered.panic(pods(creating=3, occupied=1), 0.2)
    assert wanted(triggered, 0.2) == [4]
    triggered.panic(pods(idle=3, occupied=1), 1.0)
    assert wanted(triggered, 1.0) == []
    assert triggered.state.last_change_at_s == 0.0


def test_process_report_detects_first_request_of_pod() -> None:
    triggered = new_triggered(PANIC)
    assert triggered.process_report("a", concurrency=1.0)
    assert not triggered.process_report("a", concurrency=2.0)
    assert not triggered.process_report("a", concurrency=0.0)
    assert triggered.process_report("a", concurrency=0.5)
    triggered.forget_pod("a")
    assert triggered.process_report("a", concurrency=0.5)


def test_panic_within_limit_proposes_nothing() -> None:
    triggered = new_triggered(PANIC)
    triggered.process_report("a", concurrency=1.0)
    triggered.panic(pods(idle=1, occupied=1), 0.0)
    assert wanted(triggered) == []


def test_panic_ends_with_its_lock() -> None:
    triggered = new_triggered(PANIC)
    triggered.process_report("a", concurrency=1.0)
    triggered.panic(pods(occupied=1), 0.0)
    assert wanted(triggered, SETTINGS.panic_lock_s) == []


def test_quirk_panic_without_cooldown_starts_no_cooldown() -> None:
    quirks = msgspec.structs.replace(SETTINGS.quirks, panic_starts_no_cooldown=True)
    triggered = new_triggered(PANIC, msgspec.structs.replace(SETTINGS, quirks=quirks))
    triggered.process_report("a", concurrency=1.0)
    triggered.panic(pods(occupied=1), 0.0)
    assert triggered.state.last_change_at_s is None


def test_process_report_is_false_without_panic_scale() -> None:
    triggered = new_triggered(UP)
    assert not triggered.process_report("a", concurrency=1.0)


def test_proposal_is_content_without_change_below_maximum() -> None:
    triggered = new_triggered()
    triggered.evaluate("r", pods(idle=1, occupied=9), 0.0)
    assert [proposal.is_content for proposal in triggered.proposals(0.0)] == [False]
    triggered = new_triggered(UP)
    triggered.evaluate("r", pods(idle=5, occupied=5), 0.0)
    assert [proposal.is_content for proposal in triggered.proposals(0.0)] == [True]
    triggered = new_triggered(msgspec.structs.replace(UP, max_count=10))
    triggered.evaluate("r", pods(idle=5, occupied=5), 0.0)
    assert [proposal.is_content for proposal in triggered.proposals(0.0)] == [False]


@pytest.mark.parametrize(
    ("spec", "observed", "changed_at_s", "words"),
    [
        (UP, pods(idle=2, occupied=8), None, "points: 80 % of the pods are occupied, aims at 70 %, 1 of 1 points above it; +1 pod"),
        (BOTH, pods(idle=9, occupied=1), None, "points: 10 % of the pods are occupied, aims at 30 %, 1 of 1 points below it; -7 pods"),
        (LIMITED, pods(idle=1, occupied=9), None, "limit: 90 % of the pods are occupied, limit 80 %; +3 pods; max makes it 1"),
        (UP, pods(idle=2, occupied=8), -50.0, "cooldown: 80 % of the pods are occupied, aims at 70 %, 1 of 1 points above it, 250 s more"),
        (UP, pods(idle=5, occupied=5), None, "in-sync: 50 % of the pods are occupied"),
        (LIMITED, pods(idle=1, occupied=10), None, "at its max 11: 91 % of the pods are occupied"),
        (UP, pods(), None, "no-data"),
        (OWN, pods(idle=1), None, "no-data"),
        (policy(min_count=3), pods(idle=1), None, "below-min: 1 of at least 3; +2 pods"),
        (policy(max_count=1), pods(idle=3), None, "above-max: 3 of at most 1; -2 pods"),
        (CPU, using(900, 1000), None, "points: 90 % of the requested cpu, aims at 50 %, 1 of 1 points above it; +8 pods"),
    ],
)  # fmt: skip
def test_reason_has_rule_numbers_and_bounds(
    spec: ScalingPolicySpec, observed: ObservedPods, changed_at_s: float | None, words: str
) -> None:
    state = TriggerState(last_change_at_s=changed_at_s)
    _, decision = decide(state, observed, spec, settings=SETTINGS, now_s=0.0)
    assert reason_of(decision, spec=spec) == words
