"""Conversion of notes to Events."""

from serving.controller.io.plan_writer import first_event
from serving.controller.values.writes import Note
from tests.unit.controller.builders import NOW, a_service, stored


def new_note(message: str = "boom", *, warning: bool = True, reason: str = "ExitCode1") -> Note:
    return Note(about=a_service(), reason=reason, message=message, warning=warning)


def event_name(note: Note) -> str:
    return str(first_event(note, now=NOW)["metadata"]["name"])


def test_event_refers_to_its_object() -> None:
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


def test_note_without_warning_is_normal_event() -> None:
    assert first_event(new_note(warning=False, reason=""), now=NOW)["type"] == "Normal"


def test_event_name_depends_on_message_and_reason() -> None:
    assert event_name(new_note()) == event_name(new_note())
    assert len({event_name(new_note()), event_name(new_note("other")), event_name(new_note(reason="Other"))}) == 3


def test_event_name_has_at_most_253_characters() -> None:
    about = stored(a_service(), name="a" * 253)
    assert len(event_name(Note(about=about, reason="R", message="m"))) == 253


def test_long_event_message_is_truncated_at_its_start() -> None:
    assert first_event(new_note("x" * 2000 + "end"), now=NOW)["message"] == "x" * 1021 + "end"
