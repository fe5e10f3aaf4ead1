from serving.core.scaling.scaler.decision_history import DecisionHistory
from tests.unit.core.scaling.scaler_builders import World, facts_of, revision_with


def test_equal_decisions_share_one_entry() -> None:
    world, story = World(revision_with(), facts_of(1)), DecisionHistory(10)
    world.live(70, load=5)
    assert [story.add(world.decide()) is not None for _ in range(3)] == [True, False, False]
    (history_entry,) = story.entries()
    assert history_entry.repeated_count == 2
    assert history_entry.outcome is world.outcomes[-1]


def test_repeated_decision_retains_first_time() -> None:
    world, story = World(revision_with(), facts_of(1)), DecisionHistory(10)
    world.live(70, load=5)
    story.add(world.decide())
    since_s = world.now_s
    world.live(4, load=5)
    story.add(world.decide())
    assert [history_entry.since_s for history_entry in story.entries()] == [since_s]


def test_oldest_decisions_are_dropped() -> None:
    world, story = World(revision_with(), facts_of(1)), DecisionHistory(2)
    for load in (5, 500, 5000):
        world.live(70, load=load)
        assert story.add(world.decide())
    assert len(story) == 2
    assert [history_entry.outcome.view.present_scale for history_entry in story.entries()] == [8, 72]


def test_repeated_decisions_are_logged_once_per_minute() -> None:
    world, story = World(revision_with(), facts_of(1)), DecisionHistory(10)
    world.live(70, load=5)
    logged = []
    for _ in range(62):
        world.live(2, load=5)
        logged.append(story.add(world.outcomes[-1], at_wall_s=world.now_s + 5))
    reported = [history_entry for history_entry in logged if history_entry is not None]
    assert [history_entry.repeated_count for history_entry in reported] == [0, 30, 60]
    assert reported[-1].at_wall_s - reported[-1].since_wall_s == 120
