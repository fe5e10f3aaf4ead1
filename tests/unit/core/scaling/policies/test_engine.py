from collections.abc import Mapping
from typing import Any

import pytest

from serving.core.model.knative import RevisionKey, ServingState
from serving.core.model.quantity import Resources
from serving.core.model.scaledworkload import Schedule
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.policies.engine import PolicyCalendar, Triggers
from serving.core.scaling.policies.index import PolicyKey
from serving.core.scaling.policies.scalingpolicy import ScheduleState
from serving.core.scaling.policies.triggertypes import ObservedPods
from serving.core.scaling.revision import ScaledRevision
from serving.core.settings.triggers import TriggerSettings
from serving.net.cluster.schedules import schedule_state
from tests.unit.core.scaling.policies.builders import pods
from tests.unit.core.scaling.policy_builders import CPU_UP, ROOM_UP, policy, revision

HELLO, KEY = revision(), ("default", "p")
OFFSET_S = 1_000_000.0
PANIC = {"trigger": {"type": "fixed-step", "usagePercent": 50, "limitPercent": 60}}


class TriggerStage:
    """Triggers, and the keys of changed policies."""

    def __init__(self, cpu_m: int | None = 100) -> None:
        self.news: list[PolicyKey] = []
        self.update_count = 0
        self.cpu_m = cpu_m
        self.triggers = Triggers(
            TriggerSettings(), requests=self.requests, on_change=self.news.append, state_at=schedule_state
        )

    def requests(self, _: RevisionKey) -> Mapping[str, Resources]:
        return {"c": Resources(cpu_m=self.cpu_m)}

    def decide(
        self, scaled_revision: ScaledRevision = HELLO, observed: ObservedPods | None = None, *, now_s: float = 0.0
    ) -> tuple[Proposal, ...]:
        seen = pods(idle=1, occupied=9) if observed is None else observed

        def observe() -> ObservedPods:
            self.update_count += 1
            return seen

        return self.triggers.proposals(
            scaled_revision, observe, present_scale=seen.available_count, now_s=now_s, wall_offset_s=OFFSET_S
        )

    def condition(self, key: PolicyKey = KEY) -> Mapping[str, str]:
        status = self.status(key)
        (condition,) = status["conditions"]
        return condition  # type: ignore[no-any-return] # JSON

    def status(self, key: PolicyKey = KEY, *, now_s: float = 0.0):  # type: ignore[no-untyped-def] # noqa: ANN201 - JSON
        status = self.triggers.status(key, now_s=now_s, wall_offset_s=OFFSET_S, stamp=lambda at_s: f"at {at_s:.0f}")
        assert status is not None
        return status


def test_no_pods_are_observed_without_policies() -> None:
    stage = TriggerStage()
    assert stage.decide() == ()
    assert (stage.update_count, stage.triggers.due_in_s(HELLO.key, 0.0)) == (0, None)
    assert not stage.triggers.process_report(HELLO.key, "a", concurrency=1.0)
    stage.triggers.forget_pod(HELLO.key, "a")
    stage.triggers.forget(HELLO.key)
    assert stage.news == []


def test_policy_is_evaluated_once_per_period() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(up=ROOM_UP))
    (first,) = stage.decide()
    assert (first.decider, first.desired) == ("policy p", 13)
    assert stage.decide(now_s=2.0) == (first,)
    assert stage.update_count == 1
    assert stage.triggers.due_in_s(HELLO.key, 2.0) == 8.0
    assert stage.news == [KEY, KEY, KEY], "a policy, a revision that follows it, and a decision"
    assert (stage.triggers.policy_count, stage.triggers.is_followed(KEY)) == (1, True)


def test_no_policy_is_evaluated_at_scale_zero() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(up=ROOM_UP))
    assert stage.decide(observed=pods()) == ()
    assert (stage.update_count, stage.triggers.due_in_s(HELLO.key, 0.0)) == (0, None)


def test_min_count_applies_at_scale_zero() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(min=2))
    assert [proposal.desired for proposal in stage.decide(observed=pods())] == [2]


@pytest.mark.parametrize("scaled_revision", [revision(reachable=False), revision(state=ServingState.RETIRED)])
def test_unreachable_or_retired_revision_gets_no_proposals(scaled_revision: ScaledRevision) -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(min=20))
    assert stage.decide(scaled_revision) == ()
    assert stage.triggers.due_in_s(scaled_revision.key, 0.0) is None


def test_dropped_policy_proposes_nothing() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(up=ROOM_UP))
    stage.decide()
    stage.triggers.drop_policy(KEY)
    assert stage.decide(now_s=1.0) == ()
    assert stage.triggers.status(KEY, now_s=0.0, wall_offset_s=0.0, stamp=str) is None


def test_next_policy_replaces_dropped_policy() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy("a", up=ROOM_UP))
    stage.triggers.set_policy(policy("b", min=12))
    stage.decide()
    assert stage.condition(("default", "b"))["reason"] == "Conflict"
    stage.news.clear()
    stage.triggers.drop_policy(("default", "a"))
    assert stage.news == [("default", "b")]
    assert [proposal.decider for proposal in stage.decide(now_s=1.0)] == ["policy b"]
    assert stage.condition(("default", "b"))["status"] == "True"


def test_changed_policy_applies_at_next_decision() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(up=ROOM_UP))
    stage.decide()
    stage.triggers.set_policy(policy(min=20))
    assert [proposal.desired for proposal in stage.decide(now_s=1.0)] == [20]


def test_own_status_write_is_no_change() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(up=ROOM_UP))
    stage.decide()
    stage.news.clear()
    stage.triggers.set_policy(policy(up=ROOM_UP, status=stage.status()))
    assert stage.news == []
    assert stage.decide(now_s=1.0)
    assert stage.news == []


def test_recreated_revision_gets_new_state() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(up=ROOM_UP))
    stage.decide()
    stage.decide(revision(uid="r2"), now_s=1.0)
    assert [entry["uid"] for entry in stage.status()["revisions"]] == ["r2"]
    stage.triggers.forget(HELLO.key)
    assert stage.condition()["reason"] == "TargetNotFound"


def test_cpu_trigger_without_requests_is_reported() -> None:
    stage = TriggerStage(cpu_m=None)
    stage.triggers.set_policy(policy(up=CPU_UP))
    assert stage.decide() == ()
    condition = stage.condition()
    assert condition["reason"] == "NoRequests"
    assert "revision hello-00001: " in condition["message"]
    assert "which container c lacks" in condition["message"]
    # Another kind of trigger needs none.
    stage.triggers.set_policy(policy(up=ROOM_UP))
    assert stage.decide(now_s=1.0)
    assert stage.condition()["status"] == "True"


@pytest.mark.parametrize(
    ("spec", "wants"),
    [
        ({"up": CPU_UP}, True),
        ({"down": CPU_UP}, True),
        ({"up": {**CPU_UP, "triggers": [{"type": "mem", "usagePercent": 50, "timeSeconds": 10}]}}, True),
        ({"up": ROOM_UP, "down": ROOM_UP}, False),
        ({"min": 2}, False),
    ],
)
def test_usage_is_wanted_only_for_cpu_and_memory_triggers(spec: dict[str, Any], *, wants: bool) -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(**spec))
    assert not stage.triggers.wants_usage
    stage.decide()
    assert stage.triggers.wants_usage is wants


def test_usage_is_wanted_while_a_revision_has_cpu_trigger() -> None:
    stage = TriggerStage()

    def wants(second: float) -> bool:
        stage.decide(now_s=second)
        return stage.triggers.wants_usage

    stage.triggers.set_policy(policy(up=CPU_UP))
    assert wants(0.0)
    stage.triggers.set_policy(policy(up=ROOM_UP))
    assert not wants(1.0)
    stage.triggers.set_policy(policy(up=CPU_UP))
    assert wants(2.0)
    stage.triggers.drop_policy(KEY)
    assert not wants(3.0)
    stage.triggers.set_policy(policy(up=CPU_UP))
    assert wants(4.0)
    stage.triggers.forget(HELLO.key)
    assert not stage.triggers.wants_usage


def test_status_has_decision_conditions_and_points() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(up=ROOM_UP))
    stage.decide(now_s=5.0)
    status = stage.status(now_s=6.0)
    assert status["observedGeneration"] == 1
    assert status["conditions"] == [
        {
            "type": "Attached",
            "status": "True",
            "reason": "Attached",
            "message": "holds for hello-00001",
            "lastTransitionTime": "at 1000006",
        }
    ]
    assert status["lastDecision"]["time"] == "at 1000005"
    assert (status["lastDecision"]["rule"], status["lastDecision"]["desired"]) == ("limit", 13)
    assert status["revisions"][0]["points"] == {"occupancy": ((1_000_005_000, 0.9),)}


def test_condition_retains_its_transition_time() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(up=ROOM_UP))
    stage.decide()
    stage.triggers.set_policy(policy(up=ROOM_UP, status=stage.status()))
    assert stage.status(now_s=60.0)["conditions"][0]["lastTransitionTime"] == "at 1000000"


def test_unknown_desired_count_is_null_in_status() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(up=CPU_UP))
    stage.decide()
    assert stage.status()["lastDecision"]["desired"] is None


def test_points_are_restored_in_next_process() -> None:
    first, then = TriggerStage(), TriggerStage()
    slow = {"triggers": [{"type": "occupancy", "usagePercent": 70, "timeSeconds": 30, "limitPercent": 100}]}
    first.triggers.set_policy(policy(up=slow))
    for second in (100.0, 110.0):
        assert first.decide(now_s=second)[0].desired == 0, "two points of three are too few"
    remaining = policy(up=slow, status=first.status())
    # The clock of the next process is at 7 s; 10 s have passed.
    then.triggers.set_policy(remaining)
    (proposal,) = then.triggers.proposals(
        HELLO, lambda: pods(idle=1, occupied=9), present_scale=10, now_s=7.0, wall_offset_s=OFFSET_S + 113.0
    )
    assert proposal.desired == 13
    assert "3 of 3 points" in proposal.reason


def test_saved_points_are_not_overwritten_by_later_status() -> None:
    stage = TriggerStage()
    results = [{"name": "hello-00001", "uid": "r1", "points": {"occupancy": [[1_000_000_000, 0.9]]}}]
    stage.triggers.set_policy(policy(up=ROOM_UP, status={"revisions": results}))
    # Another revision of the same service was decided on first.
    stage.triggers.set_policy(policy(up=ROOM_UP, status={"revisions": []}))
    stage.decide(now_s=9.0)
    assert len(stage.status()["revisions"][0]["points"]["occupancy"]) == 1


def test_latest_status_of_other_writer_is_used() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(up=ROOM_UP, status={"revisions": []}), is_ours=False)
    results = [{"name": "hello-00001", "uid": "r1", "points": {"occupancy": [[1_000_000_000, 0.9]]}}]
    stage.triggers.set_policy(policy(up=ROOM_UP, status={"revisions": results}), is_ours=False)
    stage.decide(now_s=9.0)
    assert len(stage.status()["revisions"][0]["points"]["occupancy"]) == 1


def test_recheck_all_reports_every_policy() -> None:
    stage = TriggerStage()
    scaling_policy_view = policy(up=ROOM_UP)
    stage.triggers.set_policy(scaling_policy_view)
    stage.news.clear()
    stage.triggers.recheck_all()
    assert stage.news == [KEY]
    assert stage.triggers.target(KEY) == scaling_policy_view.target
    assert stage.triggers.target(("default", "gone")) is None


def test_panic_is_evaluated_at_each_decision() -> None:
    stage = TriggerStage()
    stage.triggers.set_policy(policy(up=PANIC, panicScale=True))
    quiet = pods(idle=2)
    stage.decide(observed=quiet)
    assert stage.triggers.process_report(HELLO.key, "a", concurrency=1.0)
    assert stage.triggers.process_report(HELLO.key, "b", concurrency=1.0)
    proposals = stage.decide(observed=pods(occupied=2), now_s=1.0)
    assert [(proposal.decider, proposal.desired) for proposal in proposals][1:] == [("panic of policy p", 3)]
    stage.triggers.forget_pod(HELLO.key, "a")
    assert stage.triggers.process_report(HELLO.key, "a", concurrency=1.0)


def test_schedule_proposes_in_addition_to_triggers_and_at_scale_zero() -> None:
    """The wall clock is 1,000,000 s after the epoch: January 12, 1970, 13:46:40."""
    stage = TriggerStage()
    schedule = {"name": "noon", "start": "0 13 * * *", "end": "0 14 * * *", "min": 7}
    stage.triggers.set_policy(policy(up=ROOM_UP, schedules=[schedule]))
    (scheduled,) = stage.decide(observed=pods())
    assert (scheduled.desired, stage.update_count) == (7, 0)
    assert scheduled.decider == "schedule noon of policy p"
    assert scheduled.reason == "until 1970-01-12 14:00 Etc/UTC"
    status = stage.status()
    assert (status["scheduledMin"], status["schedules"][0]["active"]) == (7, True)
    news = len(stage.news)
    assert [proposal.desired for proposal in stage.decide(now_s=2.0)] == [13, 7]
    assert stage.decide(observed=pods(), now_s=800.0) == ()
    assert len(stage.news) > news
    assert (stage.status()["scheduledMin"], stage.status()["schedules"][0]["active"]) == (None, False)


def test_changed_schedule_applies_at_next_decision() -> None:
    stage = TriggerStage()
    schedule = {"start": "0 13 * * *", "end": "0 14 * * *"}
    stage.triggers.set_policy(policy(schedules=[{**schedule, "min": 2}]))
    assert [proposal.desired for proposal in stage.decide(observed=pods())] == [2]
    stage.triggers.set_policy(policy(schedules=[{**schedule, "min": 4}]))
    assert [proposal.desired for proposal in stage.decide(observed=pods())] == [4]
    stage.triggers.set_policy(policy(schedules=[{**schedule, "min": 4, "timeZone": "Nowhere"}]))
    assert stage.decide(observed=pods()) == ()
    assert "spec.schedules[0].timeZone" in stage.condition()["message"]


class Clock:
    """Schedules that are active every other hour; counts its calls."""

    def __init__(self) -> None:
        self.update_count = 0

    def __call__(self, schedule: Schedule, wall_s: float) -> ScheduleState:
        self.update_count += 1
        hour = int(wall_s // 3600)
        is_active = hour % 2 == int(schedule.start)
        return ScheduleState(is_active=is_active, until_s=(hour + 1) * 3600.0, until=f"{hour + 1}:00")


def new_calendar(clock: Clock) -> PolicyCalendar:
    even, odd = Schedule(name="even", start="0", end="1", min_count=3), Schedule(start="1", end="0", min_count=5)
    return PolicyCalendar("p", (even, odd), clock)


def test_calendar_proposes_active_schedules_and_updates_at_their_end() -> None:
    clock = Clock()
    policy_calendar = new_calendar(clock)
    assert (policy_calendar.proposals(), policy_calendar.min_count, policy_calendar.status()) == ((), 0, [])
    assert policy_calendar.update(100.0)
    (proposal,) = policy_calendar.proposals()
    assert (proposal.decider, proposal.desired, proposal.reason) == ("schedule even of policy p", 3, "until 1:00")
    assert not policy_calendar.update(3599.0)
    assert policy_calendar.update(3600.0)
    (proposal,) = policy_calendar.proposals()
    assert (proposal.decider, proposal.desired) == ("schedule 1 to 0 of policy p", 5)
    assert (policy_calendar.min_count, clock.update_count) == (5, 4)
    assert [entry["active"] for entry in policy_calendar.status()] == [False, True]


def test_calendar_updates_after_backward_clock_step() -> None:
    policy_calendar = new_calendar(Clock())
    policy_calendar.update(7300.0)
    assert policy_calendar.update(3700.0)
    assert policy_calendar.min_count == 5


def test_calendar_without_schedules_needs_no_update() -> None:
    policy_calendar = PolicyCalendar("p", (), Clock())
    assert not policy_calendar.update(0.0)
    assert policy_calendar.proposals() == ()
