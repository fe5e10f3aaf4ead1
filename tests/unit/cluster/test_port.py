import msgspec

from serving.cluster.port import EventType, WatchEvent


def object_at(version: str) -> dict[str, dict[str, str]]:
    return {"metadata": {"name": "one", "resourceVersion": version}}


def test_an_event_decodes_its_object_once() -> None:
    event = WatchEvent(type=EventType.ADDED, encoded=msgspec.json.encode(object_at("5")))
    assert event.object == object_at("5")
    assert event.object is event.object


def test_each_event_has_an_object_of_its_own() -> None:
    encoded = msgspec.json.encode(object_at("5"))
    first, second = (WatchEvent(type=EventType.ADDED, encoded=encoded) for _ in range(2))
    first.object["metadata"]["name"] = "changed"
    assert second.object == object_at("5")


def test_events_are_the_same_if_they_say_the_same() -> None:
    encoded = WatchEvent(type=EventType.ADDED, encoded=msgspec.json.encode(object_at("5")))
    assert encoded == WatchEvent(type=EventType.ADDED, object=object_at("5"))
    assert encoded != WatchEvent(type=EventType.MODIFIED, object=object_at("5"))
    assert encoded != WatchEvent(type=EventType.ADDED, object=object_at("6"))
    assert encoded != "an event"


def test_its_repr_is_a_summary() -> None:
    assert repr(WatchEvent(type=EventType.ADDED, object=object_at("5"))) == "WatchEvent(ADDED one@5)"
