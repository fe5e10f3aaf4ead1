"""The planner of gradual rollouts."""

from typing import Any

import pytest

from serving.controller.routes.rollout import (
    advance,
    newest_of,
    next_step_s,
    observe_ready,
    rollout_goal,
    rollout_of_status,
    split_targets,
)
from serving.core.model.rollout import ConfigurationRollout, RevisionShare, Rollout

LATEST: list[dict[str, Any]] = [{"configurationName": "hello", "percent": 100}]


def goal(revision: str, *, percent: int = 100) -> Rollout:
    requests = [{"configurationName": "hello", "percent": percent}]
    return rollout_goal(requests, [{"revisionName": revision, "percent": percent}])


def shares(rollout: Rollout) -> list[tuple[str, int]]:
    (configuration_rollout,) = rollout.configurations
    return [(share.revision_name, share.percent) for share in configuration_rollout.revisions]


def step(wanted: Rollout, before: Rollout, *, now_s: float = 0.0, gone: str = "") -> Rollout:
    return advance(wanted, before, can_serve=lambda name: name != gone, now_s=now_s)


def running(*percents: int, total: int | None = None) -> Rollout:
    """A rollout in progress, of revisions r1, r2, ..."""
    return Rollout(
        configurations=(
            ConfigurationRollout(
                configuration_name="hello",
                percent=sum(percents) if total is None else total,
                revisions=tuple(
                    RevisionShare(revision_name=f"r{number}", percent=percent)
                    for number, percent in enumerate(percents, start=1)
                ),
            ),
        )
    )


def test_first_revision_gets_all_traffic_immediately() -> None:
    assert step(goal("r1"), Rollout()) == goal("r1")


def test_new_revision_starts_with_1_percent() -> None:
    after = step(goal("r2"), goal("r1"), now_s=10.0)
    assert shares(after) == [("r1", 99), ("r2", 1)]
    assert after.configurations[0].step_params.start_time_ns == 10_000_000_000


def test_rollout_does_not_step_before_first_percent_is_routed() -> None:
    started = step(goal("r2"), goal("r1"), now_s=10.0)
    assert next_step_s(started) is None
    assert step(goal("r2"), started, now_s=1000.0) == started


def test_rollout_steps_are_equal_and_span_the_duration() -> None:
    rollout = observe_ready(step(goal("r2"), goal("r1"), now_s=0.0), duration_s=10, now_s=0.4)
    seen = []
    while (due_s := next_step_s(rollout)) is not None:
        assert step(goal("r2"), rollout, now_s=due_s - 0.01) == rollout
        rollout = step(goal("r2"), rollout, now_s=due_s)
        seen.append((round(due_s, 3), shares(rollout)[-1][1]))
    assert seen == [(0.4 + number, min(1 + 10 * number, 100)) for number in range(1, 11)]
    assert rollout == goal("r2")


def test_step_duration_is_at_least_time_of_first_percent() -> None:
    rollout = observe_ready(step(goal("r2"), goal("r1"), now_s=0.0), duration_s=10, now_s=4.5)
    params = rollout.configurations[0].step_params
    assert (params.step_duration_ns, params.step_size) == (5_000_000_000, 50)


def test_duration_shorter_than_a_step_is_one_step() -> None:
    rollout = observe_ready(step(goal("r2"), goal("r1"), now_s=0.0), duration_s=1, now_s=60.0)
    assert shares(step(goal("r2"), rollout, now_s=61.0)) == [("r2", 100)]


def test_long_duration_moves_1_percent_per_step() -> None:
    rollout = observe_ready(step(goal("r2"), goal("r1"), now_s=0.0), duration_s=990, now_s=0.5)
    params = rollout.configurations[0].step_params
    assert (params.step_duration_ns, params.step_size) == (10_000_000_000, 1)


def test_step_parameters_are_planned_once() -> None:
    rollout = observe_ready(step(goal("r2"), goal("r1"), now_s=0.0), duration_s=10, now_s=1.0)
    assert observe_ready(rollout, duration_s=500, now_s=2.0) == rollout
    assert observe_ready(goal("r1"), duration_s=500, now_s=2.0) == goal("r1")


def test_further_revision_takes_shares_of_newest_predecessor_first() -> None:
    after = step(goal("r4"), running(50, 29, 21), now_s=5.0)
    assert shares(after) == [("r1", 50), ("r2", 29), ("r3", 20), ("r4", 1)]
    planned = observe_ready(after, duration_s=4, now_s=5.0)
    due_s = next_step_s(planned)
    assert due_s == 6.0
    assert shares(step(goal("r4"), planned, now_s=due_s)) == [("r1", 50), ("r2", 24), ("r4", 26)]


def test_revision_with_1_percent_is_replaced_by_the_next() -> None:
    assert shares(step(goal("r3"), running(99, 1))) == [("r1", 99), ("r3", 1)]


def test_returning_revision_retains_its_share() -> None:
    assert shares(step(goal("r1"), running(70, 30))) == [("r2", 30), ("r1", 70)]


def test_increase_goes_to_newest_and_decrease_to_oldest_revisions() -> None:
    assert shares(step(goal("r2", percent=80), running(40, 20))) == [("r1", 40), ("r2", 40)]
    assert shares(step(goal("r3", percent=50), running(40, 30, 20))) == [("r2", 30), ("r3", 20)]
    assert shares(step(goal("r2", percent=50), running(40, 30))) == [("r1", 20), ("r2", 30)]


@pytest.mark.parametrize("percent", [1, 0])
def test_target_of_1_percent_is_not_split(percent: int) -> None:
    assert step(goal("r2", percent=percent), goal("r1", percent=percent)) == goal("r2", percent=percent)


def test_share_of_deleted_revision_goes_to_newest() -> None:
    assert shares(step(goal("r2"), running(60, 40), gone="r1")) == [("r2", 100)]
    assert step(goal("r2"), goal("r1"), gone="r1") == goal("r2")


def test_tags_and_configurations_roll_out_separately() -> None:
    requests: list[dict[str, Any]] = [
        {"configurationName": "b", "percent": 30},
        {"configurationName": "a", "percent": 20},
        {"configurationName": "a", "percent": 10, "tag": "x"},
        {"configurationName": "a", "tag": "y"},
        {"revisionName": "pinned", "percent": 40, "tag": "z"},
    ]
    assigned = [{"revisionName": name} for name in ("b1", "a1", "a1", "a1", "pinned")]
    results = [
        (
            configuration_rollout.tag,
            configuration_rollout.configuration_name,
            configuration_rollout.percent,
            configuration_rollout.revisions[0].revision_name,
        )
        for configuration_rollout in rollout_goal(requests, assigned).configurations
    ]
    assert results == [("", "a", 30, "a1"), ("", "b", 30, "b1"), ("x", "a", 100, "a1"), ("y", "a", 100, "a1")]


def test_rollout_state_is_recovered_from_status() -> None:
    requests = [
        {"configurationName": "a", "percent": 60},
        {"configurationName": "b", "percent": 30},
        {"configurationName": "a", "percent": 10, "tag": "new"},
    ]
    served = [
        {"revisionName": "a1", "latestRevision": True, "percent": 55},
        {"revisionName": "b1", "latestRevision": True, "percent": 40},
        {"revisionName": "a1", "latestRevision": False, "percent": 5, "tag": "new"},
    ]
    rollout = rollout_of_status(requests, served, configurations={"a1": "a", "b1": "b"})
    assert [
        (configuration_rollout.tag, configuration_rollout.percent, configuration_rollout.revisions[0].revision_name)
        for configuration_rollout in rollout.configurations
    ] == [
        ("", 60, "a1"),
        ("", 30, "b1"),
    ]


def test_split_targets_have_one_revision_per_share() -> None:
    requests: list[dict[str, Any]] = [
        {"configurationName": "hello", "percent": 50},
        {"revisionName": "pinned", "percent": 10},
        {"configurationName": "hello", "percent": 40, "tag": "new"},
        {"configurationName": "hello", "tag": "zero"},
    ]
    assigned: list[dict[str, Any]] = [
        {"revisionName": "r2", "latestRevision": True, "percent": 50},
        {"revisionName": "pinned", "latestRevision": False, "percent": 10},
        {"revisionName": "r2", "latestRevision": True, "percent": 40, "tag": "new"},
        {"revisionName": "r2", "latestRevision": True, "tag": "zero"},
    ]
    assert split_targets(requests, assigned, running(70, 20)) == [
        {"revisionName": "r1", "latestRevision": False, "percent": 50},
        {"revisionName": "pinned", "latestRevision": False, "percent": 10},
        {"revisionName": "r1", "latestRevision": False, "percent": 20, "tag": "new"},
        {"revisionName": "r2", "latestRevision": True, "percent": 20, "tag": "new"},
        {"revisionName": "r2", "latestRevision": True, "tag": "zero"},
    ]


def test_paused_revision_gets_no_step_until_resumed() -> None:
    begun = observe_ready(step(goal("r2"), goal("r1")), duration_s=10.0, now_s=1.0)
    due_s = next_step_s(begun)
    assert due_s is not None
    rollout = advance(goal("r2"), begun, can_serve=bool, now_s=due_s, paused={"r2"})
    assert shares(rollout) == [("r1", 99), ("r2", 1)]
    assert shares(advance(goal("r2"), rollout, can_serve=bool, now_s=due_s + 60))[1] == ("r2", 11)


@pytest.mark.parametrize(("percents", "after"), [((40, 60), [("r1", 100)]), ((20, 30, 50), [("r1", 20), ("r2", 80)])])
def test_broken_revision_loses_traffic_immediately(percents: tuple[int, ...], after: list[tuple[str, int]]) -> None:
    newest = f"r{len(percents)}"
    rollout = advance(goal(newest), running(*percents), can_serve=bool, now_s=5.0, broken={newest})
    assert shares(rollout) == after
    assert shares(advance(goal(newest), rollout, can_serve=bool, now_s=9.0, broken={newest})) == after
    # A newer revision starts from these shares.
    assert shares(step(goal("r9"), rollout, now_s=9.0))[-1] == ("r9", 1)


def test_broken_revision_retains_traffic_without_alternative() -> None:
    rollout = advance(goal("r2"), running(40, 60), can_serve=lambda name: name != "r1", now_s=5.0, broken={"r2"})
    assert shares(rollout) == [("r2", 100)]
    assert advance(goal("r2"), Rollout(), can_serve=bool, now_s=5.0, broken={"r2"}) == goal("r2")


def test_newest_of_returns_newest_revision_of_split_targets() -> None:
    assert newest_of(running(40, 60)) == ["r2"]
    assert newest_of(goal("r2")) == []
