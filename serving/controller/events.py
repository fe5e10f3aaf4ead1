"""Notes become Events of the API: one object for each thing that is said about a resource, with a count of repetitions.

Pure: ``event_name`` is the same for the same words about the same object, so that saying it again is a patch of the count
and a restart finds what was said before. Follows core/v1 Event.
"""

import hashlib

from serving.controller.objects import Object, name_of, namespace_of, uid_of, version_of
from serving.controller.writes import Note

__all__ = ["event_name", "new_event", "repeated"]

_COMPONENT = "serving-controller"
_DIGEST_LENGTH = 16
_NAME_LENGTH_MAX = 253
# The API refuses longer messages.
_MESSAGE_LENGTH_MAX = 1024


def event_name(note: Note) -> str:
    """The object's name and a digest of who is spoken of and what is said."""
    said = "\0".join((uid_of(note.about), note.reason, note.message))
    digest = hashlib.sha256(said.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{name_of(note.about)[: _NAME_LENGTH_MAX - _DIGEST_LENGTH - 1]}.{digest}"


def new_event(note: Note, *, now: str) -> Object:
    """The Event when it is said first."""
    about = note.about
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name(note), "namespace": namespace_of(about)},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": name_of(about),
            "namespace": namespace_of(about),
            "uid": uid_of(about),
            "resourceVersion": version_of(about),
        },
        "type": "Warning" if note.warning else "Normal",
        "reason": note.reason or "Changed",
        "message": note.message[-_MESSAGE_LENGTH_MAX:],
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "reportingInstance": "",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def repeated(event: Object, *, now: str) -> Object:
    """The patch that says it once more, if nobody else has meanwhile."""
    metadata = {"resourceVersion": version_of(event)}
    return {"metadata": metadata, "count": event.get("count", 1) + 1, "lastTimestamp": now}
