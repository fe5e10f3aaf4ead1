import pytest

from serving.autoscaler.io.events import EventBudget, EventPermit, kill_sentence, scale_event
from serving.core.scaling.revision import ScaledPod
from tests.unit.core.scaling.scaler_builders import revision_with


def test_event_budget_permits_a_burst_of_5_then_1_per_30_s() -> None:
    budget = EventBudget()
    reported = [budget.acquire("u", 0.0) for _ in range(8)]
    assert [event_permit is not None for event_permit in reported] == [True] * 5 + [False] * 3
    assert budget.acquire("other", 0.0) == EventPermit(number=0, left_out_count=0)
    assert budget.acquire("u", 29.0) is None
    assert budget.acquire("u", 30.0) == EventPermit(number=5, left_out_count=4)
    assert budget.acquire("u", 31.0) is None


def test_event_names_are_reused_after_20_events() -> None:
    budget = EventBudget()
    permits = [permit for step in range(100) if (permit := budget.acquire("u", step * 60.0))]
    assert {permit.number for permit in permits} == set(range(20))
    assert [permit.is_repeated for permit in permits] == [False] * 20 + [True] * 80


def test_forget_resets_the_event_budget_of_a_revision() -> None:
    budget = EventBudget()
    for _ in range(9):
        budget.acquire("u", 0.0)
    budget.forget("u")
    budget.forget("u")
    assert budget.acquire("u", 0.0) == EventPermit(number=0, left_out_count=0)


def test_event_names_its_revision_and_the_number_of_omitted_changes() -> None:
    event = scale_event(
        revision_with(), "3 → 8: panic", permit=EventPermit(number=4, left_out_count=2), now="2026-11-21T07:00:00Z"
    )
    assert event["metadata"] == {"name": "hello-00001.scaled-4", "namespace": "default"}
    assert event["message"] == "3 → 8: panic (changes left out before it: 2)"
    assert event["involvedObject"]["kind"] == "Revision"
    plain = scale_event(revision_with(), "x" * 2000, permit=EventPermit(number=0, left_out_count=0), now="")
    assert (plain["message"], plain["type"]) == ("x" * 1024, "Normal")


@pytest.mark.parametrize(("count", "times"), [(1, ""), (3, " 3 times")])
def test_oom_kill_is_a_warning_event_that_names_the_pod(count: int, times: str) -> None:
    pod = ScaledPod(
        name="p", key=("default", "r"), is_ready=False, is_ending=False, deletion_cost="", oom_kill_count=count
    )
    assert kill_sentence(pod) == f"pod p was killed{times}: it used more memory than its limit"
    permit = EventPermit(number=0, left_out_count=0)
    event = scale_event(revision_with(), kill_sentence(pod), permit=permit, now="", reason="OOMKilled")
    assert (event["type"], event["reason"]) == ("Warning", "OOMKilled")
