import json

import msgspec
import pytest

from serving.autoscaler.decision_events import DecisionBook, DecisionEvent, DecisionPublisher
from serving.autoscaler.follow import Followers, FollowRequest
from serving.autoscaler.policy_book import PolicyBook
from serving.scaling.revision import ScaledRevision
from serving.scaling.scaler.decision_history import DecisionHistory
from serving.scaling.scaler.scaler import DecisionCause
from serving.settings.autoscaler import CLASSIC_CLASS
from tests.unit.scaling.kpa_builders import spec_with
from tests.unit.scaling.scaler_builders import World, facts_of, revision_with

KEY = ("default", "hello-00001")


class Ear:
    """One who follows, and always has room."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def __call__(self, data: bytes) -> bool:
        self.heard.append(data)
        return True


class Told:
    """A world, and who is told."""

    def __init__(self, class_name: str = "kpa.autoscaling.knative.dev", *, is_heard: bool = True) -> None:
        self.revision = revision_with(spec_with(target_value=7.0), class_name=class_name)
        self.world = World(self.revision, facts_of(1))
        self.followers, self.story = Followers(), DecisionHistory(10)
        self.lines: list[bytes] = []
        self.changes: list[str] = []
        self.teller = DecisionPublisher(
            self.followers,
            log=self.lines.append if is_heard else None,
            change=self.change if is_heard else None,
        )

    def change(self, revision: ScaledRevision, sentence: str) -> None:
        assert revision is self.revision
        self.changes.append(sentence)

    def decide(self) -> None:
        outcome = self.world.decide(DecisionCause.PERIOD)
        told = self.story.add(outcome, at_wall_s=self.world.now_s)
        self.teller.publish(
            DecisionEvent(
                revision=self.revision,
                scaler=self.world.scaler,
                outcome=outcome,
                entry=told,
                at_wall_s=self.world.now_s,
            )
        )


def events_of(data: list[bytes]) -> list[tuple[str, dict[str, object]]]:
    lines = [one.decode().splitlines() for one in data]
    return [(event.removeprefix("event: "), json.loads(body.removeprefix("data: "))) for event, body, _ in lines]


def test_what_is_new_is_logged_and_a_change_is_an_event_too() -> None:
    told = Told()
    told.world.live(60, load=5.0)
    told.decide()
    told.decide()
    assert (len(told.lines), told.changes) == (1, [])
    told.world.now_s += 1
    told.world.poke(100)
    told.world.now_s += 2
    told.decide()
    assert len(told.lines) == 2
    assert told.changes[0].startswith("1 → ")
    assert repr(told.teller) == "DecisionPublisher(Followers(0))"


def test_who_follows_gets_decisions_and_samples() -> None:
    for class_name, count in (("kpa.autoscaling.knative.dev", 1), (CLASSIC_CLASS, 9)):
        told = Told(class_name, is_heard=False)
        told.decide()
        told.world.live(60, load=5.0)
        ear = Ear()
        told.followers.add(FollowRequest(samples=True), ear)
        told.decide()
        told.decide()
        events = events_of(ear.heard)
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
        assert sample["target"] == told.world.scaler._target() * count


def test_a_sample_without_data_has_none() -> None:
    told = Told()
    ear = Ear()
    told.followers.add(FollowRequest(samples=True), ear)
    told.decide()
    sample = dict(events_of(ear.heard))["sample"]
    assert (sample["desired_count"], sample["observed_stable"]) == (None, None)


def test_the_book_narrows_down_and_lets_people_follow_from_a_time_on() -> None:
    told = Told()
    told.decide()
    told.world.live(60, load=5.0)
    told.decide()
    book = DecisionBook(
        told.followers,
        keys=lambda: [KEY],
        decisions=lambda key: told.story.entries() if key == KEY else [],
        policies=PolicyBook(keys=lambda: [KEY], scaler=lambda _: None),
    )
    since = str(told.world.now_s)
    assert len(json.loads(book.encoded({}))) == 2
    assert len(json.loads(book.encoded({"since": since}))) == 1
    assert len(json.loads(book.encoded({"since": "yesterday"}))) == 2
    assert json.loads(book.encoded({"revision": "other"})) == []
    ear = Ear()
    end = book.follow({"since": since}, ear)
    told.world.poke(100)
    told.world.now_s += 2
    told.decide()
    end()
    book.follow({}, Ear())()
    assert len(ear.heard) == 2
    assert repr(book) == "DecisionBook(Followers(0))"
    assert msgspec.json.decode(told.lines[-1])["revision"] == "hello-00001"
