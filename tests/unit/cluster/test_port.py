import msgspec

from serving.cluster.port import Encoded, EventType, WatchEvent


def object_at(version: str) -> dict[str, dict[str, str]]:
    return {"metadata": {"name": "one", "resourceVersion": version}}


def test_an_event_decodes_its_object_once() -> None:
    event = WatchEvent(type=EventType.ADDED, told=Encoded(msgspec.json.encode(object_at("5"))))
    assert event.object == object_at("5")
    assert event.object is event.object


def test_each_event_has_an_object_of_its_own() -> None:
    told = Encoded(msgspec.json.encode(object_at("5")))
    first, second = (WatchEvent(type=EventType.ADDED, told=told) for _ in range(2))
    first.object["metadata"]["name"] = "changed"
    assert second.object == object_at("5")


def test_those_who_only_read_share_one_object_which_no_owner_of_another_can_change() -> None:
    told = Encoded(msgspec.json.encode(object_at("5")))
    first, second = (WatchEvent(type=EventType.ADDED, told=told) for _ in range(2))
    assert first.shared is second.shared
    first.object["metadata"]["name"] = "changed"
    assert second.shared == object_at("5")
    assert repr(told) == "Encoded(49 bytes)"


def test_without_bytes_the_object_is_what_is_shared() -> None:
    event = WatchEvent(type=EventType.ADDED, object=object_at("5"))
    assert event.encoded is None
    assert event.shared is event.object


def test_events_are_the_same_if_they_say_the_same() -> None:
    encoded = WatchEvent(type=EventType.ADDED, told=Encoded(msgspec.json.encode(object_at("5"))))
    assert encoded == WatchEvent(type=EventType.ADDED, object=object_at("5"))
    assert encoded != WatchEvent(type=EventType.MODIFIED, object=object_at("5"))
    assert encoded != WatchEvent(type=EventType.ADDED, object=object_at("6"))
    assert encoded != "an event"


def test_its_repr_is_a_summary() -> None:
    assert repr(WatchEvent(type=EventType.ADDED, object=object_at("5"))) == "WatchEvent(ADDED one@5)"
