import json

import msgspec
import pytest

from serving.autoscaler.decision_events import (
    DecisionBook,
    DecisionEvent,
    DecisionPublisher,
    Followers,
    FollowRequest,
    PolicyBook,
    parse_target,
    subscription_of,
)
from serving.core.scaling.adaptive.policy import adaptive_policy
from serving.core.scaling.decision.records import DecisionCause
from serving.core.scaling.revision import ScaledRevision
from serving.core.scaling.scaler.decision_history import DecisionHistory
from serving.core.scaling.scaler.registry import BUILT_IN
from serving.core.scaling.scaler.scaler import Scaler, StatSource
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import CLASSIC_CLASS
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.unit.core.scaling.scaler_builders import SETTINGS, World, facts_of, revision_with, stat_of

KEY = ("default", "hello-00001")

HELLO = ("default", "hello-00001")
ADAPTIVE, KNATIVE, UNKNOWN = ("default", "a"), ("default", "k"), ("other", "u")
SPEC = spec_with(policy="adaptive", container_concurrency=10, total_value=10.0, target_value=7.0)
WALL_S = 1e9


class Subscriber:
    """A subscriber that always has room."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def __call__(self, data: bytes) -> bool:
        self.messages.append(data)
        return True


class PublishedWorld:
    """A world whose decisions are published to a log, to subscribers and as Events."""

    def __init__(self, class_name: str = "kpa.autoscaling.knative.dev", *, is_heard: bool = True) -> None:
        self.revision = revision_with(spec_with(target_value=7.0), class_name=class_name)
        self.world = World(self.revision, facts_of(1))
        self.followers, self.story = Followers(), DecisionHistory(10)
        self.lines: list[bytes] = []
        self.changes: list[str] = []
        self.reporter = DecisionPublisher(
            self.followers,
            log=self.lines.append if is_heard else None,
            change=self.change if is_heard else None,
        )

    def change(self, revision: ScaledRevision, sentence: str) -> None:
        assert revision is self.revision
        self.changes.append(sentence)

    def decide(self) -> None:
        outcome = self.world.decide(DecisionCause.PERIOD)
        published = self.story.add(outcome, at_wall_s=self.world.now_s)
        self.reporter.publish(
            DecisionEvent(
                revision=self.revision,
                scaler=self.world.scaler,
                outcome=outcome,
                entry=published,
                at_wall_s=self.world.now_s,
            )
        )


def events_of(data: list[bytes]) -> list[tuple[str, dict[str, object]]]:
    lines = [message.decode().splitlines() for message in data]
    return [(event.removeprefix("event: "), json.loads(body.removeprefix("data: "))) for event, body, _ in lines]


def test_new_decisions_are_logged_and_scale_changes_emit_events() -> None:
    published = PublishedWorld()
    published.world.live(60, load=5.0)
    published.decide()
    published.decide()
    assert (len(published.lines), published.changes) == (1, [])
    published.world.now_s += 1
    published.world.poke(100)
    published.world.now_s += 2
    published.decide()
    assert len(published.lines) == 2
    assert published.changes[0].startswith("1 → ")


def test_subscriber_receives_decisions_and_samples() -> None:
    for class_name, count in (("kpa.autoscaling.knative.dev", 1), (CLASSIC_CLASS, 9)):
        published = PublishedWorld(class_name, is_heard=False)
        published.decide()
        published.world.live(60, load=5.0)
        subscriber = Subscriber()
        published.followers.add(FollowRequest(samples=True), subscriber)
        published.decide()
        published.decide()
        events = events_of(subscriber.messages)
        assert [event for event, _ in events] == ["decision", "sample", "sample"]
        assert str(events[0][1]["sentence"]).startswith(f"stays {count}")
        sample = events[-1][1]
        assert {name: sample[name] for name in ("running", "held", "ready_count", "desired_count", "pods")} == {
            "running": pytest.approx(5.0),
            "held": pytest.approx(0.0),
            "ready_count": count,
            "desired_count": count,
            "pods": {f"pod-{number}": pytest.approx(5.0 / count) for number in range(count)},
        }
        assert (sample["wanted_count"], str(sample["sentence"]).split(":")[0]) == (count, f"stays {count}")
        assert sample["target"] == {1: 7.0, 9: 9.0}[count]


def test_sample_without_data_has_null_values() -> None:
    published = PublishedWorld()
    subscriber = Subscriber()
    published.followers.add(FollowRequest(samples=True), subscriber)
    published.decide()
    sample = dict(events_of(subscriber.messages))["sample"]
    assert (sample["desired_count"], sample["observed_stable"]) == (None, None)
    assert str(sample["sentence"]).startswith(f"stays {sample['wanted_count']}: no data (")


def test_decision_book_filters_by_revision_and_start_time() -> None:
    published = PublishedWorld()
    published.decide()
    published.world.live(60, load=5.0)
    published.decide()
    book = DecisionBook(
        published.followers,
        keys=lambda: [KEY],
        decisions=lambda key: published.story.entries() if key == KEY else [],
        policies=PolicyBook(keys=lambda: [KEY], scaler=lambda _: None),
    )
    since = str(published.world.now_s)
    assert len(json.loads(book.encoded({}))) == 2
    assert len(json.loads(book.encoded({"since": since}))) == 1
    assert len(json.loads(book.encoded({"since": "yesterday"}))) == 2
    assert json.loads(book.encoded({"revision": "other"})) == []
    subscriber = Subscriber()
    end = book.subscribe({"since": since}, subscriber)
    published.world.poke(100)
    published.world.now_s += 2
    published.decide()
    end()
    book.subscribe({}, Subscriber())()
    assert len(subscriber.messages) == 2
    assert msgspec.json.decode(published.lines[-1])["revision"] == "hello-00001"


def test_subscriber_of_a_revision_receives_only_its_decisions() -> None:
    followers, messages = Followers(), list[bytes]()

    def receive(data: bytes) -> bool:
        messages.append(data)
        return True

    followers.add(FollowRequest(key=HELLO), receive)
    followers.send("decision", HELLO, b"{}")
    followers.send("decision", ("default", "other"), b"{}")
    assert messages == [b"event: decision\ndata: {}\n\n"]


@pytest.mark.parametrize(
    ("names", "event", "key", "expected"),
    [
        ({}, "decision", HELLO, True),
        ({}, "sample", HELLO, False),
        ({"samples": ""}, "sample", HELLO, True),
        ({"namespace": "other"}, "decision", HELLO, False),
        ({"namespace": "default"}, "decision", HELLO, True),
        ({"revision": "hello-00001"}, "decision", HELLO, True),
        ({"revision": "hello-00002", "namespace": "default"}, "decision", HELLO, False),
    ],
)
def test_subscription_query_selects_events(
    names: dict[str, str], event: str, key: tuple[str, str], expected: bool
) -> None:
    assert subscription_of(names).lets_through(event, key) is expected


def test_slow_or_unsubscribed_follower_receives_nothing_more() -> None:
    followers, messages = Followers(), list[bytes]()
    followers.add(FollowRequest(samples=True), lambda data: bool(messages.append(data)))  # type: ignore[func-returns-value]
    end = followers.add(FollowRequest(), bool)
    assert (len(followers), followers.has_sample_subscriber) == (2, True)
    followers.send("sample", HELLO, b"1")
    followers.send("sample", HELLO, b"2")
    assert messages == [b"event: sample\ndata: 1\n\n"]
    end()
    end()
    assert (len(followers), followers.has_sample_subscriber) == (0, False)


def test_repeated_query_name_has_an_empty_value() -> None:
    assert parse_target("/stats?pod=a&x=&revision=r&pod=b") == ("/stats", {"pod": "", "x": "", "revision": "r"})


def lived(spec: ScalingSpec = SPEC) -> World:
    world = World(revision_with(spec), facts_of(1), policy=BUILT_IN.policy_of(spec, SETTINGS))
    world.scaler.shadow = BUILT_IN.shadow_of(
        spec, SETTINGS, present_scale=1, wall_offset_s=WALL_S - world.now_s, now_s=world.now_s
    )
    for second in range(120):
        world.record(stat_of(1.0 if second % 24 < 4 else 0.0, by="pod-0"), StatSource.POD)
        world.now_s += 1.0
        world.scaler.tick(world.facts, DecisionCause.PERIOD, world.now_s)
    return world


def test_policy_book_reports_costs_and_curve_of_adaptive_revisions() -> None:
    world = lived()
    knative = Scaler(revision_with(), facts_of(1), SETTINGS, is_restart=False, now_s=0.0)
    scalers = {ADAPTIVE: world.scaler, KNATIVE: knative}
    book = PolicyBook(keys=lambda: [ADAPTIVE, KNATIVE, UNKNOWN], scaler=scalers.get)

    (story,) = json.loads(book.encoded({}, now_s=world.now_s))
    assert (story["namespace"], story["revision"]) == ADAPTIVE
    assert story["costs"]["covered_s"] == 120.0
    assert story["sentence"].startswith("over the last 2 minutes: 0 cold requests in both cases, ")
    # The last request ended 20 s ago, at a resolution of whole seconds.
    assert 18.0 <= WALL_S + 120.0 - story["idle_since_wall_s"] <= 21.0
    assert story["curve"] is None
    costs = book.costs(ADAPTIVE, world.now_s)
    assert costs is not None
    assert costs.adaptive_pod_seconds == story["costs"]["adaptive_pod_seconds"] == 120.0
    assert (story["policy"], story["shadow_scale"]) == ("adaptive", 1)
    assert book.costs(KNATIVE, world.now_s) is None
    (with_curve,) = json.loads(book.encoded({"revision": "a", "curve": ""}, now_s=world.now_s))
    assert len(with_curve["curve"]["ages_s"]) == len(with_curve["curve"]["rates"]) > 50
    assert json.loads(book.encoded({"namespace": "other"}, now_s=world.now_s)) == []


def test_policy_book_reports_costs_and_curve_of_the_adaptive_shadow() -> None:
    world = lived(msgspec.structs.replace(SPEC, policy="knative"))
    book = PolicyBook(keys=lambda: [KNATIVE], scaler=lambda _: world.scaler)

    (story,) = json.loads(book.encoded({"curve": ""}, now_s=world.now_s))
    assert world.scaler.policy.name == "knative"
    assert (story["policy"], story["shadow_scale"], story["costs"]["knative_pod_seconds"]) == ("knative", 1, 120.0)
    assert "; the adaptive policy would have had " in story["sentence"]
    assert story["curve"]["gap_count"] == 4


def test_policy_book_has_no_curve_before_the_first_request() -> None:
    world = World(revision_with(SPEC), facts_of(0), policy=adaptive_policy(SPEC, SETTINGS))
    world.scaler.shadow = BUILT_IN.shadow_of(SPEC, SETTINGS, present_scale=0, wall_offset_s=0.0, now_s=world.now_s)
    book = PolicyBook(keys=lambda: [ADAPTIVE], scaler=lambda _: world.scaler)

    (story,) = json.loads(book.encoded({"curve": ""}, now_s=world.now_s))
    assert (story["sentence"], story["idle_since_wall_s"], story["curve"]) == ("", None, None)
