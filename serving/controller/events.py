"""Notes become Events of the API: one object for each thing that is said about a resource, with a count of repetitions.

Pure: ``event_name`` is the same for the same words about the same object, so that saying it again is a patch of the count
and a restart finds what was said before.
"""

from serving.controller.writes import Note
from serving.model.event import MESSAGE_LENGTH_MAX, Words, about, digest, name_within, new_event
from serving.model.objects import Object, name_of, uid_of

__all__ = ["event_name", "note_event"]

_COMPONENT = "serving-controller"


def event_name(note: Note) -> str:
    """The object's name and a digest of who is spoken of and what is said."""
    return name_within(name_of(note.about), _digest(note))


def note_event(note: Note, *, now: str) -> Object:
    """The Event when it is said first. Of a long message the end is kept: the cause stands there."""
    message = note.message[-MESSAGE_LENGTH_MAX:]
    words = Words(reason=note.reason or "Changed", message=message, is_warning=note.warning)
    return new_event(about(note.about), words, suffix=_digest(note), component=_COMPONENT, now=now)


def _digest(note: Note) -> str:
    return digest(uid_of(note.about), note.reason, note.message)
