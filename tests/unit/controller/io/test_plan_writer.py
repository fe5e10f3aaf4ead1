"""Notes become Events."""

from serving.controller.io.plan_writer import first_event
from serving.controller.values.writes import Note
from tests.unit.controller.builders import NOW, a_service, stored


def new_note(message: str = "boom", *, warning: bool = True, reason: str = "ExitCode1") -> Note:
    return Note(about=a_service(), reason=reason, message=message, warning=warning)


def event_name(note: Note) -> str:
    return str(first_event(note, now=NOW)["metadata"]["name"])


def test_an_event_is_about_its_object() -> None:
    event = first_event(new_note(), now=NOW)
    assert event["involvedObject"] == {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "name": "hello",
        "namespace": "default",
        "uid": "uid-of-service-hello",
        "resourceVersion": "7",
    }
    assert (event["type"], event["reason"], event["message"], event["count"]) == ("Warning", "ExitCode1", "boom", 1)


def test_good_news_are_normal() -> None:
    assert first_event(new_note(warning=False, reason=""), now=NOW)["type"] == "Normal"


def test_the_same_words_have_the_same_name() -> None:
    assert event_name(new_note()) == event_name(new_note())
    assert len({event_name(new_note()), event_name(new_note("other")), event_name(new_note(reason="Other"))}) == 3


def test_a_name_is_short_enough_for_the_api() -> None:
    about = stored(a_service(), name="a" * 253)
    assert len(event_name(Note(about=about, reason="R", message="m"))) == 253


def test_a_long_message_keeps_its_end() -> None:
    assert first_event(new_note("x" * 2000 + "end"), now=NOW)["message"] == "x" * 1021 + "end"
