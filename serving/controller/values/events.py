"""Notes as Events of the API: one Event for each message about an object, with a count of repetitions.

The name of an Event is a function of object and message, so a repetition is a patch of the count, also after a restart.
"""

from serving.controller.values.writes import Note
from serving.model.event import MESSAGE_LENGTH_MAX, Words, about, digest, name_within, new_event
from serving.model.objects import Object, name_of, uid_of

_COMPONENT = "serving-controller"


def event_name(note: Note) -> str:
    """The object's name and a digest of the object and the message."""
    return name_within(name_of(note.about), _digest(note))


def note_event(note: Note, *, now: str) -> Object:
    """The first Event of a note. A long message keeps its end, which has the cause."""
    message = note.message[-MESSAGE_LENGTH_MAX:]
    words = Words(reason=note.reason or "Changed", message=message, is_warning=note.warning)
    return new_event(about(note.about), words, suffix=_digest(note), component=_COMPONENT, now=now)


def _digest(note: Note) -> str:
    return digest(uid_of(note.about), note.reason, note.message)
