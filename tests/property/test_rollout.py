"""Invariants of gradual rollouts."""

from hypothesis import given
from hypothesis import strategies as st

from serving.controller.routes.rollout import advance, next_step_s, observe_ready, rollout_goal, split_targets
from serving.core.model.knative import ROLLOUT_ANNOTATION
from serving.core.model.rollout import Rollout, read_rollout, write_rollout

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("revision"), st.integers(1, 9)),
        st.tuples(st.just("percent"), st.integers(0, 100)),
        st.tuples(st.just("wait"), st.integers(0, 30)),
        st.tuples(st.just("ready"), st.integers(1, 30)),
        st.tuples(st.just("gone"), st.integers(1, 9)),
    ),
    max_size=30,
)


def targets(percent: int, revision: int) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    name = f"r{revision}"
    requests: list[dict[str, object]] = [
        {"configurationName": "hello", "percent": percent},
        {"configurationName": "hello", "tag": "new"},
        {"revisionName": "pinned", "percent": 100 - percent},
    ]
    assigned: list[dict[str, object]] = [
        {"revisionName": name, "latestRevision": True, "percent": percent},
        {"revisionName": name, "latestRevision": True, "tag": "new"},
        {"revisionName": "pinned", "latestRevision": False, "percent": 100 - percent},
    ]
    return requests, assigned


@given(events=EVENTS)
def test_rollout_assigns_100_percent_to_existing_revisions(events: list[tuple[str, int]]) -> None:
    rollout, now_s, revision, percent, gone = Rollout(), 1000.0, 1, 100, set[str]()

    def serves(name: str) -> bool:
        return name not in gone

    for event, value in events:
        match event:
            case "revision":
                revision = value
                gone.discard(f"r{value}")
            case "percent":
                percent = value
            case "wait":
                now_s += value
            case "ready":
                rollout = observe_ready(rollout, duration_s=value, now_s=now_s)
            case _:
                gone |= {f"r{value}"} - {f"r{revision}"}
        requests, assigned = targets(percent, revision)
        rollout = advance(rollout_goal(requests, assigned), rollout, can_serve=serves, now_s=now_s)
        entries = split_targets(requests, assigned, rollout)
        assert sum(int(str(entry.get("percent", 0))) for entry in entries) == 100
        assert not {entry["revisionName"] for entry in entries} & gone
        assert {entry["percent"] for entry in entries if entry["revisionName"] == "pinned"} == {100 - percent}
        for configuration_rollout in rollout.configurations:
            assert sum(share.percent for share in configuration_rollout.revisions) == configuration_rollout.percent
            assert all(share.percent > 0 for share in configuration_rollout.revisions)
            assert configuration_rollout.revisions[-1].revision_name == f"r{revision}"
        # A restarted controller knows only the annotation.
        assert read_rollout({ROLLOUT_ANNOTATION: write_rollout(rollout)}) == rollout
        # Deciding again at the same time changes nothing.
        again = advance(rollout_goal(requests, assigned), rollout, can_serve=serves, now_s=now_s)
        assert again == rollout


@given(
    duration_s=st.integers(1, 3600),
    waited_s=st.floats(0, 100),
    percent=st.integers(2, 100),
    late_s=st.floats(0, 0.01),
)
def test_rollout_ends_after_its_duration_in_equal_steps(
    duration_s: int, waited_s: float, percent: int, late_s: float
) -> None:
    def at_rest(name: str) -> Rollout:
        return rollout_goal(
            [{"configurationName": "hello", "percent": percent}], [{"revisionName": name, "percent": percent}]
        )

    start_s = 1_000_000.0
    rollout = advance(at_rest("r2"), at_rest("r1"), can_serve=lambda _: True, now_s=start_s)
    newest = rollout.configurations[0].revisions[-1].percent
    assert newest == 1
    ready_s = start_s + waited_s
    rollout = observe_ready(rollout, duration_s=duration_s, now_s=ready_s)
    sizes, now_s = [], ready_s
    while (due_s := next_step_s(rollout)) is not None:
        assert due_s > now_s
        now_s = due_s + late_s
        rollout = advance(at_rest("r2"), rollout, can_serve=lambda _: True, now_s=now_s)
        after = rollout.configurations[0].revisions[-1].percent
        sizes.append(after - newest)
        newest = after
    assert newest == percent
    assert 1 <= len(sizes) <= percent - 1
    # Steps are equal; the last one is the remainder.
    assert len(set(sizes[:-1])) <= 1
    assert 0 < sizes[-1] <= sizes[0]
    assert duration_s - 0.001 <= now_s - ready_s <= duration_s + len(sizes) * late_s + 0.001
