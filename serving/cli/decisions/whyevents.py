"""What ``serving why`` tells without the autoscaler: Events of Revisions, which the API of a cluster keeps for who may read.

Events are fewer than decisions: those of one revision may not come too fast, and each says how many before it were left out.
Their times are of whole seconds.
"""

import datetime as dt
from collections.abc import Callable, Iterator

import msgspec

from serving.cli.client.api import ApiClient
from serving.cli.client.objects import items_of
from serving.cli.services.get import watched
from serving.cluster.kinds import EVENT, REVISION
from serving.model.objects import Object, nested

_REASON = "Scaled"


class ScaleEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change: when (seconds since the epoch), of which revision, in words."""

    at_s: float
    revision: str
    sentence: str


def said_by_events(api: ApiClient, is_ours: Callable[[str], bool]) -> list[ScaleEvent]:
    """Changes of these revisions in the namespace that are still known, oldest first."""
    said = [_said(one) for one in items_of(api, EVENT)]
    return sorted((one for one in said if one is not None and is_ours(one.revision)), key=lambda one: one.at_s)


def said_from_now_on(api: ApiClient, is_ours: Callable[[str], bool], *, since_s: float) -> Iterator[ScaleEvent]:
    """The same from a time on, as they come, without end. Raises ``ServingError`` when the API refuses."""
    seen: set[str] = set()
    for event in watched(api, EVENT):
        said = None if event["type"] in {"DELETED", "BOOKMARK"} else _said(event["object"])
        version = str(nested(event, "object", "metadata", "resourceVersion"))
        # A watch that was cut off begins with all that is there.
        if said is not None and said.at_s >= since_s and version not in seen and is_ours(said.revision):
            seen.add(version)
            yield said


def _said(event: Object) -> ScaleEvent | None:
    if nested(event, "involvedObject", "kind") != REVISION.name or event.get("reason") != _REASON:
        return None
    stamp = str(event.get("lastTimestamp") or nested(event, "metadata", "creationTimestamp"))
    return ScaleEvent(
        at_s=dt.datetime.fromisoformat(stamp).timestamp(),
        revision=str(nested(event, "involvedObject", "name")),
        sentence=str(event.get("message", "")),
    )
