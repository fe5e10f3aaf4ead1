from serving.model.stat import Stat
from serving.scaling.revision import ScaledPod
from serving.scaling.victims import cost_changes


def pod(name: str, cost: str = "") -> ScaledPod:
    return ScaledPod(name=name, key=("default", "r"), is_ready=True, is_ending=False, deletion_cost=cost)


def report(name: str, concurrency: float) -> Stat:
    return Stat(pod=name, at_s=0.0, concurrency=concurrency, request_count=0.0)


REPORTS = {name: report(name, load) for name, load in (("a", 3.0), ("b", 0.0), ("c", 1.0))}


def test_the_idlest_go_first() -> None:
    changes = cost_changes([pod("a"), pod("b"), pod("c")], REPORTS, victim_count=2)
    assert changes == [("b", "-1"), ("c", "-1")]


def test_who_is_marked_already_is_left_alone() -> None:
    assert cost_changes([pod("a"), pod("b", "-1"), pod("c")], REPORTS, victim_count=1) == []


def test_who_was_marked_once_and_is_busy_now_is_spared() -> None:
    assert cost_changes([pod("a", "-1"), pod("b"), pod("c")], REPORTS, victim_count=1) == [("b", "-1"), ("a", None)]


def test_a_cost_that_somebody_else_has_set_stays() -> None:
    assert cost_changes([pod("a", "100"), pod("b")], REPORTS, victim_count=1) == [("b", "-1")]


def test_a_pod_that_reports_nothing_counts_as_idle() -> None:
    assert cost_changes([pod("c"), pod("silent")], REPORTS, victim_count=1) == [("silent", "-1")]


def test_equally_idle_pods_go_by_name() -> None:
    assert cost_changes([pod("z"), pod("y"), pod("x")], {}, victim_count=2) == [("x", "-1"), ("y", "-1")]
